"""Networks for Q-learning: for each action a value, or a distribution of values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import pairwise
from math import pi, prod, sqrt
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from accel_rl.models.dense import Dense
from accel_rl.models.image import ImageSpec, Picture, flat_maps, make_convs, normc_
from accel_rl.models.soft import flat

DUELING_GRADIENT_SCALE = 1 / sqrt(2)
NUM_COSINES = 64
"""of a level, in implicit quantiles (Dabney et al. 2018, arXiv:1806.06923)"""
NOISE_START = 0.5
"""deviation of noisy weights at the start, times the root of the number of inputs (Fortunato et al.
2017, arXiv:1706.10295)"""


class QHead(NamedTuple):
    """Outputs of a network for Q-learning.

    Attributes:
        num_actions: ``A``.
        num_atoms: ``K``; 1: values only.
        is_dueling: whether value and advantages have separate streams.
        is_implicit: whether the outputs are values at ``K`` levels that are an input.
        is_noisy: whether the layers of the streams are noisy.
    """

    num_actions: int
    num_atoms: int = 1
    is_dueling: bool = False
    is_implicit: bool = False
    is_noisy: bool = False


class QModel(nn.Module):
    """A network that maps observations ``[N, ...]`` to ``[N, A, K]``.

    ``K`` is the number of atoms, of which the output has logits, or of quantiles, whose values it
    has. With ``K`` = 1 the output are values.
    """


class RandomLayer(nn.Linear):
    """A layer that takes random numbers where `with_noise` gives it some, and else takes none."""

    random: Tensor | None = None

    def num_random(self, num_rows: int) -> int:
        """Return how many numbers it takes for ``num_rows`` observations."""
        raise NotImplementedError


class NoisyLinear(RandomLayer):
    """A linear layer of the size of ``layer``, with factorised noise in all weights.

    ``y = (w + s f(b) f(a)^T) x + v + t f(b)`` with standard normal ``a``, one for each input, and
    ``b``, one for each output, and ``f(x) = sign(x) sqrt(|x|)`` (Fortunato et al. 2017,
    arXiv:1706.10295, section 3). ``w``, ``s``, ``v`` and ``t`` are learned. Initial weights are
    those of the paper.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer.in_features, layer.out_features)
        start = NOISE_START / sqrt(layer.in_features)
        self.weight_noise = nn.Parameter(torch.full_like(self.weight, start))
        self.bias_noise = nn.Parameter(torch.full_like(self.bias, start))

    def num_random(self, num_rows: int) -> int:
        return self.in_features + self.out_features

    def forward(self, x: Tensor) -> Tensor:
        if self.random is None:
            return super().forward(x)
        scaled = self.random.sign() * self.random.abs().sqrt()
        a, b = scaled[: self.in_features], scaled[self.in_features :]
        weight = self.weight + self.weight_noise * b.unsqueeze(1) * a
        return F.linear(x, weight, self.bias + self.bias_noise * b)


class Levels(RandomLayer):
    """Multiplies features by ``relu(linear(cos(pi i level), i = 0 .. 63))`` for ``K`` levels each.

    Levels are uniform in (0, 1). Without random numbers they are the middles of ``K`` intervals, so
    that the mean of the outputs is a rule of quadrature instead of an estimate.
    """

    def __init__(self, num_features: int, num_levels: int) -> None:
        super().__init__(NUM_COSINES, num_features)
        self.num_levels = num_levels

    def num_random(self, num_rows: int) -> int:
        return num_rows * self.num_levels

    def of(self, num_rows: int) -> Tensor:
        """Return levels ``[num_rows, K]``, or ``[1, K]`` where they are the same for all rows."""
        if self.random is None:
            return middles(self.num_levels, self.weight)
        level: Tensor = torch.special.ndtr(self.random.to(self.weight.dtype))
        return level.view(-1, self.num_levels)[:num_rows]

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[N, F]`` to ``[N, K, F]``."""
        number = torch.arange(NUM_COSINES, device=x.device, dtype=self.weight.dtype)
        cosines = (pi * number * self.of(x.shape[0]).unsqueeze(2)).cos()
        return x.unsqueeze(1) * F.relu_(super().forward(cosines))


def with_noise(model: nn.Module, noise: Tensor | None) -> AbstractContextManager[None]:
    """Within, the random layers of ``model`` take ``noise``; outside they take no random numbers.

    Args:
        noise: standard normal numbers, as many as `num_random` says. None changes nothing.
    """
    return nullcontext() if noise is None else _with_noise(model, noise)


@contextmanager
def _with_noise(model: nn.Module, noise: Tensor) -> Iterator[None]:
    layers, fixed = _random_layers(model), num_random(model)
    num_rows = (len(noise) - fixed) // max(1, num_random(model, 1) - fixed)
    for layer in layers:
        num = layer.num_random(num_rows)
        layer.random, noise = noise[:num] if num else None, noise[num:]
    try:
        yield
    finally:
        for layer in layers:
            layer.random = None


def num_random(model: nn.Module, num_rows: int = 0) -> int:
    """Return how many random numbers `with_noise` takes for a network.

    Args:
        num_rows: number of observations that have levels of their own. 0: all have the same.
    """
    return sum(layer.num_random(num_rows) for layer in _random_layers(model))


def levels(model: nn.Module, num_rows: int, num_levels: int) -> Tensor:
    """Return the levels of quantiles that a network computes, ``[num_rows, K]`` or ``[1, K]``."""
    for layer in _random_layers(model):
        if isinstance(layer, Levels):
            return layer.of(num_rows)
    return middles(num_levels, next(model.parameters()))


def middles(num: int, like: Tensor) -> Tensor:
    """Return the middles of ``num`` equal parts of (0, 1), ``[1, num]``."""
    return ((torch.arange(num, device=like.device) + 0.5) / num).to(like.dtype).unsqueeze(0)


def _random_layers(model: nn.Module) -> list[RandomLayer]:
    return [layer for layer in model.modules() if isinstance(layer, RandomLayer)]


class QHeads(QModel):
    """One stream or, with a dueling head, two, from ``[N, F]`` to ``[N, A, K]``.

    The two are those of Wang et al. 2016 (arXiv:1511.06581): what flows back from both is scaled by
    1 / sqrt(2).

    Args:
        stream: makes a stream with as many outputs as it is given. Its first linear layer has ``F``
            inputs.
        head: outputs of the network.
    """

    gradient_scale = DUELING_GRADIENT_SCALE

    def __init__(self, stream: Callable[[int], nn.Module], head: QHead) -> None:
        super().__init__()
        num_atoms = 1 if head.is_implicit else head.num_atoms
        self.advantage = stream(head.num_actions * num_atoms)
        self.value = stream(num_atoms) if head.is_dueling else None
        self._output_shape = head.num_actions, num_atoms
        self.levels: Levels | None = None
        if head.is_implicit:
            linear = (each for each in self.advantage.modules() if isinstance(each, nn.Linear))
            self.levels = Levels(next(linear).in_features, head.num_atoms)
        if head.is_noisy:
            add_noise_(self)

    def forward(self, x: Tensor) -> Tensor:
        if self.value is not None and self.gradient_scale != 1:
            x = x * self.gradient_scale + x.detach() * (1 - self.gradient_scale)
        if self.levels is not None:
            x = self.levels(x).flatten(0, 1)  # [N * K, F]
        value = None if self.value is None else self.value(x)
        output: Tensor = self.advantage(x).view(-1, *self._output_shape)
        if value is not None:
            output = duel(value, output)
        if self.levels is None:
            return output
        return output.view(-1, self.levels.num_levels, self._output_shape[0]).transpose(1, 2)


def add_noise_(model: nn.Module) -> None:
    """Replace each linear layer of a network by a `NoisyLinear`."""
    for parent in list(model.modules()):
        for name, layer in parent.named_children():
            if type(layer) is nn.Linear:
                setattr(parent, name, NoisyLinear(layer))


class Convolutions(nn.Module):
    """What the last of some convolutions gives, flattened."""

    def __init__(self, spec: ImageSpec, picture: Picture) -> None:
        super().__init__()
        self.convs, self.num_features = make_convs(spec, picture)

    def forward(self, observation: Tensor) -> Tensor:
        return flat_maps(self.convs, observation)


class ImageQNetwork(QModel):
    """Convolutions, then `QHeads`, whose streams have a hidden layer each."""

    def __init__(self, spec: ImageSpec, picture: Picture, head: QHead) -> None:
        super().__init__()
        self.trunk = Convolutions(spec, picture)
        self.heads = QHeads(partial(ImageStream, spec, self.trunk.num_features), head)

    def forward(self, observation: Tensor) -> Tensor:
        output: Tensor = self.heads(self.trunk(observation))
        return output


class MLPQNetwork(QHeads):
    """Two ReLU layers of 128 units for observations that are no images; dueling streams share none.

    Initial weights are torch's. Values grow to the sum of many rewards: tanh layers as of `MLP`,
    whose outputs are bounded, learned CartPole-v1 to 90 to 160 where these learn it to 500. With
    implicit quantiles or noise a layer of 128 units comes before both streams.
    """

    gradient_scale = 1.0

    def __init__(self, observation_shape: tuple[int, ...], head: QHead) -> None:
        sizes = prod(observation_shape), 128, 128
        has_trunk = head.is_implicit or head.is_noisy
        super().__init__(partial(_relu_layers, *sizes[1 if has_trunk else 0 :]), head)
        self.trunk: nn.Module = nn.Identity()
        if has_trunk:
            self.trunk = nn.Sequential(_relu_layers(*sizes[:2]), nn.ReLU())

    def forward(self, observation: Tensor) -> Tensor:
        return super().forward(self.trunk(flat(observation)))


def _relu_layers(*sizes: int) -> Dense:
    layers: list[nn.Module] = []
    for num_inputs, num_outputs in pairwise(sizes):
        layers += [nn.Linear(num_inputs, num_outputs), nn.ReLU()]
    return Dense(*layers[:-1])


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
