"""The agent of soft actor-critic: floats between bounds, by a squashed Gaussian."""

from __future__ import annotations

from math import log, prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from accel_rl.agents.distributions import spread
from accel_rl.capture import EAGER, Capture
from accel_rl.models.soft import SoftModel, flat
from accel_rl.spaces import Space, follow, leaves_of, map_leaves


class SquashedAgent:
    """Draws from a Gaussian, and brings what it draws between the bounds by a tanh.

    Args:
        model: The networks.
        action: The space of actions: floats between bounds, or a mapping of such.
        capture: Of acting, and for its learner.
        is_greedy: It takes the mean instead.

    Attributes:
        num_actions: Floats of an action, ``D``.
        is_random: It takes any action between the bounds, all equally likely. The learner sets it.
    """

    def __init__(
        self, model: SoftModel, action: Space, capture: Capture = EAGER, *, is_greedy: bool = False
    ) -> None:
        self.model = model
        self.capture = capture
        self.is_random = False
        self.action = action
        device = model.log_temperature.device
        bounds: list[Any] = [leaf.bounds for _, leaf in leaves_of(action)]
        low, high = (
            torch.cat([torch.tensor(each.ravel(), device=device) for each in side])
            for side in zip(*bounds, strict=True)
        )
        self.num_actions = len(low)
        self._middle, self._half = (high + low) / 2, (high - low) / 2
        self._low, self._high = low, high
        self._choose = capture(_mean if is_greedy else _draw)

    @torch.inference_mode()
    def act(self, observation: Any, uniform: Tensor, columns: slice) -> Any:
        """Actions ``[N, *shape]`` within the bounds, with the parameters as they are now.

        ``observation``: ``[N, ...]``. ``uniform``: ``[N]`` in [0, 1), one for each action.
        """
        if self.is_random:
            unit = 2 * spread(uniform, self.num_actions) - 1
        else:
            unit = self._choose(self.model, flat(observation), uniform)
        return self.scaled(unit)

    def scaled(self, unit: Tensor) -> Any:
        """Return actions ``[N, *shape]`` of numbers between -1 and 1, ``[N, D]``."""
        action = unit.to(self._half.dtype) * self._half + self._middle
        # Rounding may leave the bounds by a bit.
        return self._arranged(action.clamp(self._low, self._high))

    def unit(self, action: Any) -> Tensor:
        """Return actions ``[N, *shape]`` between -1 and 1, ``[N, D]`` float32."""
        each = [follow(action, path) for path, _ in leaves_of(self.action)]
        rows = torch.cat([leaf.reshape(leaf.shape[0], -1) for leaf in each], 1)
        return ((rows - self._middle) / self._half).to(torch.float32)

    def _arranged(self, rows: Tensor) -> Any:
        """Actions, ``[N, *shape]`` in each leaf, of their floats side by side, ``[N, D]``."""
        sizes = [prod(leaf.shape) for _, leaf in leaves_of(self.action)]
        pieces = iter(torch.split(rows, sizes, 1))
        return map_leaves(
            lambda leaf: (
                next(pieces).to(getattr(torch, leaf.dtype.name)).reshape(rows.shape[0], *leaf.shape)
            ),
            self.action,
        )

    def greedy(self) -> SquashedAgent:
        """One of the same network that takes the mean."""
        return SquashedAgent(self.model, self.action, self.capture, is_greedy=True)

    def follow(self, other: object) -> None:
        """Take random actions where ``other``, an agent of this class, does."""
        assert isinstance(other, SquashedAgent)
        self.is_random = other.is_random


def squash(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``tanh(mean + exp(log_std) * noise)`` and the logarithm of its density.

    ``log pi(a) = sum(log N(u; mean, std) - log(1 - tanh(u) ** 2))`` (Haarnoja et al. 2018,
    arXiv:1812.05905, appendix C), where ``log(1 - tanh(u) ** 2) = 2 (log 2 - u - softplus(-2 u))``.

    Args:
        mean: ``[N, D]``.
        log_std: ``[N, D]``.
        noise: ``[N, D]``, standard normal numbers.

    Returns:
        Actions ``[N, D]`` between -1 and 1, and ``[N]``.
    """
    u = mean + log_std.exp() * noise
    density = -(noise.square() + log(2 * torch.pi)) / 2 - log_std
    slope = 2 * (log(2) - u - F.softplus(-2 * u))
    return u.tanh(), (density - slope).sum(1)


def _draw(model: SoftModel, observation: Tensor, uniform: Tensor) -> Tensor:
    mean, log_std = model.gaussian(observation)
    noise = torch.special.ndtri(spread(uniform, mean.shape[1])).to(mean.dtype)
    return torch.tanh(mean + log_std.exp() * noise)


def _mean(model: SoftModel, observation: Tensor, uniform: Tensor) -> Tensor:
    return torch.tanh(model.gaussian(observation)[0])
