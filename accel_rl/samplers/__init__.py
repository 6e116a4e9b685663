"""Samplers: simulators, many to a process, and the policies that act in them.

Names are loaded when first used, so that a worker process, which imports modules of this package,
never loads torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from accel_rl.system import extras

if TYPE_CHECKING:
    from accel_rl.samplers.action_server import ActionServer
    from accel_rl.samplers.base import (
        Episode,
        Policy,
        PolicyInput,
        PolicyOutput,
        SamplerConfig,
        SamplerError,
        SamplerState,
        SamplerTimes,
        WorkerError,
    )
    from accel_rl.samplers.evaluation import Evaluation, evaluate
    from accel_rl.samplers.local_pool import LocalPool, Pool
    from accel_rl.samplers.pool import WorkerPool
    from accel_rl.samplers.sampler import ParallelSampler, RolloutSampler, SerialSampler

_MODULES = {
    "PolicyOutput": "base",
    "ActionServer": "action_server",
    "Episode": "base",
    "Evaluation": "evaluation",
    "LocalPool": "local_pool",
    "ParallelSampler": "sampler",
    "Policy": "base",
    "PolicyInput": "base",
    "Pool": "local_pool",
    "RolloutSampler": "sampler",
    "SamplerConfig": "base",
    "SamplerError": "base",
    "SamplerState": "base",
    "SamplerTimes": "base",
    "SerialSampler": "sampler",
    "WorkerError": "base",
    "WorkerPool": "pool",
    "evaluate": "evaluation",
}


__all__ = [
    "ActionServer",
    "Episode",
    "Evaluation",
    "LocalPool",
    "ParallelSampler",
    "Policy",
    "PolicyInput",
    "PolicyOutput",
    "Pool",
    "RolloutSampler",
    "SamplerConfig",
    "SamplerError",
    "SamplerState",
    "SamplerTimes",
    "SerialSampler",
    "WorkerError",
    "WorkerPool",
    "evaluate",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        raise extras.missing_package(name, "train", error) from error
    return getattr(module, name)
