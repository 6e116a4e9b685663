"""Settings in dataclasses, looked at when they are made: also those that a program gives."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from numbers import Integral, Real
from typing import Any

import numpy as np


def check_settings(config: Any) -> None:
    """Look at all fields of a dataclass that are declared as names, numbers, booleans or text.

    Raises:
        ValueError: the value of one is of another kind, or none of its names.
    """
    kind: type = type(config)
    for name, (is_allowed, allowed) in _declared(kind).items():
        value = getattr(config, name)
        if not is_allowed(value):
            raise ValueError(f"{name} is {value!r}; it must be {allowed}")


_Check = tuple[Callable[[object], bool], str]
"""whether a value is allowed, and what is in words"""


@cache
def _declared(kind: type) -> dict[str, _Check]:
    """By the names of the fields. Other annotations may not be known here, and are left alone."""
    checks = {field.name: _check_of(str(field.type)) for field in fields(kind)}
    return {name: check for name, check in checks.items() if check is not None}


def _check_of(declared: str) -> _Check | None:
    """``declared``: an annotation as it is written."""
    if declared.startswith("Literal["):
        names = ast.literal_eval(declared.removeprefix("Literal"))
        return lambda value: value in names, " or ".join(names)
    declared, optional, _ = declared.partition(" | None")
    if declared not in _PLAIN:
        return None
    is_plain, words = _PLAIN[declared]
    if optional:
        return lambda value: value is None or is_plain(value), f"{words}, or None"
    return is_plain, words


def _is_boolean(value: object) -> bool:
    return isinstance(value, bool | np.bool_)


_PLAIN: dict[str, _Check] = {
    "int": (lambda value: isinstance(value, Integral) and not _is_boolean(value), "an integer"),
    "float": (lambda value: isinstance(value, Real) and not _is_boolean(value), "a number"),
    "bool": (_is_boolean, "True or False"),
    "str": (lambda value: isinstance(value, str), "text"),
}
