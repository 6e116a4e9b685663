"""What a run needs of an algorithm that learns from rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from accel_rl.agents import RolloutTensors
from accel_rl.algos.behaviour import Behaviour


class Learner(Protocol):
    """Learns from one rollout after the other.

    Attributes:
        behaviour: Which parameters acted, for a learner that uses probability ratios. None for a
            learner that does not need to know.
        metric_names: All names that `update` may return.
    """

    @property
    def behaviour(self) -> Behaviour | None: ...

    @property
    def metric_names(self) -> tuple[str, ...]: ...

    def update(
        self, batch: RolloutTensors, progress: float, steps: int | None = None
    ) -> Mapping[str, Tensor]:
        """Learn from ``batch`` and return metrics, 0-d tensors on its device.

        Args:
            batch: A rollout, ``[T, B]``; it may be overwritten afterwards.
            progress: Share of the schedules that is done, in [0, 1].
            steps: Steps that all learners have taken so far, this rollout's included.
        """
        ...

    def get_state(self) -> dict[str, Any]:
        """Return what a checkpoint holds beside parameters and the state of the update rule."""
        ...

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `get_state` returned, perhaps in an older version."""
        ...
