"""The error for an environment that cannot be used."""

from __future__ import annotations


class EnvError(ValueError):
    """An environment raised an error, or broke what it had promised.

    The message names the environment and the call; what the environment itself raised is chained.
    """


FAILURES = (Exception, SystemExit)
"""of code that is not ours: where that calls sys.exit(), a run is to say so, not to end quietly"""


def env_failure(name: str, call: str, error: BaseException) -> EnvError:
    """The error to raise ``from error`` when environment ``name`` raised it in ``call``."""
    return EnvError(f"environment {name} failed in {call}: {type(error).__name__}: {error}")
