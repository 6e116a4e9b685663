"""What a run needs of an algorithm that learns from rollouts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torch import Tensor

from accel_rl.agents import RolloutTensors


class Learner(Protocol):
    """The interface of an algorithm that learns from rollouts.

    Attributes:
        metric_names: all names that `update` may return.
    """

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


def check_learner(learner: Learner) -> None:
    """Check that a run can use a learner of a user's class.

    Raises:
        ValueError: A member of `Learner` is missing, or `update` takes other arguments.
    """
    name = type(learner).__name__
    for member in ("metric_names", "update", "get_state", "set_state"):
        if not hasattr(learner, member):
            raise ValueError(f"the learner {name} must define {member}, as accel_rl.algos.Learner")
    check_call(f"{name}.update", learner.update, "batch", "progress", "steps")


def check_call(name: str, function: Callable[..., object], *arguments: str) -> None:
    """Check that a function takes arguments in an order.

    Args:
        name: the function's name in the message.
        function: the function.
        arguments: names of the arguments. Only their number counts.

    Raises:
        ValueError: It does not.
    """
    signature = inspect.signature(function)
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise ValueError(
            f"{name} must take the arguments ({', '.join(arguments)}); "
            f"it takes ({', '.join(signature.parameters)})"
        ) from error
