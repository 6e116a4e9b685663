"""Convolutional networks for images ``[N, C, H, W]``, uint8.

The parameters are in channels-last memory format, so feature maps are flattened in the order
(row, column, channel), which costs no copy. The scale of 1/255 is applied to the first layer's
weights instead of to the images: the same product for a fraction of the work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from accel_rl.models.initialization import fan_in_, normc_
from accel_rl.models.policy_value import SharedNetwork

Initializer = Callable[[Tensor], Tensor]

PIXEL_SCALE = 1 / 255
"""of images, applied to the first layer's weights"""


class ConvSpec(NamedTuple):
    """One convolution; square kernels."""

    channels: int
    kernel: int
    stride: int
    padding: int


@dataclass(frozen=True, kw_only=True)
class ImageSpec:
    """Layers and initial weights of an `ImageNetwork`. Biases begin at 0."""

    name: str
    convs: tuple[ConvSpec, ...] = ()
    hidden: int
    """units of the fully connected layer"""
    conv_init: Initializer
    hidden_init: Initializer
    policy_init: Initializer
    value_init: Initializer

    @property
    def map_channels(self) -> int:
        """Channels of the last feature map."""
        return self.convs[-1].channels

    def make_layers(self, channels: int) -> nn.Sequential:
        """Return the layers before the fully connected one, for images with so many channels.

        `flat_maps` applies a ReLU after each of them.
        """
        convs: list[nn.Conv2d] = []
        for conv in self.convs:
            kind = nn.Conv2d if convs else PixelConv
            convs.append(kind(channels, *conv))
            channels = conv.channels
        return nn.Sequential(*convs)

    def feature_shape(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of the last feature map; not positive where the image is too small."""
        for conv in self.convs:
            height = (height + 2 * conv.padding - conv.kernel) // conv.stride + 1
            width = (width + 2 * conv.padding - conv.kernel) // conv.stride + 1
            if min(height, width) < 1:
                break
        return height, width


_glorot = nn.init.xavier_uniform_
_orthogonal = nn.init.orthogonal_

A3C_NET = ImageSpec(
    name="a3c",
    convs=(ConvSpec(16, 8, 4, 0), ConvSpec(32, 4, 2, 1)),
    hidden=256,
    conv_init=_glorot,
    hidden_init=partial(normc_, norm=1.0),
    policy_init=partial(normc_, norm=0.01),
    value_init=partial(normc_, norm=1.0),
)
"""The smaller network of Stooke and Abbeel 2018 (arXiv:1803.02811), with the initial weights of
the code its authors published."""

DQN_NET = ImageSpec(
    name="dqn",
    convs=(ConvSpec(32, 8, 4, 0), ConvSpec(64, 4, 2, 1), ConvSpec(64, 3, 1, 1)),
    hidden=512,
    conv_init=_glorot,
    hidden_init=partial(normc_, norm=1.0),
    policy_init=partial(normc_, norm=0.01),
    value_init=partial(normc_, norm=1.0),
)
"""The larger network of the same paper."""

NATURE_NET = ImageSpec(
    name="nature",
    convs=(ConvSpec(32, 8, 4, 0), ConvSpec(64, 4, 2, 0), ConvSpec(64, 3, 1, 0)),
    hidden=512,
    conv_init=partial(_orthogonal, gain=sqrt(2)),
    hidden_init=partial(_orthogonal, gain=sqrt(2)),
    policy_init=partial(_orthogonal, gain=0.01),
    value_init=partial(_orthogonal, gain=1.0),
)
"""Mnih et al. 2015 (Nature 518, 529-533), with the initial weights of OpenAI baselines' A2C."""


NIPS_NET = ImageSpec(
    name="nips",
    convs=(ConvSpec(16, 8, 4, 0), ConvSpec(32, 4, 2, 0)),
    hidden=256,
    conv_init=fan_in_,
    hidden_init=fan_in_,
    policy_init=fan_in_,
    value_init=fan_in_,
)
"""Mnih et al. 2013 (arXiv:1312.5602), with the initial weights of Clemente et al. 2017
(arXiv:1705.04862), but for their biases, which are drawn likewise."""

PAAC_NATURE_NET = replace(
    NATURE_NET,
    name="paac_nature",
    conv_init=fan_in_,
    hidden_init=fan_in_,
    policy_init=fan_in_,
    value_init=fan_in_,
)
"""The layers of ``NATURE_NET`` with the initial weights of ``NIPS_NET``: PAAC's larger network."""

MINATAR_NET = ImageSpec(
    name="minatar",
    convs=(ConvSpec(16, 3, 1, 0),),
    hidden=128,
    conv_init=fan_in_,
    hidden_init=fan_in_,
    policy_init=fan_in_,
    value_init=fan_in_,
)
"""Young and Tian 2019 (arXiv:1903.03176), for images of 10 x 10, with torch's initial weights."""

GA3C_LARGE_NETS = tuple(
    replace(
        NIPS_NET,
        name=f"ga3c_large_stride{stride}",
        convs=(ConvSpec(32, 8, stride, 0), ConvSpec(32, 4, 2, 0), ConvSpec(64, 4, 2, 0)),
    )
    for stride in (4, 3, 2, 1)
)
"""The larger networks with which Babaeizadeh et al. 2017 (arXiv:1611.06256, table 2) compare
speeds: more filters in the first layer, whose stride is in the name, and a third convolution."""


class ImageNetwork(SharedNetwork):
    """A shared convolutional trunk with a policy and a value head.

    Raises:
        ValueError: the image is too small for the convolutions.
    """

    def __init__(
        self, spec: ImageSpec, observation_shape: tuple[int, int, int], num_actions: int
    ) -> None:
        super().__init__()
        self.width = spec.hidden
        self.convs, map_size = make_convs(spec, observation_shape)
        self.hidden = nn.Linear(map_size, spec.hidden)
        self.policy = nn.Linear(spec.hidden, num_actions)
        self.value = nn.Linear(spec.hidden, 1)
        for layer in (self.hidden, self.policy, self.value):
            nn.init.zeros_(layer.bias)
        spec.hidden_init(self.hidden.weight)
        spec.policy_init(self.policy.weight)
        spec.value_init(self.value.weight)

    def features(self, observation: Tensor) -> Tensor:
        """``[N, width]`` of ``observation``, ``[N, C, H, W]`` uint8."""
        return F.relu_(self.hidden(flat_maps(self.convs, observation)))


def image_trunk(observation_shape: tuple[int, ...]) -> ImageNetwork:
    """The network `A3C_NET` without its heads."""
    channels, height, width = observation_shape
    network = ImageNetwork(A3C_NET, (channels, height, width), 1)
    del network.policy, network.value
    return network


def refuse_channels_last(image_shape: tuple[int, ...]) -> None:
    """Raise ValueError for the shape of an image whose channels seem to be its last axis."""
    if image_shape[2] in (1, 3, 4) and min(image_shape[:2]) >= 32:
        raise ValueError(
            f"observations of shape {list(image_shape)} look like images with their channels "
            "last; networks for images take [channels, height, width]: transpose them in the "
            "environment, or give model=mlp (Atari games by their own names, as in env=pong, "
            "have fitting ones)"
        )


def make_convs(
    spec: ImageSpec, observation_shape: tuple[int, int, int]
) -> tuple[nn.Sequential, int]:
    """The convolutions with their initial weights, and how many numbers the last map has.

    Raises:
        ValueError: the image is too small for them.
    """
    channels, height, width = observation_shape
    rows, columns = spec.feature_shape(height, width)
    if min(rows, columns) < 1:
        raise ValueError(
            f"observations of shape {observation_shape} are too small for the convolutions of "
            f"model={spec.name}; use larger images or model=mlp"
        )
    layers = spec.make_layers(channels)
    for layer in layers.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]  # it has one
            spec.conv_init(layer.weight)
            layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)
    return layers, rows * columns * spec.map_channels


def flat_maps(convs: nn.Sequential, observation: Tensor) -> Tensor:
    """Return the last feature maps of images ``[N, C, H, W]`` uint8, flattened, ``[N, F]``."""
    x = observation
    for conv in convs:
        x = F.relu_(conv(x))
    return flattened(x)


def flattened(maps: Tensor) -> Tensor:
    """Return maps ``[N, C, H, W]`` that are channels last as ``[N, H * W * C]``, a view."""
    return maps.permute(0, 2, 3, 1).flatten(1)


def channels_last(image: Tensor) -> Tensor:
    """``image``, ``[N, C, H, W]`` uint8 on the CPU, in that memory format.

    While it is bytes; twice as fast as `Tensor.contiguous`.
    """
    if image.is_contiguous(memory_format=torch.channels_last):
        return image
    return torch.stack(image.unbind(1), -1).permute(0, 3, 1, 2)


class PixelConv(nn.Conv2d):
    """The first convolution: of images in 0 .. 255, as if they were divided by 255."""

    def forward(self, image: Tensor) -> Tensor:
        device = image.device.type
        # bfloat16 holds the integers up to 256 exactly.
        is_autocast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if is_autocast else self.weight.dtype
        weight, memory_format = self.weight * PIXEL_SCALE, torch.preserve_format
        if device == "cpu" and not torch.is_grad_enabled() and image.is_contiguous():
            # With so few channels the forward pass does not repay the change of memory format; the
            # backward pass, five times faster after it, does.
            weight = weight.contiguous()
        elif device == "cpu":
            image = channels_last(image)
        else:
            memory_format = torch.channels_last
        x = image.to(dtype, memory_format=memory_format)
        output = F.conv2d(x, weight, self.bias, self.stride, self.padding)
        return output.contiguous(memory_format=torch.channels_last)
