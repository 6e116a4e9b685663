"""Settings and arguments of the kind that they are declared, also where a program gives them."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import field, fields
from functools import cache, partial
from operator import attrgetter
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np

Kind = Literal["identity", "course", "engine", "watching", "learning"]
"""What an option is about, by which resuming and plotting go.

``identity``: which run it is; curves are means over such runs. ``course``: how long a run goes on,
and with how many learners. ``engine``: where and how fast it computes, not what it learns.
``watching``: what is recorded of it. ``learning``: what is learned. A resumed run may change
course, engine and watching; runs that differ in engine or watching make one curve over steps.
"""
Idle = Callable[[Any], str | Literal[False]]
"""given a whole config: why an option of it has no effect; False: it has one"""

_LARGEST = float(np.finfo(np.float32).max)  # number with which torch computes


def option(
    default: Any, kind: Kind = "learning", *, idle: Idle | None = None, common: bool = False
) -> Any:
    """A field of a config, with what is known of it as an option.

    Args:
        default: its default value.
        kind: what it is about.
        idle: why it has no effect in a config, if it has none; None: it always has one.
        common: whether ``--help`` shows it; others are in ``--help=all``.
    """
    return field(default=default, metadata={"kind": kind, "idle": idle, "common": common})


def when(key: str, value: object) -> Idle:
    """For `option`: it has no effect where the option ``key``, dotted, has this value."""
    is_plain = value is None or isinstance(value, bool)
    reason = f"{key} is {str(value).lower() if is_plain else value}"
    read = attrgetter(key)
    return lambda run: read(run) == value and reason


def check_settings(config: Any) -> None:
    """Look at all fields of a dataclass that are declared as names, numbers, booleans or text, or
    as tuples of these.

    NumPy's numbers become Python's own, which alone can be saved, and lists tuples.

    Raises:
        ValueError: the value of one is of another kind, none of its names, or too large.
    """
    kind: type = type(config)
    for name, check in _declared(kind).items():
        value = getattr(config, name)
        _refuse_unless(check, name, value)
        if isinstance(value, float) and _LARGEST < abs(value) < math.inf:
            raise ValueError(
                f"{name} is {value:g}; it must be at most {_LARGEST:.2g}, as in float32"
            )
        if isinstance(value, str) and not _is_utf8(value):
            raise ValueError(
                f"{name} is {value!r}; it must be text in UTF-8, in which files of options are "
                "written; use another name"
            )
        if isinstance(value, np.generic):
            object.__setattr__(config, name, value.item())  # it may be frozen
        elif isinstance(value, list):
            object.__setattr__(config, name, tuple(value))


def check_kind(declared: Any, **given: object) -> None:
    """Look at arguments of a function: all are ``declared``, an annotation.

    Raises:
        ValueError: one is not.
    """
    check = _check_of(declared)
    assert check is not None, declared
    for name, value in given.items():
        _refuse_unless(check, name, value)


def check_seed(seed: int) -> None:
    """Raises ValueError unless it is an integer of at least 0, as generators take it."""
    check_kind(int, seed=seed)
    if seed < 0:
        raise ValueError(f"seed is {seed}; it must be at least 0")


_Check = tuple[Callable[[object], bool], str]
"""whether a value is allowed, and what is in words"""


def _refuse_unless(check: _Check, name: str, value: object) -> None:
    is_allowed, allowed = check
    if not is_allowed(value):
        raise ValueError(f"{name} is {value!r}; it must be {allowed}")


@cache
def _declared(kind: type) -> dict[str, _Check]:
    """By the names of the fields. Other annotations may not be known here, and are left alone."""
    checks = {each.name: _check_of(_annotation(kind, each.name)) for each in fields(kind)}
    return {name: check for name, check in checks.items() if check is not None}


def _annotation(kind: type, name: str) -> Any:
    """What a field is declared as, also in quotes; the text if its names are not known there."""
    owner = next(each for each in kind.__mro__ if name in inspect.get_annotations(each))
    declared = inspect.get_annotations(owner)[name]
    if isinstance(declared, str):
        with suppress(Exception):  # of names that only type checkers import, say
            return eval(declared, vars(sys.modules[owner.__module__]), dict(vars(owner)))
    return declared


def _check_of(declared: Any) -> _Check | None:
    """``declared``: an annotation."""
    if get_origin(declared) is Annotated:
        return _check_of(get_args(declared)[0])
    is_union = get_origin(declared) in (Union, UnionType)
    types: list[type] = []
    names: list[Any] = []
    words: list[str] = []
    for each in get_args(declared) if is_union else (declared,):
        if get_origin(each) is Literal:
            names += get_args(each)
        elif get_origin(each) is tuple and not is_union:
            element, *more = get_args(each)
            if element not in _PLAIN or more != [...]:
                return None
            return partial(_are_all, types=_PLAIN[element][0]), _EACH.format(_PLAIN[element][1])
        elif each is NoneType:
            types.append(NoneType)
        elif isinstance(each, type) and each in _PLAIN:
            types += _PLAIN[each][0]
            words.append(_PLAIN[each][1])
        else:
            return None
    text = [" or ".join(words)] if words else []
    text += [" or ".join(map(str, names))] if names else []
    text += ["None"] if NoneType in types else []
    return lambda value: value in names or _is_one(value, tuple(types)), ", or ".join(text)


def _is_one(value: object, types: tuple[type, ...]) -> bool:
    if isinstance(value, bool) and bool not in types:  # which is an int, too
        return False
    return isinstance(value, types)


def _is_utf8(text: str) -> bool:
    """False for names of files that Python could not decode."""
    return text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text)


def _are_all(value: object, types: tuple[type, ...]) -> bool:
    return isinstance(value, tuple | list) and all(_is_one(each, types) for each in value)


_EACH = "a tuple, each of it {}"
_PLAIN: dict[type, tuple[tuple[type, ...], str]] = {
    int: ((int, np.integer), "an integer"),
    float: ((float, int, np.floating, np.integer), "a number"),
    bool: ((bool, np.bool_), "True or False"),
    str: ((str,), "text"),
}
