"""Convolutional networks for pictures ``[N, C, H, W]`` or ``[N, H, W, C]``.

The parameters are in channels-last memory format, so feature maps are flattened in the order
(row, column, channel), which costs no copy. The scale, 1/255 for bytes, is applied to the first
layer's weights instead of to the pictures: the same product for a fraction of the work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import sqrt
from typing import NamedTuple, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from accel_rl.models.policy_value import SharedNetwork
from accel_rl.spaces import Leaf

Initializer = Callable[[Tensor], Tensor]

_WIDEST = 2.0**16
"""width between bounds above which they say nothing of the numbers in a picture"""


class Picture(NamedTuple):
    """The axes of a picture, and the scale that maps its numbers to 0 .. 1.

    ``offset`` is subtracted, then ``scale`` multiplied: one number, or one for each channel.
    """

    channels: int
    height: int
    width: int
    is_channels_last: bool = False
    scale: float | tuple[float, ...] = 1 / 255
    offset: float | tuple[float, ...] = 0.0


def picture_of(leaf: Leaf) -> Picture | None:
    """Return how observations are read as pictures; None unless they have three axes.

    The channels are in the axis that the leaf declares. Else the two axes of equal size are rows
    and columns, or if there are none, the smallest one has the channels, where it is first or last.
    The numbers are scaled from the bounds of each channel to 0 .. 1. Without bounds on both sides,
    and with those that are further apart than 65,536, they stay as they are.

    Raises:
        ValueError: either axis may have the channels.
    """
    if len(leaf.shape) != 3:
        return None
    a, b, c = leaf.shape
    is_first, is_last = leaf.channels == "first", leaf.channels == "last"
    if leaf.channels is None:
        is_first = (a != b == c) or (b != c and a < min(b, c))
        is_last = (a == b != c) or (a != b and c < min(a, b))
    if is_first == is_last:
        raise ValueError(
            f"observations of shape {[a, b, c]} may be pictures of {b} x {c} with {a} channels "
            f"first, or of {a} x {b} with {c} channels last; say which: set "
            f'metadata = {{"channels": "first"}} or "last" in a Gymnasium environment, or '
            f'Leaf(..., channels="first") in another one; or give model=mlp, which takes numbers'
        )
    sizes, axes = ((c, a, b), (0, 1)) if is_last else ((a, b, c), (1, 2))
    offset, scale = np.zeros(sizes[0]), np.ones(sizes[0])
    low, high = leaf.bounds
    if low is not None and high is not None:
        least = low.min(axes).astype(np.float64)
        width = high.max(axes).astype(np.float64) - least
        is_scaled = (width > 0) & (width <= _WIDEST)
        offset, scale = np.where(is_scaled, least, 0.0), 1 / np.where(is_scaled, width, 1.0)
    return Picture(*sizes, is_last, _one_or_all(scale), _one_or_all(offset))


def _one_or_all(values: NDArray[np.float64]) -> float | tuple[float, ...]:
    found = tuple(values.tolist())
    return found[0] if len(set(found)) == 1 else found


@torch.no_grad()
def fan_in_(weight: Tensor) -> Tensor:
    """Fill ``weight`` ``[out, in, ...]`` uniformly within 1 / sqrt(inputs of one output unit)."""
    bound = weight[0].numel() ** -0.5
    return weight.uniform_(-bound, bound)


@torch.no_grad()
def truncated_(weight: Tensor) -> Tensor:
    """Fill ``weight`` ``[out, in, ...]`` from a normal distribution of deviation 1 / sqrt(inputs).

    It is cut off at two deviations, as DeepMind's Sonnet draws weights.
    """
    std = weight[0].numel() ** -0.5
    return nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


@torch.no_grad()
def normc_(weight: Tensor, norm: float) -> Tensor:
    """Fill ``weight`` ``[out, in]`` with Gaussian rows of L2 norm ``norm``.

    The norm is that of each output unit's incoming weights: dimension 1 here, 0 in libraries that
    store ``[in, out]``.
    """
    weight.normal_()
    return weight.mul_(norm / weight.norm(dim=1, keepdim=True))


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

    def make_layers(self, picture: Picture) -> nn.Sequential:
        """Return the layers before the fully connected one.

        `flat_maps` applies a ReLU after each of them.
        """
        later = (nn.Conv2d(a.channels, *b) for a, b in pairwise(self.convs))
        return nn.Sequential(PixelConv(picture, self.convs[0]), *later)

    def fits(self, picture: Picture | None) -> TypeGuard[Picture]:
        """Whether there is a picture, which is large enough for the convolutions."""
        return picture is not None and min(self.feature_shape(picture.height, picture.width)) >= 1

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

DQN_NET = replace(
    A3C_NET,
    name="dqn",
    convs=(ConvSpec(32, 8, 4, 0), ConvSpec(64, 4, 2, 1), ConvSpec(64, 3, 1, 1)),
    hidden=512,
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

PAAC_NATURE_NET = replace(NIPS_NET, name="paac_nature", convs=NATURE_NET.convs, hidden=512)
"""The layers of ``NATURE_NET`` with the initial weights of ``NIPS_NET``: PAAC's larger network."""

MINATAR_NET = replace(NIPS_NET, name="minatar", convs=(ConvSpec(16, 3, 1, 0),), hidden=128)
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
    """A shared convolutional trunk with a policy and a value head."""

    def __init__(self, spec: ImageSpec, picture: Picture, num_actions: int) -> None:
        super().__init__()
        self.width = spec.hidden
        self.convs, map_size = make_convs(spec, picture)
        self.hidden = nn.Linear(map_size, spec.hidden)
        self.policy = nn.Linear(spec.hidden, num_actions)
        self.value = nn.Linear(spec.hidden, 1)
        for layer in (self.hidden, self.policy, self.value):
            nn.init.zeros_(layer.bias)
        spec.hidden_init(self.hidden.weight)
        spec.policy_init(self.policy.weight)
        spec.value_init(self.value.weight)

    def features(self, observation: Tensor) -> Tensor:
        return F.relu_(self.hidden(flat_maps(self.convs, observation)))


def image_trunk(picture: Picture) -> ImageNetwork:
    """The network `A3C_NET` without its heads."""
    network = ImageNetwork(A3C_NET, picture, 1)
    del network.policy, network.value
    return network


def make_convs(spec: ImageSpec, picture: Picture) -> tuple[nn.Sequential, int]:
    """The convolutions with their initial weights, and how many numbers the last map has."""
    rows, columns = spec.feature_shape(picture.height, picture.width)
    if not spec.fits(picture):
        raise ValueError(
            f"pictures of {picture.height} x {picture.width} are too small for the convolutions of "
            f"model={spec.name}; use larger images, model=minatar or model=mlp"
        )
    layers = spec.make_layers(picture)
    for layer in layers.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]  # it has one
            spec.conv_init(layer.weight)
            layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)
    return layers, rows * columns * spec.map_channels


def flat_maps(convs: nn.Sequential, observation: Tensor) -> Tensor:
    """Return the last feature maps of pictures ``[N, ...]``, flattened, ``[N, F]``."""
    x = observation
    for conv in convs:
        x = F.relu_(conv(x))
    return flattened(x)


def flattened(maps: Tensor) -> Tensor:
    """Return maps ``[N, C, H, W]`` that are channels last as ``[N, H * W * C]``, a view."""
    return maps.permute(0, 2, 3, 1).flatten(1)


def channels_last(image: Tensor) -> Tensor:
    """``image``, ``[N, C, H, W]`` on the CPU, in that memory format.

    While it is bytes; twice as fast as `Tensor.contiguous`.
    """
    if image.is_contiguous(memory_format=torch.channels_last):
        return image
    return torch.stack(image.unbind(1), -1).permute(0, 3, 1, 2)


class PixelConv(nn.Conv2d):
    """The first convolution, of pictures as if they were scaled and had their channels first."""

    scale: float | Tensor
    offset: float | Tensor

    def __init__(self, picture: Picture, spec: ConvSpec) -> None:
        super().__init__(picture.channels, *spec)
        self._is_channels_last = picture.is_channels_last
        for name, value in (("scale", picture.scale), ("offset", picture.offset)):
            if isinstance(value, tuple):
                self.register_buffer(name, torch.tensor(value).view(-1, 1, 1), persistent=False)
            else:
                setattr(self, name, value)

    def forward(self, image: Tensor) -> Tensor:
        """``image``: ``[N, C, H, W]``, or ``[N, H, W, C]`` where its channels are last."""
        weight = self.weight * self.scale
        # With so few channels the forward pass does not repay the change of memory format; the
        # backward pass, five times faster after it, does.
        is_plain = image.device.type == "cpu" and not torch.is_grad_enabled()
        if is_plain and self._channels_first(image).is_contiguous():
            weight = weight.contiguous()
        else:
            is_plain = False
        x = self.pixels(image, keeps_format=is_plain)
        output = F.conv2d(x, weight, self.bias, self.stride, self.padding)
        return output.contiguous(memory_format=torch.channels_last)

    def pixels(self, image: Tensor, *, keeps_format: bool = False) -> Tensor:
        """Return the numbers that are convolved, without the scale, ``[N, C, H, W]``."""
        image, device = self._channels_first(image), image.device.type
        # bfloat16 holds the integers up to 256 exactly.
        is_autocast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if is_autocast else self.weight.dtype
        memory_format = torch.preserve_format
        if device != "cpu":
            memory_format = torch.channels_last
        elif not keeps_format:
            image = channels_last(image)
        x = image.to(dtype, memory_format=memory_format)
        if isinstance(self.offset, Tensor) or self.offset:
            x = x - self.offset
        return x

    def _channels_first(self, image: Tensor) -> Tensor:
        return image.permute(0, 3, 1, 2) if self._is_channels_last else image
