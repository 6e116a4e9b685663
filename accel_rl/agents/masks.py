"""Action masks: which actions of a row are allowed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from accel_rl.spaces import ACTION_MASK, OBSERVATION


def split_mask(observation: Any) -> tuple[Any, Tensor | None]:
    """Return what a network gets of an observation, and the action mask, ``[N, A]``, or None.

    Of a dict with nothing but ``observation`` beside the mask, a network gets that tensor.
    """
    if isinstance(observation, Tensor) or ACTION_MASK not in observation:
        return observation, None
    rest = {name: each for name, each in observation.items() if name != ACTION_MASK}
    return rest[OBSERVATION] if list(rest) == [OBSERVATION] else rest, observation[ACTION_MASK]


def masked(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Return ``scores`` ``[N, A]`` with the lowest number where ``mask`` is 0.

    It is finite, so that a probability of 0 times its logarithm is 0, in an entropy for example.
    """
    if mask is None:
        return scores
    return scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)
