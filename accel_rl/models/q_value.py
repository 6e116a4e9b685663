"""Networks for Q-learning: for each action a value, or a distribution over atoms of value."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod, sqrt
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from accel_rl.models.image import ImageSpec, Picture, flat_maps, make_convs, normc_
from accel_rl.models.soft import flat

DUELING_GRADIENT_SCALE = 1 / sqrt(2)


class QHead(NamedTuple):
    """Outputs of a network for Q-learning.

    Attributes:
        num_actions: ``A``.
        num_atoms: ``K``; 1: values only.
        is_dueling: whether value and advantages have separate streams.
    """

    num_actions: int
    num_atoms: int = 1
    is_dueling: bool = False


class QModel(nn.Module):
    """A network that maps observations ``[N, ...]`` to ``[N, A, K]``.

    ``K`` is the number of atoms, of which the output has logits. With ``K`` = 1 the output are
    values.
    """

    def __call__(self, observation: Tensor) -> Tensor:
        """As `forward`; `nn.Module` leaves it untyped."""
        output: Tensor = super().__call__(observation)
        return output


class QHeads(nn.Module):
    """One stream or, with a dueling head, two, from ``[N, F]`` to ``[N, A, K]``.

    The two are those of Wang et al. 2016 (arXiv:1511.06581): what flows back from both is scaled by
    1 / sqrt(2).

    Args:
        stream: makes a stream with as many outputs as it is given.
        head: outputs of the network.
    """

    def __init__(self, stream: Callable[[int], nn.Module], head: QHead) -> None:
        super().__init__()
        num_actions, num_atoms, is_dueling = head
        self.advantage = stream(num_actions * num_atoms)
        self.value = stream(num_atoms) if is_dueling else None
        self._output_shape = num_actions, num_atoms

    def forward(self, x: Tensor) -> Tensor:
        if self.value is None:
            output: Tensor = self.advantage(x).view(-1, *self._output_shape)
            return output
        x = x * DUELING_GRADIENT_SCALE + x.detach() * (1 - DUELING_GRADIENT_SCALE)
        return duel(self.value(x), self.advantage(x).view(-1, *self._output_shape))


class Convolutions(nn.Module):
    """What the last of some convolutions gives, flattened.

    Raises:
        ValueError: the image is too small for the convolutions.
    """

    def __init__(self, spec: ImageSpec, picture: Picture) -> None:
        super().__init__()
        self.convs, self.num_features = make_convs(spec, picture)

    def forward(self, observation: Tensor) -> Tensor:
        return flat_maps(self.convs, observation)


class ImageQNetwork(QModel):
    """Convolutions, then `QHeads`, whose streams have a hidden layer each.

    Raises:
        ValueError: the image is too small for the convolutions.
    """

    def __init__(self, spec: ImageSpec, picture: Picture, head: QHead) -> None:
        super().__init__()
        self.trunk = Convolutions(spec, picture)
        self.heads = QHeads(partial(ImageStream, spec, self.trunk.num_features), head)

    def forward(self, observation: Tensor) -> Tensor:
        output: Tensor = self.heads(self.trunk(observation))
        return output


class MLPQNetwork(QModel):
    """Two ReLU layers of 128 units for observations that are no images; dueling streams share none.

    Initial weights are torch's. Values grow to the sum of many rewards: tanh layers as of `MLP`,
    whose outputs are bounded, learned CartPole-v1 to 90 to 160 where these learn it to 500.
    """

    def __init__(self, observation_shape: tuple[int, ...], head: QHead) -> None:
        super().__init__()
        num_actions, num_atoms, is_dueling = head
        num_inputs = prod(observation_shape)
        self.advantage = _relu_layers(num_inputs, num_actions * num_atoms)
        self.value = _relu_layers(num_inputs, num_atoms) if is_dueling else None
        self._output_shape = num_actions, num_atoms

    def forward(self, observation: Tensor) -> Tensor:
        x = flat(observation)
        advantage = self.advantage(x).view(-1, *self._output_shape)
        return advantage if self.value is None else duel(self.value(x), advantage)


def _relu_layers(num_inputs: int, num_outputs: int) -> nn.Sequential:
    first, second = nn.Linear(num_inputs, 128), nn.Linear(128, 128)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(128, num_outputs))


class ImageStream(nn.Module):
    """A hidden and an output layer over features; initial weights as in the paper."""

    def __init__(self, spec: ImageSpec, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(num_inputs, spec.hidden)
        self.output = nn.Linear(spec.hidden, num_outputs)
        spec.hidden_init(self.hidden.weight)
        normc_(self.output.weight, norm=0.01)
        nn.init.zeros_(self.hidden.bias)
        nn.init.zeros_(self.output.bias)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.output(F.relu_(self.hidden(x)))
        return output


def duel(value: Tensor, advantage: Tensor) -> Tensor:
    """``value[n, k] + advantage[n, a, k] - mean over a`` (Wang et al. 2016, equation 9).

    ``value``: ``[N, K]``; ``advantage``: ``[N, A, K]``. Atom by atom, before any softmax.
    """
    return value.unsqueeze(1) + advantage - advantage.mean(1, keepdim=True)
