"""The error for an environment that cannot be used, and the names that a user may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from accel_rl.system.functions import place_of


class EnvError(ValueError):
    """An environment raised an error, or broke its interface.

    The message names the environment and the call. The environment's own exception is chained.
    """


def env_failure(name: str, call: str, error: BaseException) -> EnvError:
    """The error to raise ``from error`` when environment ``name`` raised it in ``call``."""
    what = f"{type(error).__name__}: {error}{place_of(error)}"
    return EnvError(f"environment {name} failed in {call}: {what}")


def close_names(name: str, known: Iterable[str]) -> str:
    """Up to three of ``known`` that are close to ``name``, joined by "or"; empty if none is."""
    by_lower = {word.lower(): word for word in known}
    close = difflib.get_close_matches(name.lower(), by_lower)
    return " or ".join(by_lower[word] for word in close)
