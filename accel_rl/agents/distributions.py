"""Distributions of actions: how the numbers that a network gives become actions.

The last layer of a policy gives ``P`` numbers for an observation. What they mean depends on the
space of actions: the logits of a softmax, means and deviations, or both of a mapping's leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import log, pi, prod
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from accel_rl.agents.masks import masked
from accel_rl.spaces import Leaf, Space, describe

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


class Distribution(Protocol):
    """How the ``P`` outputs of a policy network become actions of one action space.

    Attributes:
        num_outputs: ``P``.
        num_free: number of outputs that do not depend on the observation. They are the last ones.
    """

    num_outputs: int
    num_free: int

    def mask(self, outputs: Tensor, mask: Any) -> Tensor:
        """Return outputs under which forbidden actions have probability 0.

        Args:
            outputs: ``[N, P]``.
            mask: an action mask of the space, see `accel_rl.spaces`. None allows everything.
        """
        ...

    def draw(self, outputs: Tensor, noise: Tensor, mask: Any = None) -> Any:
        """Return random actions ``[N, ...]``, without gradient.

        Args:
            outputs: masked outputs, ``[N, P]``.
            noise: ``[N]`` float64 random numbers in [0, 1). No other randomness is used.
            mask: the mask. None allows everything.
        """
        ...

    def mode(self, outputs: Tensor) -> Any:
        """Return the most probable actions ``[N, ...]``."""
        ...

    def evaluate(self, outputs: Tensor, action: Any) -> Evaluated:
        """Return log-probabilities and entropies, with gradient.

        Args:
            outputs: masked outputs, ``[N, P]``.
            action: actions of the space, ``[N, ...]``.
        """
        ...

    def log_prob(self, outputs: Tensor, action: Any) -> Tensor:
        """Return the log-probabilities ``[N]`` alone. Arguments are those of `evaluate`."""
        ...


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


class Categorical:
    """One of ``n`` actions, by a softmax over logits. Whoever makes the network must give ``n``."""

    num_free = 0

    def __init__(self, n: int = 0) -> None:
        self.num_outputs = n

    def mask(self, outputs: Tensor, mask: Tensor | None) -> Tensor:
        return masked(outputs, mask)

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


class Factored:
    """``k`` integers, each by a softmax of its own over its values, one after the other."""

    num_free = 0

    def __init__(self, leaf: Leaf, counts: list[int], device: torch.device) -> None:
        self.num_outputs = sum(counts)
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

    def mask(self, outputs: Tensor, mask: Tensor | None) -> Tensor:
        return masked(outputs, mask)

    def draw(self, outputs: Tensor, noise: Tensor, mask: Tensor | None = None) -> Tensor:
        logits = self._logits(outputs)
        N, k, m = logits.shape
        allowed = (logits > torch.finfo(logits.dtype).min).view(N * k, m)
        each = spread(noise, k).flatten()
        return self._action(sample_categorical(logits.view(N * k, m), each, allowed).view(N, k))

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


class Gaussian:
    """``D`` independent normal numbers: ``D`` means, then ``D`` logarithms of the deviations.

    The deviations do not depend on the observation. Actions are drawn without bounds, and `Clipped`
    environments clip them, so that the density is that of what was drawn. With ``in_units`` means
    and deviations are in the units of the leaf.
    """

    def __init__(self, leaf: Leaf, device: torch.device, *, in_units: bool = True) -> None:
        self.num_free = prod(leaf.shape)
        self.num_outputs = 2 * self.num_free
        self._shape = leaf.shape
        self._dtype = getattr(torch, leaf.dtype.name)
        middle, unit = (torch.tensor(each.ravel(), device=device) for each in leaf.units)
        self._has_units = in_units and not bool((middle == 0).all() and (unit == 1).all())
        self._middle, self._unit = middle, unit
        self._log_unit = float(unit.log().sum()) if self._has_units else 0.0

    def mask(self, outputs: Tensor, mask: None) -> Tensor:
        return outputs

    def draw(self, outputs: Tensor, noise: Tensor, mask: None = None) -> Tensor:
        mean, log_std = outputs.chunk(2, 1)
        normal = torch.special.ndtri(spread(noise, self.num_free))
        return self._action(mean + log_std.exp() * normal)

    def mode(self, outputs: Tensor) -> Tensor:
        return self._action(outputs.chunk(2, 1)[0])

    def evaluate(self, outputs: Tensor, action: Tensor) -> Evaluated:
        entropy = (outputs.chunk(2, 1)[1] + (1 + log(2 * pi)) / 2).sum(1)
        return Evaluated(self.log_prob(outputs, action), entropy + self._log_unit)

    def log_prob(self, outputs: Tensor, action: Tensor) -> Tensor:
        mean, log_std = outputs.chunk(2, 1)
        drawn = action.reshape(outputs.shape[0], -1)
        if self._has_units:  # in float64, in which numbers far from 0 stay different
            drawn = (drawn.to(torch.float64) - self._middle) / self._unit
        square = ((drawn.to(outputs.dtype) - mean) * (-log_std).exp()).square()
        return -(square / 2 + log_std + log(2 * pi) / 2).sum(1) - self._log_unit

    def _action(self, drawn: Tensor) -> Tensor:
        if self._has_units:
            drawn = self._middle + self._unit * drawn
        return drawn.to(self._dtype).view(drawn.shape[0], *self._shape)


class Joint:
    """A mapping of actions, independent of each other. What does not depend on observations is
    last, as in each of the parts."""

    def __init__(self, parts: Mapping[str, Distribution]) -> None:
        self._parts = parts
        self.num_free = sum(each.num_free for each in parts.values())
        self.num_outputs = sum(each.num_outputs for each in parts.values())

    def mask(self, outputs: Tensor, mask: Any) -> Tensor:
        if mask is None:
            return outputs
        changed = {
            name: part.mask(own, mask.get(name)) for name, part, own in self._divide(outputs)
        }
        return self._join(changed)

    def draw(self, outputs: Tensor, noise: Tensor, mask: Any = None) -> dict[str, Any]:
        each = spread(noise, len(self._parts)).unbind(1)
        masks = {} if mask is None else mask
        return {
            name: part.draw(own, number, masks.get(name))
            for (name, part, own), number in zip(self._divide(outputs), each, strict=True)
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

    def _divide(self, outputs: Tensor) -> list[tuple[str, Distribution, Tensor]]:
        """Each part with its outputs."""
        own = [each.num_outputs - each.num_free for each in self._parts.values()]
        free = [each.num_free for each in self._parts.values()]
        pieces = torch.split(outputs, [*own, *free], 1)
        pairs = zip(pieces[: len(own)], pieces[len(own) :], strict=True)
        return [
            (name, part, torch.cat(pair, 1))
            for (name, part), pair in zip(self._parts.items(), pairs, strict=True)
        ]

    def _join(self, outputs: Mapping[str, Tensor]) -> Tensor:
        """The opposite of `_divide`."""
        pairs = []
        for name, part in self._parts.items():
            own = part.num_outputs - part.num_free
            pairs.append((outputs[name][:, :own], outputs[name][:, own:]))
        return torch.cat([pair[i] for i in range(2) for pair in pairs], 1)


_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15
_MIX = (-4658895280553007687, -7723592293110705685)  # 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def spread(noise: Tensor, num: int) -> Tensor:
    """Make ``num`` independent uniform numbers of each one, ``[N]`` float64: ``[N, num]``.

    They are the numbers that SplitMix64 (Steele, Lea and Flood 2014) gives from the bits of
    ``noise`` as its seed, in (0, 1), never 0 or 1. A single one stays as it is.
    """
    if num == 1:
        return noise.clamp(2.0**-54, 1 - 2.0**-53).unsqueeze(1)
    seed = (noise * 2.0**53).long().unsqueeze(1)
    z = seed + _GOLDEN * torch.arange(1, num + 1, device=noise.device)
    for shift, factor in zip((30, 27), _MIX, strict=True):
        z = (z ^ _shifted(z, shift)) * factor
    z = _shifted(z ^ _shifted(z, 31), 11)
    return ((z.double() + 0.5) * 2.0**-53).clamp_(max=1 - 2.0**-53)


def _shifted(bits: Tensor, by: int) -> Tensor:
    """``bits`` as unsigned integers, shifted to the right."""
    return (bits >> by) & ((1 << (64 - by)) - 1)
