"""Vector environments: ours, its faces for other libraries, and a kit that checks any of them.

The faces are loaded when first used, so that nobody needs the packages of one that is not used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from accel_rl.system import extras
from accel_rl.vector.check import CountingEnv, Finding, Report, check, check_vectoriser
from accel_rl.vector.vector_env import VectorEnv

if TYPE_CHECKING:
    from accel_rl.vector.sb3_vec_env import SB3VecEnv as SB3VecEnv
    from accel_rl.vector.torchrl_env import TorchRLEnv as TorchRLEnv

# The module of each, and the extra that installs the packages of that module.
_MODULES = {
    "SB3VecEnv": ("sb3_vec_env", "sb3"),
    "TorchRLEnv": ("torchrl_env", "torchrl"),
}

# Without `SB3VecEnv` and `TorchRLEnv`, whose packages may not be installed.
__all__ = ["CountingEnv", "Finding", "Report", "VectorEnv", "check", "check_vectoriser"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module_name, extra = _MODULES[name]
    try:
        module = import_module(f"{__name__}.{module_name}")
    except ModuleNotFoundError as error:
        raise extras.missing_package(name, extra, error) from error
    return getattr(module, name)
