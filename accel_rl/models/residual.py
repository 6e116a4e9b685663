"""The residual network of IMPALA (Espeholt et al. 2018, arXiv:1802.01561, figure 3, right)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F

from accel_rl.models.image import ConvSpec, ImageSpec, Picture, PixelConv, truncated_

_NUM_BLOCKS = 2  # in a stage
_SMALLEST = 8  # rows and columns of which three stages leave one each


@dataclass(frozen=True, kw_only=True)
class ResidualSpec(ImageSpec):
    """Stages of convolutions of 3 x 3, each with half the rows and columns of the one before."""

    stages: tuple[int, ...]
    """channels of each"""

    @property
    def map_channels(self) -> int:
        """Channels of the last feature map."""
        return self.stages[-1]

    def make_layers(self, picture: Picture) -> nn.Sequential:
        """Return one layer, all stages: a ReLU comes after the last and between none."""
        first = self.stages[0]
        stages = [_Stage(PixelConv(picture, _same(first)), first)]
        for channels, out in pairwise(self.stages):
            stages.append(_Stage(nn.Conv2d(channels, *_same(out)), out))
        return nn.Sequential(nn.Sequential(*stages))

    def feature_shape(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of the last feature map; not positive where the image is too small."""
        if min(height, width) < _SMALLEST:
            return 0, 0
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


class _Stage(nn.Module):
    """A convolution, a maximum over 3 x 3 with stride 2, and residual blocks."""

    def __init__(self, conv: nn.Conv2d, channels: int) -> None:
        super().__init__()
        self.conv = conv
        self.blocks = nn.Sequential(*(_Block(channels) for _ in range(_NUM_BLOCKS)))

    def forward(self, x: Tensor) -> Tensor:
        """``x``: ``[N, C, H, W]``; rows and columns are halved, and rounded up."""
        x = self.conv(x)
        # As TensorFlow pads: what an even number needs comes behind it.
        odd = x.shape[2] % 2, x.shape[3] % 2
        output: Tensor = self.blocks(F.max_pool2d(x, 3, 2, odd, ceil_mode=True))
        return output


class _Block(nn.Module):
    """What two convolutions add to their input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, *_same(channels))
        self.second = nn.Conv2d(channels, *_same(channels))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.second(F.relu_(self.first(x.relu())))
        return output.add_(x)


def _same(channels: int) -> ConvSpec:
    return ConvSpec(channels, 3, 1, 1)
