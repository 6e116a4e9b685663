"""The error for an environment that cannot be used, and the names that a user may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from accel_rl.system.functions import FAILURES, place_of


class EnvError(ValueError):
    """An environment broke its interface, or could not be made or looked at.

    The message names the environment. An exception of the environment itself is chained.
    """


def failure(name: str, call: str, error: BaseException) -> str:
    """Return the text of a message about ``error`` of environment ``name``, without the name."""
    if isinstance(error, EnvError):
        return str(error).removeprefix(f"environment {name}").lstrip(": ")
    try:
        return f"failed in {call}: {type(error).__name__}: {error}{place_of(error)}"
    except FAILURES as other:  # it has no text
        return failure(name, call, other)


@contextmanager
def naming(name: str, call: str) -> Iterator[None]:
    """Raise errors of environment ``name`` in its method ``call`` as `EnvError`."""
    try:
        yield
    except EnvError:
        raise
    except FAILURES as error:
        raise EnvError(f"environment {name} {failure(name, call, error)}") from error


def close_names(name: str, known: Iterable[str]) -> str:
    """Return up to three of ``known`` that are close to ``name``, joined by "or"."""
    by_lower = {word.lower(): word for word in known}
    close = difflib.get_close_matches(name.lower(), by_lower)
    return " or ".join(by_lower[word] for word in close)
