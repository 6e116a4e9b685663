"""Options of runs with several learners."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from accel_rl.options import check_settings, option, require, when


def _pulls_nothing(run: Any) -> str | Literal[False]:
    if run.parallel.sync != "store":
        return f"parallel.sync is {run.parallel.sync}"
    # With ratios, a learner takes them over before it learns, too.
    is_over = (run.parallel.pull_steps or 0) >= run.sampler.horizon
    is_idle = is_over and not run.learner.uses_ratios
    return is_idle and f"rollouts have sampler.horizon={run.sampler.horizon} steps"


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """Options of several learners. With one learner only ``sync=store`` has an effect.

    Raises:
        ValueError: a value is out of range.
    """

    sync: Literal["all_reduce", "store"] = option("all_reduce", common=True)
    """Way in which learners share their updates.
    all_reduce: they divide each batch and make one update of it together. store: each updates
    parameters in shared memory with batches of its own."""
    sync_period: int = option(1, idle=when("parallel.sync", "all_reduce"))
    """Optimizer steps of a learner between two exchanges with the store. More than 1 needs Adam."""
    pull_steps: int | None = option(None, idle=_pulls_nothing)
    """Steps of each environment after which a learner reads the store's parameters within a
    rollout. PPO and V-trace then also read them before they learn. none: a learner reads
    parameters only with its own updates."""

    def __post_init__(self) -> None:
        check_settings(self)
        require(self, "at least 1", lambda value: value >= 1, "sync_period", "pull_steps")
