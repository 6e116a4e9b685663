"""Options that other options leave without effect, which are refused when they are given."""

from __future__ import annotations

from collections.abc import Mapping

from accel_rl.config import TrainConfig
from accel_rl.envs import is_atari_game

PARALLEL_ONLY = (
    "cpus",
    "sampler.num_groups",
    "sampler.num_workers",
    "sampler.workers_per_core",
    "sampler.cores_per_worker",
    "sampler.affinity",
    "sampler.on_worker_failure",
    "sampler.max_worker_restarts",
    "sampler.step_timeout_seconds",
    "sampler.reset_timeout_seconds",
)
"""options that are for workers; three of them have an effect on serial samplers as well"""


def refuse_ineffective(config: TrainConfig, given: Mapping[str, str]) -> None:
    """Raises ValueError for one of the ``given`` options, by full key, that changes nothing."""
    never_evaluates = config.evaluation_interval == 0 and "evaluation_interval is 0"
    reasons = {
        "evaluation_steps": never_evaluates,
        "evaluation_envs": never_evaluates,
        "schedule_steps": config.learner.lr_schedule == "constant"
        and "learner.lr_schedule is constant",
        "cpus": config.sampler.affinity == "off" and "sampler.affinity is off",
        "sampler.max_worker_restarts": config.sampler.on_worker_failure == "raise"
        and "sampler.on_worker_failure is raise",
        **{f"learner.{key}": why for key, why in config.learner.ineffective().items()},
        **_idle_parallel(config),
    }
    if config.serial:
        # The limit holds for the environment that is made first, too.
        idle = set(PARALLEL_ONLY) - {"sampler.reset_timeout_seconds"}
        if config.sampler.num_groups == 1:  # what it is, and has to be with one environment
            idle.remove("sampler.num_groups")
        if config.num_learners > 1:  # which divide the cores
            idle -= {"cpus", "sampler.affinity"}
        reasons |= dict.fromkeys(idle, "serial is true")
    for key, text in given.items():
        reason = reasons.get(key)
        if key.startswith("atari.") and not is_atari_game(config.env):
            reason = f"env={config.env} is no Atari game"
        if reason:
            raise ValueError(f"{key}={text} has no effect, because {reason}; leave it out")


def _idle_parallel(config: TrainConfig) -> dict[str, str]:
    """Options of ``parallel`` that have no effect, and why."""
    reasons = {}
    if config.parallel.sync != "store":
        names = ("num_chunks", "sync_period", "pull_steps")
        reasons = dict.fromkeys(names, f"parallel.sync is {config.parallel.sync}")
    elif (
        (config.parallel.pull_steps or 0) >= config.sampler.horizon
        and not config.learner.uses_ratios  # which takes them over before it learns, too
    ):
        reasons["pull_steps"] = f"rollouts have sampler.horizon={config.sampler.horizon} steps"
    return {f"parallel.{name}": reason for name, reason in reasons.items()}
