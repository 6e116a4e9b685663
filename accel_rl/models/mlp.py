"""A small network for observations that are not images."""

from __future__ import annotations

from functools import partial
from math import prod, sqrt

import torch
from torch import Tensor, nn

from accel_rl.models.dense import Dense
from accel_rl.models.memory import PLAIN_LSTM, MemorySpec, RecurrentModel, Sequences, WithMemory
from accel_rl.models.policy_value import PolicyValue, PolicyValueModel
from accel_rl.models.soft import flat

HIDDEN = 64


class MLP(PolicyValueModel):
    """Two tanh layers of 64 units each for the policy and for the value, which share nothing.

    Orthogonal initial weights of gain sqrt(2), heads 0.01 and 1, biases 0, as is usual for vector
    observations since PPO (Schulman et al. 2017, arXiv:1707.06347, section 6.1).
    """

    def __init__(self, observation_shape: tuple[int, ...], num_actions: int) -> None:
        super().__init__()

        def layers(num_outputs: int, gain: float) -> Dense:
            return Dense(*hidden_layers(prod(observation_shape)), linear(HIDDEN, num_outputs, gain))

        self.policy, self.value = layers(num_actions, 0.01), layers(1, 1.0)

    def forward(self, observation: Tensor) -> PolicyValue:
        x = flat(observation)
        return PolicyValue(self.policy(x), self.value(x).squeeze(1))


class RecurrentMLP(RecurrentModel):
    """The layers of `MLP`, with a memory of 64 units before each head; the two share nothing.

    So a value far from 0 leaves the policy alone, as without a memory.
    """

    def __init__(
        self,
        observation_shape: tuple[int, ...],
        num_actions: int,
        memory: MemorySpec = PLAIN_LSTM,
    ) -> None:
        super().__init__()

        def apart(num_outputs: int, gain: float) -> WithMemory:
            hidden = Dense(*hidden_layers(prod(observation_shape)))
            make_output = partial(linear, HIDDEN, num_outputs, gain)
            return WithMemory(hidden, HIDDEN, memory, make_heads=make_output)

        self.policy, self.value = apart(num_actions, 0.01), apart(1, 1.0)
        self.state_size = 2 * self.policy.state_size  # of the policy, then of the value
        self.previous = memory.previous

    def forward(self, observation: Tensor, sequences: Sequences) -> tuple[PolicyValue, Tensor]:
        x = flat(observation)
        of_policy, of_value = sequences.state.chunk(2, 1)
        logits, after_policy = self.policy(x, sequences._replace(state=of_policy))
        value, after_value = self.value(x, sequences._replace(state=of_value))
        return PolicyValue(logits, value.squeeze(1)), torch.cat((after_policy, after_value), 1)


class FlatNumbers(nn.Module):
    """Numbers of any real dtype in one row of float32, not scaled."""

    def forward(self, observation: Tensor) -> Tensor:
        return flat(observation)


def hidden_layers(num_inputs: int) -> list[nn.Module]:
    """Two tanh layers with orthogonal initial weights."""
    first, second = (linear(n, HIDDEN, gain=sqrt(2)) for n in (num_inputs, HIDDEN))
    return [first, nn.Tanh(), second, nn.Tanh()]


def linear(num_inputs: int, num_outputs: int, gain: float) -> nn.Linear:
    """A linear layer with orthogonal weights of ``gain`` and biases 0."""
    layer = nn.Linear(num_inputs, num_outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer
