"""Accelerated deep reinforcement learning on one machine with many CPU cores and GPUs.

Names are loaded when they are first used: the samplers and `VectorEnv` need no torch.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from accel_rl.system import extras

if TYPE_CHECKING:
    from accel_rl.api import Run, Sweep, evaluate, load, sweep, train
    from accel_rl.samplers import ParallelSampler, SerialSampler
    from accel_rl.vector import VectorEnv

__version__ = "0.3.0"

__all__ = [
    "ParallelSampler",
    "Run",
    "SerialSampler",
    "Sweep",
    "VectorEnv",
    "__version__",
    "evaluate",
    "load",
    "sweep",
    "train",
]

_MODULES = {"ParallelSampler": "samplers", "SerialSampler": "samplers", "VectorEnv": "vector"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")  # `accel_rl.__main__` says why
    try:
        module = import_module(f"{__name__}.{_MODULES.get(name, 'api')}")
    except ModuleNotFoundError as error:
        raise extras.missing_package(f"{__name__}.{name}", "train", error) from error
    return getattr(module, name)
