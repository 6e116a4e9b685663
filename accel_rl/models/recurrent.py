"""Networks that remember: a recurrent layer between the hidden layer and the heads.

As in "A3C, LSTM" (Mnih et al. 2016, arXiv:1602.01783): as many cells as the hidden layer has units.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from accel_rl.models.memory import (
    PLAIN_LSTM,
    MemorySpec,
    PreviousInputs,
    make_memory,
    with_previous,
)
from accel_rl.models.policy_value import PolicyValue, SharedNetwork


class Sequences(NamedTuple):
    """What a network must know of the order of its observations ``[T * B, ...]``, time-major.

    ``state``: ``[B, S]``, the recurrent state before row 0. ``is_first``: ``[T, B]`` bool, True
    where an observation is the first of its episode, so that nothing is remembered before it.
    ``previous``: ``[T, B, P]``, the `PreviousInputs` of each, or None where the network has none.
    """

    state: Tensor
    is_first: Tensor
    previous: Tensor | None = None

    def rows(self, rows: slice) -> Sequences:
        """Those of ``rows`` alone, with the same state."""
        previous = None if self.previous is None else self.previous[rows]
        return Sequences(self.state, self.is_first[rows], previous)

    def of(self, columns: Tensor | slice) -> Sequences:
        """Those of ``columns``, ``[n]`` int64, alone."""
        previous = None if self.previous is None else self.previous[:, columns]
        return Sequences(self.state[columns], self.is_first[:, columns], previous)


class RecurrentModel(nn.Module):
    """A network with a memory. The state of an environment begins as zeros.

    Attributes:
        state_size: size of the state of one environment, ``S``.
        previous: inputs besides observations: the previous action and reward. None: no such inputs.
    """

    state_size: int
    previous: PreviousInputs | None = None

    def forward(self, observation: Tensor, sequences: Sequences) -> tuple[Any, Tensor]:
        """Return the output of the network, and the recurrent state after the last row.

        Args:
            observation: ``[T * B, ...]``, time-major.
            sequences: in which order the observations came, and what came before them.

        Returns:
            Outputs as of a `PolicyValueModel` or a `QModel`, and ``[B, S]`` after row T - 1.
        """
        raise NotImplementedError

    def __call__(self, observation: Tensor, sequences: Sequences) -> tuple[Any, Tensor]:
        """As `forward`; `nn.Module` leaves it untyped."""
        output: tuple[Any, Tensor] = super().__call__(observation, sequences)
        return output


def remembers(model: nn.Module) -> bool:
    """Return whether a network has a memory."""
    return hasattr(model, "state_size")


def run(model: Any, observation: Any, sequences: Sequences | None) -> tuple[Any, Tensor | None]:
    """Return a network's output and recurrent state; a network without a memory has none."""
    return (model(observation), None) if sequences is None else model(observation, sequences)


def one_step(state: Tensor, previous: Tensor | None) -> Sequences:
    """Return what a network must know of one row of observations.

    Args:
        state: ``[N, S]``, before it.
        previous: ``[N, P]``, or None.
    """
    is_first = torch.zeros(1, state.shape[0], dtype=torch.bool, device=state.device)
    return Sequences(state, is_first, None if previous is None else previous.unsqueeze(0))


def joined_state(model: RecurrentModel, after: Tensor, action: Any) -> Tensor:
    """Return ``[N, S + P]``: the state ``after`` a step, and behind it what tells its action.

    The last number is for the action's reward, which is to come, and 0. Without `PreviousInputs`
    that is ``after`` itself, ``[N, S]``.
    """
    if model.previous is None:
        return after
    return torch.cat((after, model.previous(action, torch.zeros_like(after[:, 0]))), 1)


def split_state(model: RecurrentModel, state: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the two parts of a `joined_state`: the state, and the previous inputs or None."""
    size = model.state_size
    return state[:, :size], None if model.previous is None else state[:, size:]


def joined_size(model: RecurrentModel) -> int:
    """Return the numbers of a `joined_state`, ``S + P``."""
    return model.state_size + (0 if model.previous is None else model.previous.size)


class SharedRecurrentModel(RecurrentModel):
    """``network`` with one memory before its heads."""

    def __init__(self, network: SharedNetwork, memory: MemorySpec = PLAIN_LSTM) -> None:
        super().__init__()
        self.network = network
        self.memory = make_memory(memory, network.width, network.width)
        self.state_size = self.memory.state_size
        self.previous = memory.previous

    def forward(self, observation: Tensor, sequences: Sequences) -> tuple[PolicyValue, Tensor]:
        """As `RecurrentModel.forward`."""
        state, is_first, previous = sequences
        x = with_previous(self.network.features(observation), previous)
        x, state = self.memory(x, state, is_first)
        return self.network.heads(x), state
