"""The networks of soft actor-critic: a policy over floats, and two values of actions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from accel_rl.models.dense import Dense
from accel_rl.spaces import Space, size_of

HIDDEN = 256
LOG_STD = (-20.0, 2.0)
"""limits of the logarithm of deviations"""


class SoftModel(nn.Module):
    """Policy, two critics and the logarithm of alpha, with torch's initial weights.

    All have two ReLU layers of 256 units (Haarnoja et al. 2018, arXiv:1812.05905, appendix D).

    Attributes:
        actor: Gives means and logarithms of deviations, ``[N, 2 D]``, of flat observations.
        critics: Give the values of flat observations and actions.
        log_alpha: 0-d.
    """

    def __init__(self, observation: Space, num_actions: int, alpha: float) -> None:
        super().__init__()
        size = size_of(observation)
        self.actor = Dense(
            nn.Linear(size, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, 2 * num_actions),
        )
        self.critics = TwinCritics(size + num_actions)
        self.log_alpha = nn.Parameter(torch.tensor(alpha).log())

    def gaussian(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and logarithms of deviations, ``[N, D]`` each, of ``[N, size]``."""
        mean, log_std = self.actor(observation).chunk(2, 1)
        return mean, log_std.clamp(*LOG_STD)


class TwinCritics(nn.Module):
    """Two networks of one shape, computed together."""

    def __init__(self, num_inputs: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [_Twin(num_inputs, HIDDEN), _Twin(HIDDEN, HIDDEN), _Twin(HIDDEN, 1)]
        )

    def forward(self, x: Tensor, *, are_constant: bool = False) -> Tensor:
        """Values ``[2, N]`` of observations and actions side by side, ``[N, num_inputs]``.

        ``are_constant``: parameters get no gradient, ``x`` does.
        """
        x = x.expand(2, *x.shape)
        first, second, last = self.layers
        for layer in (first, second):
            x = layer(x, are_constant).relu_()
        values: Tensor = last(x, are_constant).squeeze(2)
        return values


class _Twin(nn.Module):
    """Two linear layers, ``[2, N, inputs]`` to ``[2, N, outputs]``."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        both = [nn.Linear(num_inputs, num_outputs) for _ in range(2)]
        self.weight = nn.Parameter(torch.stack([each.weight.detach().T for each in both]))
        self.bias = nn.Parameter(torch.stack([each.bias.detach()[None] for each in both]))

    def forward(self, x: Tensor, is_constant: bool) -> Tensor:
        bias, weight = self.bias, self.weight
        if is_constant:
            bias, weight = bias.detach(), weight.detach()  # type: ignore[assignment]
        return torch.baddbmm(bias, x, weight)


def flat(observation: Any) -> Tensor:
    """Return the numbers of observations ``[N, ...]`` in rows, ``[N, size]`` float32."""
    if not isinstance(observation, Tensor):
        return torch.cat([flat(each) for each in observation.values()], 1)
    return observation.reshape(observation.shape[0], -1).to(torch.float32)
