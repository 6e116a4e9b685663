"""The memory of a network: which recurrent layer it has, and what else it is told."""

from __future__ import annotations

from math import prod
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from accel_rl.models.gru import GRU
from accel_rl.models.lstm import LSTM
from accel_rl.spaces import Space, describe, follow, leaves_of

_MOST_VALUES = 1000
"""values that an action may have in all, for each of which there is an indicator"""


class PreviousInputs:
    """What a memory is told besides features: the action before an observation, and its reward.

    As in R2D2 (Kapturowski et al. 2019, section 2.3) and A3C for partial observations (Wang et al.
    2016, arXiv:1611.05763). An action is an indicator of each integer's value, or the floats in
    units of half the width of their bounds, around their middle. The reward is a number as the
    learner sees it. Where an episode begins all are 0.

    Args:
        action: The space of actions.

    Attributes:
        size: Numbers for each observation, ``P``.

    Raises:
        ValueError: Integers have too many values.
    """

    def __init__(self, action: Space) -> None:
        self._leaves = list(leaves_of(action))
        self.size = 1  # the reward
        for _, leaf in self._leaves:
            counts = leaf.counts
            if counts is not None and sum(counts) > _MOST_VALUES:
                raise ValueError(
                    f"previous_action_reward=true indicates each value of an action, and actions "
                    f"are {describe(action)}, with more than {_MOST_VALUES} values; leave it out"
                )
            self.size += prod(leaf.shape) if counts is None else sum(counts)

    def __call__(self, action: Any, reward: Tensor) -> Tensor:
        """Return ``[..., P]`` float32 of actions ``[..., *shape]`` and rewards ``[...]``."""
        parts = []
        for path, leaf in self._leaves:
            flat = follow(action, path).reshape(*reward.shape, -1)
            counts = leaf.counts
            if leaf.dtype.kind == "f":
                # By numbers, which CUDA graphs and exports hold as they are.
                pairs = zip(*(each.ravel().tolist() for each in leaf.units), strict=True)
                scaled = [(flat[..., i] - middle) / unit for i, (middle, unit) in enumerate(pairs)]
                flat = torch.stack(scaled, -1)
            if counts is None:
                parts.append(flat.to(torch.float32))
                continue
            assert leaf.bounds[0] is not None, "what is counted has bounds"
            for i, (low, count) in enumerate(zip(leaf.bounds[0].ravel(), counts, strict=True)):
                indicator = F.one_hot(flat[..., i].long() - int(low), count)
                parts.append(indicator.to(torch.float32))
        return torch.cat((*parts, reward.unsqueeze(-1).to(torch.float32)), -1)


class MemorySpec(NamedTuple):
    """The recurrent layer of a network.

    Attributes:
        kind: ``lstm`` or ``gru``.
        previous: inputs besides features: the previous action and reward. None: no such inputs.
    """

    kind: Literal["lstm", "gru"] = "lstm"
    previous: PreviousInputs | None = None


PLAIN_LSTM = MemorySpec()
"""of features alone"""


def make_memory(spec: MemorySpec, width: int, num_features: int) -> LSTM | GRU:
    """Return a recurrent layer of ``width`` units for ``num_features`` numbers and the previous."""
    num_inputs = num_features + (0 if spec.previous is None else spec.previous.size)
    return GRU(width, num_inputs) if spec.kind == "gru" else LSTM(width, num_inputs)


def with_previous(features: Tensor, previous: Tensor | None) -> Tensor:
    """``[T * B, F + P]`` of features ``[T * B, F]`` and ``previous``, ``[T, B, P]`` or None."""
    if previous is None:
        return features
    return torch.cat((features, previous.flatten(0, 1).to(features.dtype)), 1)
