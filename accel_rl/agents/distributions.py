"""Distributions of actions: how the numbers that a network gives become actions.

The last layer of a policy gives ``P`` numbers for an observation. What they mean depends on the
space of actions: the logits of a softmax, means of floats, or both of a mapping's leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import log, pi, prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from accel_rl.spaces import ACTION_MASK, Leaf, Space, describe, without_mask

_MOST_VALUES = 100_000
"""numbers that a policy may give for one action"""


class Evaluated(NamedTuple):
    """Log-probabilities of ``N`` actions, and entropies of the distributions.

    Attributes:
        log_prob: ``[N]``, logarithms of probabilities, or of densities.
        entropy: ``[N]``, in nats.
    """

    log_prob: Tensor
    entropy: Tensor


class Drawn(NamedTuple):
    """``N`` actions that were drawn, and what their learner needs of the policy that drew them.

    Attributes:
        action: ``[N, ...]``.
        log_prob: ``[N]``, logarithms of probabilities, or of densities.
        value: ``[N]``, values of the observations.
    """

    action: Any
    log_prob: Tensor
    value: Tensor


class Distribution(nn.Module):
    """The meaning of the ``P`` outputs of a policy network as actions of one action space.

    Its parameters are the logarithms of deviations, which do not depend on the observation.

    Attributes:
        num_outputs: ``P``.
        num_noise: ``k``, random numbers from which an action is drawn.
    """

    num_outputs: int
    num_noise: int = 1

    def mask(self, outputs: Tensor, mask: Any) -> Tensor:
        """Return outputs under which forbidden actions have probability 0.

        Args:
            outputs: ``[N, P]``.
            mask: an action mask of the space, see `accel_rl.spaces`. None allows everything.
        """
        return masked(outputs, mask)

    def draw(self, outputs: Tensor, noise: Tensor, mask: Any = None) -> Any:
        """Return random actions ``[N, ...]``, without gradient.

        Args:
            outputs: masked outputs, ``[N, P]``.
            noise: float64 random numbers in [0, 1), ``[N]`` if ``k`` is 1, else ``[N, k]``. No
                other randomness is used.
            mask: the mask. None allows everything.
        """
        raise NotImplementedError

    def mode(self, outputs: Tensor) -> Any:
        """Return the most probable actions ``[N, ...]``."""
        raise NotImplementedError

    def evaluate(self, outputs: Tensor, action: Any) -> Evaluated:
        """Return log-probabilities and entropies, with gradient.

        Args:
            outputs: masked outputs, ``[N, P]``.
            action: actions of the space, ``[N, ...]``.
        """
        raise NotImplementedError

    def log_prob(self, outputs: Tensor, action: Any) -> Tensor:
        """Return the log-probabilities ``[N]`` alone. Arguments are those of `evaluate`."""
        raise NotImplementedError


def make_distribution(
    action: Space, device: torch.device, *, in_units: bool = True
) -> Distribution:
    """Return the distribution that fits an action space.

    - The integers ``0 .. n - 1``: a softmax.
    - Other bounded integers, and booleans: a softmax for each integer.
    - Floats: a normal distribution for each float.
    - A mapping: the distributions of its leaves, independent of each other.

    Args:
        action: the action space.
        device: device of the network.
        in_units: True: means and deviations of floats are in units of half the width of their
            bounds, around their middle (`Leaf.units`). False: in the environment's own units.

    Raises:
        ValueError: the space has integers without bounds, or more than 100,000 values.
    """
    if not isinstance(action, Leaf):
        parts = action.items()
        return Joint({k: make_distribution(v, device, in_units=in_units) for k, v in parts})
    if action.dtype.kind == "f":
        return Gaussian(action, device, in_units=in_units)
    counts = [2] * prod(action.shape) if action.dtype.kind == "b" else action.counts
    if counts is None or sum(counts) > _MOST_VALUES:
        raise ValueError(
            f"actions are {describe(action)}; a policy can learn integers between bounds, with at "
            f"most {_MOST_VALUES:,} values in all"
        )
    if not action.shape and action.low == 0 and action.dtype == np.int64:
        return Categorical(counts[0])
    return Factored(action, counts, device)


class Categorical(Distribution):
    """One of ``n`` actions, by a softmax over logits. Whoever makes the network must give ``n``."""

    def __init__(self, n: int = 0) -> None:
        super().__init__()
        self.num_outputs = n

    def draw(self, outputs: Tensor, noise: Tensor, mask: Tensor | None = None) -> Tensor:
        return sample_categorical(outputs, noise, mask)

    def mode(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(1)

    def evaluate(self, outputs: Tensor, action: Tensor) -> Evaluated:
        log_probs = outputs.log_softmax(1)
        log_prob = log_probs.gather(1, action.unsqueeze(1)).squeeze(1)
        return Evaluated(log_prob, -(log_probs.exp() * log_probs).sum(1))

    def log_prob(self, outputs: Tensor, action: Tensor) -> Tensor:
        return outputs.log_softmax(1).gather(1, action.unsqueeze(1)).squeeze(1)


CATEGORICAL = Categorical()
"""A softmax over as many actions as the network has logits."""


def sample_categorical(logits: Tensor, noise: Tensor, mask: Tensor | None = None) -> Tensor:
    """Draw actions from a softmax, without gradient.

    The action is the first whose cumulative probability exceeds ``noise``. So each action depends
    only on its own row.

    Args:
        logits: masked logits, ``[N, A]``.
        noise: ``[N]`` random numbers in [0, 1).
        mask: ``[N, A]``, not 0 for allowed actions. None: all are allowed.

    Returns:
        Actions ``[N]`` int64.
    """
    cumulative = logits.double().softmax(1).cumsum_(1)
    action = (cumulative <= noise.unsqueeze(1)).sum(1)
    # Rounding may leave the last cumulative probability below 1, and the noise above it.
    last = logits.shape[1] - 1
    if mask is None:
        return action.clamp_(max=last)
    return torch.minimum(action, last - mask.ne(0).flip(1).int().argmax(1))


class Factored(Distribution):
    """``k`` integers, each by a softmax of its own over its values, one after the other."""

    def __init__(self, leaf: Leaf, counts: list[int], device: torch.device) -> None:
        super().__init__()
        self.num_outputs, self.num_noise = sum(counts), len(counts)
        self._leaf = leaf
        self._dtype = getattr(torch, leaf.dtype.name)
        low = np.zeros(leaf.shape) if leaf.bounds[0] is None else leaf.bounds[0]
        self._low = torch.tensor(np.ravel(low).astype(np.int64), device=device)
        # [k, m]: which of the logits is value j of integer i; those that are not there are the last
        # column, which `_logits` adds.
        ends = np.cumsum([0, *counts])
        place = np.full((len(counts), max(counts)), self.num_outputs)
        for i, (begin, end) in enumerate(pairwise(ends)):
            place[i, : end - begin] = np.arange(begin, end)
        self._place = torch.tensor(place, device=device)
        self._last = torch.tensor(counts, device=device) - 1

    def draw(self, outputs: Tensor, noise: Tensor, mask: Tensor | None = None) -> Tensor:
        logits = self._logits(outputs)
        N, k, m = logits.shape
        allowed = (logits > torch.finfo(logits.dtype).min).view(N * k, m)
        drawn = sample_categorical(logits.view(N * k, m), noise.flatten(), allowed)
        # Nothing is allowed where an environment waits for its reset, and its action is ignored.
        return self._action(drawn.view(N, k).minimum(self._last))

    def mode(self, outputs: Tensor) -> Tensor:
        return self._action(self._logits(outputs).argmax(2))

    def evaluate(self, outputs: Tensor, action: Tensor) -> Evaluated:
        log_probs = self._logits(outputs).log_softmax(2)
        return Evaluated(self._of(log_probs, action), -(log_probs.exp() * log_probs).sum((1, 2)))

    def log_prob(self, outputs: Tensor, action: Tensor) -> Tensor:
        return self._of(self._logits(outputs).log_softmax(2), action)

    def _of(self, log_probs: Tensor, action: Tensor) -> Tensor:
        chosen = action.reshape(log_probs.shape[0], -1).long() - self._low
        return log_probs.gather(2, chosen.unsqueeze(2)).sum((1, 2))

    def _logits(self, outputs: Tensor) -> Tensor:
        """``[N, k, m]``, the lowest number where there is no such value."""
        lowest = outputs.new_full((outputs.shape[0], 1), torch.finfo(outputs.dtype).min)
        return torch.cat((outputs, lowest), 1)[:, self._place]

    def _action(self, chosen: Tensor) -> Tensor:
        return (chosen + self._low).to(self._dtype).view(chosen.shape[0], *self._leaf.shape)


class Gaussian(Distribution):
    """``D`` independent normal numbers, of ``D`` means, and deviations that are parameters.

    Actions are drawn without bounds, and `Clipped` environments clip them, so that the density is
    that of what was drawn. With ``in_units`` means and deviations are in the units of the leaf.
    """

    def __init__(self, leaf: Leaf, device: torch.device, *, in_units: bool = True) -> None:
        super().__init__()
        self.num_outputs = self.num_noise = prod(leaf.shape)
        self.log_std = nn.Parameter(torch.zeros(self.num_outputs, device=device))
        self._shape = leaf.shape
        self._dtype = getattr(torch, leaf.dtype.name)
        middle, unit = (torch.tensor(each.ravel(), device=device) for each in leaf.units)
        self._has_units = in_units and not bool((middle == 0).all() and (unit == 1).all())
        self._middle, self._unit = middle, unit
        self._log_unit = float(unit.log().sum()) if self._has_units else 0.0

    def draw(self, outputs: Tensor, noise: Tensor, mask: None = None) -> Tensor:
        normal = standard_normal(noise, self.num_noise)
        return self._action(outputs + self.log_std.detach().exp() * normal)

    def mode(self, outputs: Tensor) -> Tensor:
        return self._action(outputs)

    def evaluate(self, outputs: Tensor, action: Tensor) -> Evaluated:
        entropy = (self.log_std.expand_as(outputs) + (1 + log(2 * pi)) / 2).sum(1)
        return Evaluated(self.log_prob(outputs, action), entropy + self._log_unit)

    def log_prob(self, outputs: Tensor, action: Tensor) -> Tensor:
        log_std = self.log_std.expand_as(outputs)
        drawn = action.reshape(outputs.shape[0], -1)
        if self._has_units:  # in float64, in which numbers far from 0 stay different
            drawn = (drawn.to(torch.float64) - self._middle) / self._unit
        square = ((drawn.to(outputs.dtype) - outputs) * (-log_std).exp()).square()
        return -(square / 2 + log_std + log(2 * pi) / 2).sum(1) - self._log_unit

    def _action(self, drawn: Tensor) -> Tensor:
        if self._has_units:
            drawn = self._middle + self._unit * drawn
        return drawn.to(self._dtype).view(drawn.shape[0], *self._shape)


class Joint(Distribution):
    """A mapping of actions, independent of each other."""

    def __init__(self, parts: Mapping[str, Distribution]) -> None:
        super().__init__()
        self._names = list(parts)
        self._parts: Any = nn.ModuleList(parts.values())
        self._sizes = [each.num_outputs for each in parts.values()]
        self.num_outputs = sum(self._sizes)
        self.num_noise = sum(each.num_noise for each in parts.values())

    def mask(self, outputs: Tensor, mask: Any) -> Tensor:
        if mask is None:
            return outputs
        return torch.cat(
            [part.mask(own, mask.get(name)) for name, part, own in self._divide(outputs)], 1
        )

    def draw(self, outputs: Tensor, noise: Tensor, mask: Any = None) -> dict[str, Any]:
        noise = noise.reshape(outputs.shape[0], -1)
        each = torch.split(noise, [part.num_noise for part in self._parts], 1)
        masks = {} if mask is None else mask
        return {
            name: part.draw(own, numbers.squeeze(1), masks.get(name))
            for (name, part, own), numbers in zip(self._divide(outputs), each, strict=True)
        }

    def mode(self, outputs: Tensor) -> dict[str, Any]:
        return {name: part.mode(own) for name, part, own in self._divide(outputs)}

    def evaluate(self, outputs: Tensor, action: Any) -> Evaluated:
        found = [part.evaluate(own, action[name]) for name, part, own in self._divide(outputs)]
        log_probs, entropies = zip(*found, strict=True)
        return Evaluated(torch.stack(log_probs).sum(0), torch.stack(entropies).sum(0))

    def log_prob(self, outputs: Tensor, action: Any) -> Tensor:
        found = [part.log_prob(own, action[name]) for name, part, own in self._divide(outputs)]
        return torch.stack(found).sum(0)

    def _divide(self, outputs: Tensor) -> Iterator[tuple[str, Any, Tensor]]:
        """Each part with its outputs."""
        return zip(self._names, self._parts, torch.split(outputs, self._sizes, 1), strict=True)


def standard_normal(noise: Tensor, num: int) -> Tensor:
    """Return ``[N, num]`` float64 of uniform numbers, ``[N]`` if ``num`` is 1, else ``[N, num]``.

    They are finite for all of [0, 1].
    """
    uniform = noise.view(-1, num).clamp(2.0**-54, 1 - 2.0**-53)
    normal: Tensor = torch.special.ndtri(uniform)
    return normal


def split_mask(observation: Any) -> tuple[Any, Tensor | None]:
    """Return what a network gets (`without_mask`), and the action mask, ``[N, A]``, or None."""
    if isinstance(observation, Tensor):
        return observation, None
    mask = observation.get(ACTION_MASK)
    return without_mask(observation), mask


def masked(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Return ``scores`` ``[N, A]`` with the lowest number where ``mask`` is 0.

    It is finite, so that a probability of 0 times its logarithm is 0, in an entropy for example.
    """
    if mask is None:
        return scores
    return scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)
