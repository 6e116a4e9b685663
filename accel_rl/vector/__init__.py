"""Vector environments: ours, its face for Stable-Baselines3, and checks of any of them.

The face is loaded when first used, so that nobody else needs its packages.
"""

from typing import TYPE_CHECKING, Any

from accel_rl.system import extras
from accel_rl.vector.check import Finding, Report, check, check_vectoriser
from accel_rl.vector.check_env import check_env
from accel_rl.vector.vector_env import VectorEnv

if TYPE_CHECKING:
    from accel_rl.vector.sb3_vec_env import SB3VecEnv as SB3VecEnv

# Without `SB3VecEnv`, whose packages may not be installed.
__all__ = ["Finding", "Report", "VectorEnv", "check", "check_env", "check_vectoriser"]


def __getattr__(name: str) -> Any:
    if name != "SB3VecEnv":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from accel_rl.vector.sb3_vec_env import SB3VecEnv
    except ModuleNotFoundError as error:
        raise extras.missing_package(name, "sb3", error) from error
    return SB3VecEnv
