"""What an option of a training run is about: the one table by which resuming and plotting go.

``identity``
    Which run it is. Curves are means over such runs.
``course``
    How long a run goes on, and with how many learners. A resumed run may change it.
``engine``
    Where and how fast a run computes, not what it learns. A resumed run may change it, and runs
    that differ in it make one curve over steps.
``watching``
    What is recorded of a run. A resumed run may change it, and runs that differ in it make one
    curve over steps.

Every other option changes what is learned.
"""

from __future__ import annotations

from typing import Literal

Kind = Literal["identity", "course", "engine", "watching"]

_KINDS: dict[Kind, tuple[str, ...]] = {
    "identity": ("seed", "run_dir", "resume", "trust"),
    "course": ("total_steps", "schedule_steps", "learners"),
    "engine": (
        "device",
        "capture",
        "gpus",  # where it says how many learners there are, they count as if given
        "serial",
        "cpus",
        "tune",
        "sampler.num_groups",
        "sampler.num_workers",
        "sampler.workers_per_core",
        "sampler.affinity",
        "sampler.on_worker_failure",
        "sampler.max_worker_restarts",
        "sampler.step_timeout_seconds",
        "sampler.reset_timeout_seconds",
        "sampler.final_observation_slots",
        "atari.cached_starts",
        "parallel.learner_timeout_seconds",
        "parallel.on_learner_failure",
        "learner.replay_device",
        "learner.save_replay",
        "learner.num_predictors",
        "learner.num_trainers",
        "learner.max_agents",
        "learner.tuner",
        "learner.tuner_interval_seconds",
    ),
    "watching": (
        "info_keys",
        "log_interval",
        "checkpoint_interval",
        "num_checkpoints",
        "evaluation_interval",
        "evaluation_steps",
        "evaluation_envs",
        "learner.log_norms",
        "learner.gradient_cosine_interval",
    ),
}


def options_of(*kinds: Kind) -> frozenset[str]:
    """Return the full keys of all options of these kinds."""
    return frozenset(key for kind in kinds for key in _KINDS[kind])
