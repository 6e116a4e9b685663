"""Options that other options leave without effect, which are refused when they are given."""

from __future__ import annotations

from collections.abc import Mapping

from accel_rl.algos import A2CConfig, ActorCriticConfig, DQNConfig, GA3CConfig, PPOConfig
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
        "learner.lr_base": isinstance(config.learner, A2CConfig)
        and config.learner.lr is not None
        and "learner.lr is given",
        "cpus": config.sampler.affinity == "off" and "sampler.affinity is off",
        "sampler.max_worker_restarts": config.sampler.on_worker_failure == "raise"
        and "sampler.on_worker_failure is raise",
        "learner.gradient_norm_eps": config.learner.max_gradient_norm is None
        and "learner.max_gradient_norm is none",
        "learner.advantage_eps": isinstance(config.learner, ActorCriticConfig)
        and not config.learner.normalize_advantage
        and "learner.normalize_advantage is false",
        **_idle_parallel(config),
    }
    if isinstance(config.learner, DQNConfig):
        reasons |= {f"learner.{key}": why for key, why in _idle(config.learner).items()}
    if isinstance(config.learner, GA3CConfig) and not config.learner.tuner:
        names = ("tuner_interval_seconds", "max_agents")
        reasons |= {f"learner.{name}": "learner.tuner is false" for name in names}
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


def _idle(learner: DQNConfig) -> dict[str, str]:
    """Options of Q-learning that others leave without effect, and which."""
    reasons: dict[str, str] = {}
    if learner.num_atoms == 1:
        reasons |= dict.fromkeys(("v_min", "v_max"), "learner.num_atoms is 1")
    else:
        reasons["huber_delta"] = "learner.num_atoms is above 1"
    if not learner.prioritized:
        names = ("alpha", "beta", "beta_steps", "default")
        reasons |= dict.fromkeys((f"priority_{x}" for x in names), "learner.prioritized is false")
    if learner.optimizer == "adam":
        reasons |= dict.fromkeys(("rmsprop_decay", "rmsprop_eps"), "learner.optimizer is adam")
    else:
        reasons["adam_eps"] = "learner.optimizer is rmsprop"
    return reasons


def _idle_parallel(config: TrainConfig) -> dict[str, str]:
    """Options of ``parallel`` that have no effect, and why."""
    reasons = {}
    if config.parallel.sync != "store":
        names = ("num_chunks", "sync_period", "pull_steps")
        reasons = dict.fromkeys(names, f"parallel.sync is {config.parallel.sync}")
    elif (
        (config.parallel.pull_steps or 0) >= config.sampler.horizon
        and not isinstance(config.learner, PPOConfig)  # which takes them over before it learns, too
    ):
        reasons["pull_steps"] = f"rollouts have sampler.horizon={config.sampler.horizon} steps"
    return {f"parallel.{name}": reason for name, reason in reasons.items()}
