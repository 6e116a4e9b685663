"""The command that checks an environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from accel_rl.cli.parse import override
from accel_rl.cli.suggest import split
from accel_rl.options import check_settings
from accel_rl.system.console import print_text, tell_error
from accel_rl.vector.check_env import check_env


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """Options of ``accel_rl check``."""

    env: str = "CartPole-v1"
    """Environment, as in training: a name, a Gymnasium id, module:function, envpool:TASK."""
    num_envs: int = 2
    """Number of environments to play."""
    num_steps: int = 300
    """Steps to play in each. Some episodes should end."""
    seed: int = 7
    """Seed of environments and actions."""
    timeout: float = 60.0
    """Seconds that the test of one rule may take."""

    def __post_init__(self) -> None:
        check_settings(self)
        for name in ("num_envs", "num_steps", "timeout"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")


def run_check(arguments: Sequence[str]) -> int:
    """Print what is found about an environment; return 1 if something is wrong with it."""
    try:
        options = override(CheckOptions(), split(arguments))
        report = check_env(**vars(options))
    except ValueError as error:
        tell_error(error, ["check", *arguments])
        return 1
    print_text(str(report))
    return 1 if report.broken else 0
