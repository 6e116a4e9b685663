"""The residual network of IMPALA (Espeholt et al. 2018, arXiv:1802.01561, figure 3, right)."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from accel_rl.models.image import ConvSpec, ImageSpec, Picture, PixelConv, fan_in_, truncated_

_NUM_BLOCKS = 2  # in a stage
_NUM_SQUARINGS = 8  # after which a singular value 1 % below the largest counts 1 / 170
_SMALLEST = 8  # rows and columns of which three stages leave one each


@dataclass(frozen=True, kw_only=True)
class ResidualSpec(ImageSpec):
    """Stages of convolutions of 3 x 3, each with half the rows and columns of the one before."""

    stages: tuple[int, ...]
    """channels of each"""
    pool: int | None = None
    """rows and columns of an adaptive maximum over the last maps; None: there is none"""
    is_normalized: bool = False
    """whether the convolutions of blocks have spectral normalization"""

    @property
    def map_channels(self) -> int:
        """Channels of the last feature map."""
        return self.stages[-1]

    def make_layers(self, picture: Picture) -> nn.Sequential:
        """Return one layer, all stages: a ReLU comes after the last and between none."""
        conv = SpectralConv if self.is_normalized else nn.Conv2d
        first = self.stages[0]
        layers: list[nn.Module] = [_Stage(PixelConv(picture, _same(first)), first, conv)]
        for channels, out in pairwise(self.stages):
            layers.append(_Stage(nn.Conv2d(channels, *_same(out)), out, conv))
        if self.pool is not None:
            layers.append(MaxPool(self.pool))
        return nn.Sequential(nn.Sequential(*layers))

    def feature_shape(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of the last feature map; not positive where the image is too small."""
        if min(height, width) < _SMALLEST:
            return 0, 0
        if self.pool is not None:
            return self.pool, self.pool
        for _ in self.stages:
            height, width = (height + 1) // 2, (width + 1) // 2
        return height, width


IMPALA_NET = ResidualSpec(
    name="impala",
    stages=(16, 32, 32),
    hidden=256,
    conv_init=truncated_,
    hidden_init=truncated_,
    policy_init=truncated_,
    value_init=truncated_,
)
"""15 convolutions and a fully connected layer, with the initial weights and the padding of the code
that its authors published."""

BTR_NET = replace(
    IMPALA_NET,
    name="btr",
    stages=(32, 64, 64),
    hidden=512,
    pool=6,
    is_normalized=True,
    conv_init=fan_in_,
    hidden_init=fan_in_,
    policy_init=fan_in_,
    value_init=fan_in_,
)
"""The same at twice the width, with spectral normalization and a maximum over its last maps: Clark
et al. 2024 (arXiv:2411.03820), with torch's initial weights."""


def spectral_norm(matrix: Tensor) -> Tensor:
    """Return the largest singular value of ``[n, m]``, 0-d, with gradient ``u v^T``.

    ``sqrt(trace(P M M^T))``, where ``P``, a high power of ``M M^T`` with trace 1, projects on the
    left singular vector ``u``. No state is kept from call to call.
    """
    gram = matrix @ matrix.T
    power = gram.detach()
    for _ in range(_NUM_SQUARINGS):
        power = power / power.diagonal().sum()
        power = power @ power
    return ((gram * power).sum() / power.diagonal().sum()).sqrt()


class SpectralConv(nn.Conv2d):
    """A convolution with its weights, ``[out, in * rows * columns]``, over their `spectral_norm`.

    Miyato et al. 2018 (arXiv:1802.05957).
    """

    def forward(self, x: Tensor) -> Tensor:
        device = x.device.type
        is_autocast = torch.is_autocast_enabled(device)  # exporters know no such context
        with torch.autocast(device, enabled=False) if is_autocast else nullcontext():
            norm = spectral_norm(self.weight.permute(0, 2, 3, 1).flatten(1))
        return F.conv2d(x, self.weight / norm, self.bias, self.stride, self.padding)


class MaxPool(nn.Module):
    """An adaptive maximum. Of 11 rows and columns to 6, as for 84x84 pictures, it is a plain one.

    Exporters know the plain one alone, and its gradient is faster.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        is_plain = x.shape[2] == x.shape[3] == 2 * self.size - 1  # the same windows
        output: Tensor = (
            F.max_pool2d(x, 3, 2, 1) if is_plain else F.adaptive_max_pool2d(x, self.size)
        )
        return output


class _Stage(nn.Module):
    """A convolution, a maximum over 3 x 3 with stride 2, and residual blocks."""

    def __init__(self, conv: nn.Conv2d, channels: int, kind: type[nn.Conv2d]) -> None:
        super().__init__()
        self.conv = conv
        self.blocks = nn.Sequential(*(_Block(channels, kind) for _ in range(_NUM_BLOCKS)))

    def forward(self, x: Tensor) -> Tensor:
        """``x``: ``[N, C, H, W]``; rows and columns are halved, and rounded up."""
        x = self.conv(x)
        # As TensorFlow pads: what an even number needs comes behind it.
        odd = x.shape[2] % 2, x.shape[3] % 2
        output: Tensor = self.blocks(F.max_pool2d(x, 3, 2, odd, ceil_mode=True))
        return output


class _Block(nn.Module):
    """What two convolutions add to their input."""

    def __init__(self, channels: int, kind: type[nn.Conv2d]) -> None:
        super().__init__()
        self.first = kind(channels, *_same(channels))
        self.second = kind(channels, *_same(channels))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.second(F.relu_(self.first(x.relu())))
        return output.add_(x)


def _same(channels: int) -> ConvSpec:
    return ConvSpec(channels, 3, 1, 1)
