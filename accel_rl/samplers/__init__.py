"""Samplers: simulators, many to a process, and the policies that act in them.

Names are loaded when first used, so that a worker process, which imports modules of this package,
never loads torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accel_rl.samplers.action_server import ActionServer
    from accel_rl.samplers.base import (
        Episode,
        Policy,
        PolicyInput,
        Sampler,
        SamplerConfig,
        SamplerTimes,
    )
    from accel_rl.samplers.closable_queue import QueueClosed
    from accel_rl.samplers.errors import SamplerError, WorkerError
    from accel_rl.samplers.evaluation import Evaluation, evaluate
    from accel_rl.samplers.parallel import ParallelSampler
    from accel_rl.samplers.pool import WorkerPool
    from accel_rl.samplers.queued import Prediction, QueuedSampler
    from accel_rl.samplers.saving import SamplerState
    from accel_rl.samplers.sb3_vec_env import SB3VecEnv as SB3VecEnv
    from accel_rl.samplers.serial import SerialSampler
    from accel_rl.samplers.torchrl_env import TorchRLEnv as TorchRLEnv
    from accel_rl.samplers.vector_env import VectorEnv

_MODULES = {
    "ActionServer": "action_server",
    "Episode": "base",
    "Evaluation": "evaluation",
    "ParallelSampler": "parallel",
    "Policy": "base",
    "PolicyInput": "base",
    "Prediction": "queued",
    "QueueClosed": "closable_queue",
    "QueuedSampler": "queued",
    "SB3VecEnv": "sb3_vec_env",
    "Sampler": "base",
    "SamplerConfig": "base",
    "SamplerError": "errors",
    "SamplerState": "saving",
    "SamplerTimes": "base",
    "SerialSampler": "serial",
    "TorchRLEnv": "torchrl_env",
    "VectorEnv": "vector_env",
    "WorkerError": "errors",
    "WorkerPool": "pool",
    "evaluate": "evaluation",
}

# Without `SB3VecEnv` and `TorchRLEnv`, whose packages may not be installed.
__all__ = [
    "ActionServer",
    "Episode",
    "Evaluation",
    "ParallelSampler",
    "Policy",
    "PolicyInput",
    "Prediction",
    "QueueClosed",
    "QueuedSampler",
    "Sampler",
    "SamplerConfig",
    "SamplerError",
    "SamplerState",
    "SamplerTimes",
    "SerialSampler",
    "VectorEnv",
    "WorkerError",
    "WorkerPool",
    "evaluate",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
