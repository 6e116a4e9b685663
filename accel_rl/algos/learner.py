"""What a run needs of an algorithm that learns from rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from accel_rl.agents import RolloutTensors
from accel_rl.algos.behaviour import Behaviour


class Learner(Protocol):
    """The interface of an algorithm that learns from rollouts.

    Attributes:
        behaviour: receives the parameters that acted, for a learner that uses probability ratios;
            None for other learners.
        metric_names: all names that `update` may return.
    """

    @property
    def behaviour(self) -> Behaviour | None:
        """The parameters that acted, or None."""
        ...

    @property
    def metric_names(self) -> tuple[str, ...]:
        """All names that `update` may return."""
        ...

    def update(
        self, batch: RolloutTensors, progress: float, steps: int | None = None
    ) -> Mapping[str, Tensor]:
        """Learn from a rollout.

        Args:
            batch: the rollout, ``[T, B]``; it may be overwritten afterwards.
            progress: completed share of the schedules, in [0, 1].
            steps: steps that all learners have taken, including this rollout.

        Returns:
            Metrics by name, 0-d tensors on the learner's device.
        """
        ...

    def get_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, without parameters and optimizer state."""
        ...

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state.

        Args:
            state: the value that `get_state` returned, perhaps in an older version.
        """
        ...
