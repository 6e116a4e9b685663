"""Packages that only a part of accel_rl needs, and the message if one of them is missing.

`pip install accel_rl` installs what samplers and vector environments need. The extras in
``pyproject.toml`` add the rest, so that nobody has to install torch to step environments.
"""

from __future__ import annotations

TRAINING_PACKAGES = ("PIL", "cv2", "matplotlib", "omegaconf", "rich", "tensorboard", "torch")
"""modules that the commands of accel_rl import, from the extra ``train``"""


def how_to_install(extra: str) -> str:
    """Return the command that installs the packages of ``extra``."""
    return f'pip install "accel_rl[{extra}]"'


def missing_package(what: str, extra: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return the error for a part of accel_rl whose packages are not installed."""
    message = f"{what} needs {error.name}, which is not installed: {how_to_install(extra)}"
    return ModuleNotFoundError(message, name=error.name)
