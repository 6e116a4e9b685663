"""Networks that remember: an LSTM between the hidden layer and the heads.

As in "A3C, LSTM" (Mnih et al. 2016, arXiv:1602.01783): as many cells as the hidden layer has units.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from accel_rl.models.lstm import LSTM
from accel_rl.models.policy_value import PolicyValue, SharedNetwork, with_free


class Sequences(NamedTuple):
    """What a network must know of the order of its observations ``[T * B, ...]``, time-major.

    ``state``: ``[B, S]``, the recurrent state before row 0. ``begins``: ``[T, B]`` bool, True
    where an observation is the first of its episode, so that nothing is remembered before it.
    """

    state: Tensor
    begins: Tensor

    def of(self, columns: Tensor) -> Sequences:
        """Those of ``columns``, ``[n]`` int64, alone."""
        return Sequences(self.state[columns], self.begins[:, columns])


class RecurrentModel(nn.Module):
    """A network that remembers. The recurrent state of an environment begins as zeros.

    ``state_size``: ``S``, how many numbers that are.
    """

    state_size: int

    def forward(self, observation: Tensor, sequences: Sequences) -> tuple[PolicyValue, Tensor]:
        """Of ``observation`` ``[T * B, ...]``; and the state ``[B, S]`` after row T - 1."""
        raise NotImplementedError

    def __call__(self, observation: Tensor, sequences: Sequences) -> tuple[PolicyValue, Tensor]:
        """As `forward`; `nn.Module` leaves it untyped."""
        output: tuple[PolicyValue, Tensor] = super().__call__(observation, sequences)
        return output


class SharedRecurrentModel(RecurrentModel):
    """``network`` with one LSTM before its heads."""

    def __init__(self, network: SharedNetwork) -> None:
        super().__init__()
        self.network = network
        self.lstm = LSTM(network.width)
        self.state_size = 2 * network.width

    def forward(self, observation: Tensor, sequences: Sequences) -> tuple[PolicyValue, Tensor]:
        """As `RecurrentModel.forward`."""
        x, state = self.lstm(self.network.features(observation), *sequences)
        return self.network.heads(x), state


class RecurrentWithFree(RecurrentModel):
    """As `WithFree`, of a network that remembers."""

    def __init__(self, network: RecurrentModel, num_free: int) -> None:
        super().__init__()
        self.network = network
        self.free = nn.Parameter(torch.zeros(num_free))
        self.state_size = network.state_size

    def forward(self, observation: Tensor, sequences: Sequences) -> tuple[PolicyValue, Tensor]:
        """As `RecurrentModel.forward`."""
        output, state = self.network(observation, sequences)
        return with_free(output, self.free), state
