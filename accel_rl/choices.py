"""Settings that are one of a few names."""

from __future__ import annotations

import ast
from dataclasses import fields
from functools import cache
from typing import Any, Literal, get_args, get_origin


def check_choices(config: Any) -> None:
    """Look at all fields of a dataclass that are declared as a ``Literal``.

    Raises:
        ValueError: the value of one is none of its choices.
    """
    kind: type = type(config)
    for name, choices in _choices(kind).items():
        if getattr(config, name) not in choices:
            raise ValueError(
                f"{name} is {getattr(config, name)!r}; it must be {' or '.join(choices)}"
            )


@cache
def _choices(kind: type) -> dict[str, tuple[str, ...]]:
    """By the names of the fields. Other annotations may not be known here, and are left alone."""
    found = {}
    for field in fields(kind):
        declared: Any = field.type
        if isinstance(declared, str) and declared.startswith("Literal["):
            found[field.name] = tuple(ast.literal_eval(declared.removeprefix("Literal")))
        elif get_origin(declared) is Literal:
            found[field.name] = get_args(declared)
    return found
