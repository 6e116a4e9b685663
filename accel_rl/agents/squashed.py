"""The agent of soft actor-critic: floats between bounds, by a squashed Gaussian."""

from __future__ import annotations

from math import log
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from accel_rl.agents.distributions import spread
from accel_rl.capture import EAGER, Capture
from accel_rl.models.soft import SoftModel, flat
from accel_rl.spaces import Leaf


class SquashedAgent:
    """Draws from a Gaussian, and brings what it draws between the bounds by a tanh.

    Args:
        model: The networks.
        action: The space of actions: floats between bounds.
        capture: Of acting, and for its learner.
        is_greedy: It takes the mean instead.

    Attributes:
        is_random: It takes any action between the bounds, all equally likely. The learner sets it.
    """

    def __init__(
        self, model: SoftModel, action: Leaf, capture: Capture = EAGER, *, is_greedy: bool = False
    ) -> None:
        self.model = model
        self.capture = capture
        self.is_random = False
        self.action = action
        device = model.log_temperature.device
        low, high = (torch.tensor(bound.ravel(), device=device) for bound in action.bounds)  # type: ignore[union-attr]
        self._middle, self._half = (high + low) / 2, (high - low) / 2
        self._low, self._high = low, high
        self._choose = capture(_mean if is_greedy else _draw)

    @torch.inference_mode()
    def act(self, observation: Any, uniform: Tensor, columns: slice) -> Tensor:
        """Actions ``[N, *shape]`` within the bounds, with the parameters as they are now.

        ``observation``: ``[N, ...]``. ``uniform``: ``[N]`` in [0, 1), one for each action.
        """
        if self.is_random:
            unit = 2 * spread(uniform, len(self._half)) - 1
        else:
            unit = self._choose(self.model, flat(observation), uniform)
        action = unit.to(self._half.dtype) * self._half + self._middle
        # Rounding may leave the bounds by a bit.
        return action.clamp(self._low, self._high).view(len(action), *self.action.shape)

    def unit(self, action: Tensor) -> Tensor:
        """Return actions ``[N, *shape]`` between -1 and 1, ``[N, D]`` float32."""
        return ((action.reshape(len(action), -1) - self._middle) / self._half).to(torch.float32)

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
