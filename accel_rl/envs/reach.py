"""Calls of a vector environment in single environments, beside steps and resets.

Functions take an environment, ours or one of Gymnasium's in a `GymnasiumEnv`, and run where it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from accel_rl.envs.base import Environment
from accel_rl.system.functions import FAILURES, place_of


class Request(NamedTuple):
    """A function to call in single environments."""

    # called with the environment and its arguments; or the name of a method of `Block`, called with
    # the number of the environment in the block and its arguments
    function: Callable[..., Any] | str
    arguments: dict[int, tuple[Any, ...]]  # for each environment to call, by its column


class Answer(NamedTuple):
    """The result of a call, or the name of its error and the message."""

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


def is_wrapped(env: Environment, wrapper: type[Any]) -> bool:
    """Whether the environment of Gymnasium has such a wrapper."""
    inner: Any = getattr(env, "env", None)
    while inner is not None and not isinstance(inner, wrapper):
        inner = inner.__dict__.get("env")
    return inner is not None


def set_options(env: Any, options: dict[str, Any]) -> None:
    """Give options to the next reset."""
    env.options = options


def keep_options(env: Any, options: dict[str, Any]) -> None:
    """Give options to all resets from the next one on."""
    env.keep_options(options)
