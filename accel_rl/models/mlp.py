"""A small network for observations that are not images."""

from __future__ import annotations

from functools import partial
from math import prod, sqrt

import torch
from torch import Tensor, nn

from accel_rl.models.policy_value import PolicyValue, PolicyValueModel, SharedNetwork

HIDDEN = 64


class MLP(PolicyValueModel):
    """Two tanh layers of 64 units each for the policy and for the value, which share nothing.

    Orthogonal initial weights of gain sqrt(2), heads 0.01 and 1, biases 0, as is usual for vector
    observations since PPO (Schulman et al. 2017, arXiv:1707.06347, section 6.1).
    """

    def __init__(self, observation_shape: tuple[int, ...], num_actions: int) -> None:
        super().__init__()
        self.policy = make_layers(prod(observation_shape), num_actions, output_gain=0.01)
        self.value = make_layers(prod(observation_shape), 1, output_gain=1.0)

    def forward(self, observation: Tensor) -> PolicyValue:
        """``observation``: ``[N, ...]`` of any real dtype, flattened to float32, not scaled."""
        x = _flatten(observation)
        return PolicyValue(self.policy(x), self.value(x).squeeze(1))


class SharedMLP(SharedNetwork):
    """Likewise, but two layers for both: what comes before an LSTM."""

    width = HIDDEN

    def __init__(self, observation_shape: tuple[int, ...], num_actions: int) -> None:
        super().__init__()
        self.hidden = nn.Sequential(*_hidden_layers(prod(observation_shape)))
        self.policy = _linear(HIDDEN, num_actions, gain=0.01)
        self.value = _linear(HIDDEN, 1, gain=1.0)

    def features(self, observation: Tensor) -> Tensor:
        """``[N, width]`` of ``observation``, ``[N, ...]`` of any real dtype, not scaled."""
        x: Tensor = self.hidden(_flatten(observation))
        return x


def make_layers(num_inputs: int, num_outputs: int, output_gain: float) -> nn.Sequential:
    """Two tanh layers and a linear one, with orthogonal initial weights."""
    return nn.Sequential(
        *_hidden_layers(num_inputs), _linear(HIDDEN, num_outputs, gain=output_gain)
    )


def _flatten(observation: Tensor) -> Tensor:
    return observation.reshape(len(observation), -1).to(torch.float32)


def _hidden_layers(num_inputs: int) -> list[nn.Module]:
    linear = partial(_linear, gain=sqrt(2))
    return [linear(num_inputs, HIDDEN), nn.Tanh(), linear(HIDDEN, HIDDEN), nn.Tanh()]


def _linear(num_inputs: int, num_outputs: int, gain: float) -> nn.Linear:
    layer = nn.Linear(num_inputs, num_outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer
