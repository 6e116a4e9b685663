"""What a vector environment does to single environments beside steps and resets.

Functions take an environment, ours or one of Gymnasium's in a `GymnasiumEnv`, and run where it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from accel_rl.envs.base import Environment
from accel_rl.system.functions import FAILURES, place_of


class Request(NamedTuple):
    """A function to call in single environments.

    Attributes:
        function: called with the environment and its arguments; or the name of a method of `Block`,
            called with the number of the environment in the block and its arguments.
        arguments: for each environment that is meant, by its column.
    """

    function: Callable[..., Any] | str
    arguments: dict[int, tuple[Any, ...]]


class Answer(NamedTuple):
    """What a call returned, or the name of its error and the message."""

    value: Any
    error: str = ""
    message: str = ""


def attempt(function: Callable[..., Any], *arguments: Any) -> Answer:
    """Call the function; return its value or its error."""
    try:
        return Answer(function(*arguments))
    except FAILURES as error:
        return Answer(None, type(error).__name__, f"{error}{place_of(error)}")


def get_attr(env: Environment, name: str) -> Any:
    """Return an attribute of the environment or of one of its wrappers."""
    inner: Any = getattr(env, "env", None)
    if hasattr(inner, "get_wrapper_attr"):
        return inner.get_wrapper_attr(name)
    return getattr(env, name)


def has_attr(env: Environment, name: str) -> bool:
    """Return whether the environment or one of its wrappers has an attribute."""
    inner: Any = getattr(env, "env", None)
    has = getattr(inner, "has_wrapper_attr", partial(hasattr, env))
    return bool(has(name))


def set_attr(env: Environment, name: str, value: Any) -> None:
    """Set an attribute of the environment or of the wrapper that has it."""
    inner: Any = getattr(env, "env", None)
    if hasattr(inner, "set_wrapper_attr"):
        inner.set_wrapper_attr(name, value)
    else:
        setattr(env, name, value)


def call(env: Environment, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Return what a method returns, or an attribute that is no method."""
    found = get_attr(env, name)
    return found(*arguments, **keywords) if callable(found) else found


def reach_batch(
    batch: Any, function: Callable[..., Any] | str, given: dict[int, Any], n: int
) -> dict[int, Any]:
    """Return what `get_attr`, `set_attr` or `call` returns for environments of a batch.

    A batch may have methods of these names, as `gymnasium.vector.SyncVectorEnv` has; so may what it
    has as ``env``. Otherwise its environments share the attributes of the innermost ``env``.

    Args:
        batch: the simulators.
        function: one of the three.
        given: the arguments, by the number of the environment in the batch.
        n: the number of environments in the batch.

    Raises:
        TypeError: another function, a part of a batch, or a shared attribute with several values.
    """
    if not given:
        return {}
    if function is is_wrapped:
        return dict.fromkeys(given, False)
    is_read = function in (get_attr, has_attr)
    if not is_read and (function not in (set_attr, call) or len(given) < n):
        raise TypeError("environments of a batch cannot be reached one by one")
    assert callable(function)
    while not hasattr(batch, function.__name__) and hasattr(batch, "env"):
        batch = batch.env
    own = getattr(batch, function.__name__, None)
    first = next(iter(given.values()))
    if function is set_attr:
        values = [value for _, value in given.values()]
        if own is not None:
            own(first[0], values)
        elif all(value is first[1] or np.array_equal(value, first[1]) for value in values):
            setattr(batch, *first)
        else:
            raise TypeError(f"environments of a batch share {first[0]}: give one value")
        return dict.fromkeys(given)
    if own is None:
        return dict.fromkeys(given, function(batch, *first))
    name, arguments, keywords = (*first, (), {})[:3]
    found = own(name, *arguments, **keywords)
    return {i: found[i] for i in given}


def is_wrapped(env: Environment, wrapper: type[Any]) -> bool:
    """Whether the environment of Gymnasium has such a wrapper."""
    inner: Any = getattr(env, "env", None)
    while inner is not None and not isinstance(inner, wrapper):
        inner = inner.__dict__.get("env")
    return inner is not None


def set_options(env: Any, options: dict[str, Any]) -> None:
    """Give options to the next reset."""
    env.options = options
