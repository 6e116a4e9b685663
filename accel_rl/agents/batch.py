"""A rollout as a learner sees it: tensors on its device."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class RolloutTensors(NamedTuple):
    """``T`` steps of ``B`` environments, aligned as in `accel_rl.rollout`.

    ``M`` is the number of episodes that were truncated without having terminated, most often 0;
    known to the host from the shape, so that nobody asks the device for it.
    """

    observation: Tensor  # [T + 1, B, ...]
    action: Tensor  # [T, B] int64
    reward: Tensor  # [T, B] float32
    terminated: Tensor  # [T, B] bool
    truncated: Tensor  # [T, B] bool
    valid: Tensor  # [T, B] bool, False where no step was taken
    final_observation: Tensor  # [M, ...]
    final_step: Tensor  # [M] int64, the step t of each
    final_env: Tensor  # [M] int64, its column b

    def without_finals(self) -> RolloutTensors:
        """Likewise, with ``M`` = 0: of one shape in every rollout."""
        return RolloutTensors(*self[:6], *(field[:0] for field in self[6:]))
