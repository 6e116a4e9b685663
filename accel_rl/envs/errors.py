"""The error for an environment that cannot be used."""

from __future__ import annotations

from accel_rl.functions import place_of


class EnvError(ValueError):
    """An environment raised an error, or broke what it had promised.

    The message names the environment and the call; what the environment itself raised is chained.
    """


def env_failure(name: str, call: str, error: BaseException) -> EnvError:
    """The error to raise ``from error`` when environment ``name`` raised it in ``call``."""
    what = f"{type(error).__name__}: {error}{place_of(error)}"
    return EnvError(f"environment {name} failed in {call}: {what}")
