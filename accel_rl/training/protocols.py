"""What a run needs of an action server and of an algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from accel_rl.agents import RolloutTensors
from accel_rl.algos.behaviour import Behaviour
from accel_rl.samplers.base import PolicyInput


class Server(Protocol):
    """What the loop needs of an action server: it acts, then hands over the rollout."""

    def __call__(self, step: PolicyInput) -> Any: ...

    def finish(self) -> RolloutTensors: ...

    def get_state(self) -> torch.Tensor | None: ...

    def set_state(self, state: torch.Tensor | None) -> None: ...

    def close(self) -> None: ...


class Learner(Protocol):
    """What the loop needs of an algorithm. ``metric_names``: all that `update` may return.

    ``behaviour``: which parameters acted, for a learner that uses probability ratios; None for one
    that does not care.
    """

    @property
    def behaviour(self) -> Behaviour | None: ...

    @property
    def metric_names(self) -> tuple[str, ...]: ...

    def update(
        self, batch: RolloutTensors, progress: float, steps: int | None = None
    ) -> Mapping[str, torch.Tensor]: ...

    def get_state(self) -> dict[str, Any]: ...

    def set_state(self, state: Mapping[str, Any]) -> None: ...
