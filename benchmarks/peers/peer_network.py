"""The network that the benchmark names, for peers that take one: the same layers in plain torch."""

from __future__ import annotations

from typing import Any

from torch import nn


def make_trunk(network: dict[str, Any]) -> nn.Sequential:
    """From images ``[N, 4, H, W]`` in [0, 1] to the last hidden layer, ``[N, hidden]``.

    ``network``: ``image`` [H, W], ``convs`` [[channels, kernel, stride, padding], ...], ``hidden``.
    """
    layers: list[nn.Module] = []
    channels, (height, width) = 4, network["image"]
    for out, kernel, stride, padding in network["convs"]:
        layers += [nn.Conv2d(channels, out, kernel, stride, padding), nn.ReLU()]
        channels = out
        height, width = ((n + 2 * padding - kernel) // stride + 1 for n in (height, width))
    size = channels * height * width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(size, network["hidden"]), nn.ReLU())
