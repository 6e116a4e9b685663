"""Networks for Q-learning that remember: layers, a recurrent one, and a stream or two.

As in R2D2 (Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement
Learning"): what the convolutions give goes into the memory, and its outputs into the streams.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

import torch
from torch import Tensor, nn

from accel_rl.models.image import ImageSpec, Picture, flat_maps, make_convs
from accel_rl.models.memory import (
    PLAIN_LSTM,
    MemorySpec,
    make_memory,
    with_previous,
)
from accel_rl.models.mlp import HIDDEN, hidden_layers, linear
from accel_rl.models.q_value import ImageStream, QHead, through_streams
from accel_rl.models.recurrent import RecurrentModel, Sequences


class RecurrentQNetwork(RecurrentModel):
    """``trunk``, then a memory, then one stream or, with a dueling ``head``, two.

    Args:
        trunk: Gives ``num_features`` numbers for each observation.
        num_features: How many these are.
        width: Units of the memory.
        stream: Makes a stream of ``width`` inputs with as many outputs as it is given.
        head: Outputs. Streams for the value and for the advantages are those of Wang et al.
            2016 (arXiv:1511.06581); what flows back from both is scaled by 1 / sqrt(2).
        memory: Which memory.
    """

    def __init__(
        self,
        trunk: nn.Module,
        num_features: int,
        width: int,
        stream: Callable[[int], nn.Module],
        head: QHead,
        memory: MemorySpec = PLAIN_LSTM,
    ) -> None:
        super().__init__()
        num_actions, num_atoms, is_dueling = head
        self.trunk = trunk
        self.memory = make_memory(memory, width, num_features)
        self.state_size = self.memory.state_size
        self.previous = memory.previous
        self.advantage = stream(num_actions * num_atoms)
        self.value = stream(num_atoms) if is_dueling else None
        self._output_shape = num_actions, num_atoms

    def forward(self, observation: Tensor, sequences: Sequences) -> tuple[Tensor, Tensor]:
        """As `RecurrentModel.forward`."""
        state, is_first, previous = sequences
        x, state = self.memory(with_previous(self.trunk(observation), previous), state, is_first)
        return through_streams(x, self.advantage, self.value, self._output_shape), state


def make_recurrent_image_q_network(
    spec: ImageSpec,
    picture: Picture,
    head: QHead,
    memory: MemorySpec = PLAIN_LSTM,
) -> RecurrentQNetwork:
    """Convolutions, a memory as wide as the hidden layer, and streams with a hidden layer.

    Raises:
        ValueError: the image is too small for the convolutions.
    """
    trunk = _Convolutions(spec, picture)
    stream = partial(ImageStream, spec, spec.hidden)
    return RecurrentQNetwork(trunk, trunk.num_features, spec.hidden, stream, head, memory)


def make_recurrent_mlp_q_network(
    observation_shape: tuple[int, ...],
    head: QHead,
    memory: MemorySpec = PLAIN_LSTM,
) -> RecurrentQNetwork:
    """Two tanh layers of 64 units, a memory of 64, and linear streams, for what are no images."""
    trunk = nn.Sequential(_Flat(), *hidden_layers(prod(observation_shape)))
    stream = partial(linear, HIDDEN, gain=0.01)
    return RecurrentQNetwork(trunk, HIDDEN, HIDDEN, stream, head, memory)


class _Convolutions(nn.Module):
    """What the last of some convolutions gives, flattened."""

    def __init__(self, spec: ImageSpec, picture: Picture) -> None:
        super().__init__()
        self.convs, self.num_features = make_convs(spec, picture)

    def forward(self, observation: Tensor) -> Tensor:
        """``observation``: pictures, ``[N, ...]``."""
        return flat_maps(self.convs, observation)


class _Flat(nn.Module):
    """Numbers of any real dtype in one row of float32, not scaled."""

    def forward(self, observation: Tensor) -> Tensor:
        """``observation``: ``[N, ...]``."""
        return observation.reshape(observation.shape[0], -1).to(torch.float32)
