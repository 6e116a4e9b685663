"""Initial parameters. Weights are ``[out, in, ...]``; ``in`` is what feeds one output unit."""

from __future__ import annotations

import torch
from torch import Tensor, nn


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
