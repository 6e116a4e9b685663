"""Checks of the arguments of `QueuedSampler`."""

from __future__ import annotations

from accel_rl.options import check_kind, format_value
from accel_rl.samplers.base import SamplerConfig


def check_queued(config: SamplerConfig, max_agents: int) -> None:
    """Raise ValueError if an option of ``config`` has no use with agents that never wait."""
    check_kind(int, max_agents=max_agents)
    if config.reset_policy != "immediate":
        raise ValueError(
            f"reset_policy={config.reset_policy} needs rollouts, and agents of GA3C give none; use "
            f"reset_policy=immediate"
        )
    if config.num_workers not in (None, config.num_groups):
        raise ValueError(
            f"num_workers is {config.num_workers}; an agent of GA3C is a worker and a group, and "
            f"num_groups={config.num_groups}: leave num_workers out"
        )
    if config.affinity == "rotate":
        raise ValueError(
            "affinity=rotate moves the one thread of a policy from core to core, and GA3C has "
            "several; use affinity=auto or affinity=off"
        )
    for name, unused in {"one_group_per_worker": False, "cores_per_worker": 1}.items():
        value = getattr(config, name)
        if value != unused:
            raise ValueError(f"{name} is {format_value(value)}; GA3C has no use for it")
    if max_agents < config.num_groups:
        raise ValueError(
            f"max_agents is {max_agents}, less than the num_groups={config.num_groups} agents at "
            f"the start; use {config.num_groups} or more"
        )


def check_queues(max_prediction_batch: int, training_queue_size: int, gamma: float) -> None:
    """Raise ValueError if an argument is out of range."""
    sizes = {
        "max_prediction_batch": max_prediction_batch,
        "training_queue_size": training_queue_size,
    }
    check_kind(int, **sizes)
    check_kind(float, gamma=gamma)
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} is {size}; it must be at least 1")
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma is {gamma}; it must be in 0 .. 1")
