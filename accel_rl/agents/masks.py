"""Action masks: which actions of a row are allowed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from accel_rl.spaces import ACTION_MASK, without_mask


def split_mask(observation: Any) -> tuple[Any, Tensor | None]:
    """Return what a network gets (`without_mask`), and the action mask, ``[N, A]``, or None."""
    mask = observation.get(ACTION_MASK) if isinstance(observation, Mapping) else None
    return without_mask(observation), mask


def masked(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Return ``scores`` ``[N, A]`` with the lowest number where ``mask`` is 0.

    It is finite, so that a probability of 0 times its logarithm is 0, in an entropy for example.
    """
    if mask is None:
        return scores
    return scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)
