"""A network for observations of several leaves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod, sqrt
from typing import Any, cast

import torch
from torch import Tensor, nn

from accel_rl.models.image import A3C_NET, PixelConv, image_trunk, picture_of
from accel_rl.models.mlp import HIDDEN, linear
from accel_rl.models.policy_value import SharedNetwork
from accel_rl.spaces import Leaf, Space, follow, leaves_of

MOST_VALUES = 1000
"""integers with at most so many values in all become indicators, one for each value"""


class JoinedNetwork(SharedNetwork):
    """A trunk for each leaf of an observation; what they give is joined by one more layer.

    The trunk of pictures that are large enough has the convolutions and the
    hidden layer of the A3C network. Any other leaf goes through one tanh layer of 64 units: numbers
    as they are, bounded integers as indicators of their values. Then comes a tanh layer of 128
    units, then the heads. Weights are initialized as those of `MLP`.
    """

    width = 2 * HIDDEN

    def __init__(self, observation: Space, num_outputs: int) -> None:
        super().__init__()
        self._paths = [path for path, _ in leaves_of(observation)]
        trunks: list[Any] = []
        for _, leaf in leaves_of(observation):
            picture = picture_of(leaf)
            trunks.append(image_trunk(picture) if A3C_NET.fits(picture) else _Trunk(leaf))
        self.trunks = nn.ModuleList(trunks)
        width = sum(trunk.width for trunk in trunks)
        self.joined = linear(width, self.width, gain=sqrt(2))
        self.policy = linear(self.width, num_outputs, gain=0.01)
        self.value = linear(self.width, 1, gain=1.0)

    def features(self, observation: Mapping[str, Any]) -> Tensor:  # type: ignore[override]
        trunks = cast("Iterable[_Trunk]", self.trunks)
        pairs = zip(trunks, self._paths, strict=True)
        seen = torch.cat([trunk.features(follow(observation, path)) for trunk, path in pairs], 1)
        return torch.tanh(self.joined(seen))


def convolves(network: nn.Module, leaf: Leaf, is_alone: bool) -> bool:
    """Return whether a network reads a leaf, perhaps all of an observation, as a picture."""
    if len(leaf.shape) != 3:
        return False
    if is_alone:
        return any(isinstance(layer, PixelConv) for layer in network.modules())
    return A3C_NET.fits(picture_of(leaf))


def indicated(leaf: Leaf) -> list[int] | None:
    """Return the numbers of values of integers that become indicators; None: they do not."""
    if leaf.low is None or leaf.high is None:
        return None
    counts = leaf.counts
    return counts if counts is not None and sum(counts) <= MOST_VALUES else None


class _Trunk(nn.Module):
    """One tanh layer over numbers, or over indicators."""

    width = HIDDEN

    def __init__(self, leaf: Leaf) -> None:
        super().__init__()
        self._counts = indicated(leaf)
        size = prod(leaf.shape) if self._counts is None else sum(self._counts)
        self.layer = linear(size, HIDDEN, gain=sqrt(2))
        low = leaf.bounds[0]
        self._low = [] if low is None else [int(each) for each in low.ravel()]

    def features(self, observation: Tensor) -> Tensor:
        x = observation.reshape(observation.shape[0], -1)
        if self._counts is None:
            return torch.tanh(self.layer(x.to(torch.float32)))
        columns = [
            nn.functional.one_hot(x[:, i].long() - low, count)
            for i, (low, count) in enumerate(zip(self._low, self._counts, strict=True))
        ]
        return torch.tanh(self.layer(torch.cat(columns, 1).to(torch.float32)))
