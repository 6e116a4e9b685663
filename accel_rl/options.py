"""The options of a config: every leaf of nested dataclasses, what each is about, and its checks."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from operator import attrgetter
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

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

_PLAIN: dict[Any, tuple[tuple[type, ...], str]] = {
    int: ((int, np.integer), "integer"),
    float: ((float, int, np.floating, np.integer), "number"),
    bool: ((bool, np.bool_), "true|false"),
    str: ((str,), "text"),
    NoneType: ((NoneType,), "none"),
}
"""by the annotation of an option: types of its values, and what these are in words"""


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
    reason = f"{key} is {format_value(value)}"
    read = attrgetter(key)
    return lambda run: read(run) == value and reason


@dataclass(frozen=True)
class Option:
    """One option of the dataclass ``owner``. ``key`` is dotted (``sampler.num_envs``); ``type`` its
    annotation.

    ``kind``, ``idle``, ``is_common``: as `option` says. Options of a user's own config are common,
    and of what is learned unless they say otherwise.
    """

    key: str
    type: Any
    owner: type
    default: Any
    kind: Kind = "learning"
    idle: Idle | None = None
    is_common: bool = True

    @property
    def doc(self) -> str:
        """The string under the field, empty if there is none."""
        return field_docs(self.owner).get(self.name, "")

    @property
    def group(self) -> str:
        """The group it is in, empty at the top."""
        return self.key.rpartition(".")[0]

    @property
    def name(self) -> str:
        """The key without its group."""
        return self.key.rpartition(".")[2]

    @property
    def is_list(self) -> bool:
        """Whether one value of it is a list."""
        return any(get_origin(each) is tuple for each in alternatives(self.type))

    @property
    def type_name(self) -> str:
        """What may be given, in words."""
        return _type_name(self.type)


def list_options(config: object, group: str = "", idle: Idle | None = None) -> list[Option]:
    """Return an `Option` for every leaf of ``config``, in the order of the fields."""
    assert is_dataclass(config)
    cls: type = type(config)
    hints = _hints(cls)
    options = []
    for each in fields(config):
        value, known = getattr(config, each.name), each.metadata
        key = f"{group}.{each.name}" if group else each.name
        of_field = known.get("idle") or idle
        if is_dataclass(value):
            options += list_options(value, key, of_field)
            continue
        is_common = known.get("common", not cls.__module__.startswith("accel_rl."))
        kind = known.get("kind", "learning")
        options.append(Option(key, hints[each.name], cls, value, kind, of_field, is_common))
    return options


@functools.cache
def field_docs(cls: type) -> dict[str, str]:
    """The string under each field of a dataclass, base classes included, on one line each.

    A field of the user's without such a string is left out.
    """
    docs: dict[str, str] = {}
    for each in filter(is_dataclass, reversed(cls.__mro__)):
        try:
            body: Any = ast.parse(textwrap.dedent(inspect.getsource(each))).body[0]
        except (OSError, SyntaxError):  # a class of the user's that is in no file
            continue
        names = {field.name for field in fields(each)}
        for statement, below in zip(body.body, body.body[1:], strict=False):
            name = getattr(getattr(statement, "target", None), "id", None)
            if name in names and isinstance(getattr(below, "value", None), ast.Constant):
                docs[str(name)] = " ".join(str(below.value.value).split())
    return docs


def format_value(value: Any) -> str:
    """A value as it would be written on the command line."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return "[" + ",".join(format_value(each) for each in value) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def check_settings(config: Any) -> None:
    """Look at all fields of a dataclass that are declared as names, numbers, booleans or text, or
    as tuples of these.

    NumPy's numbers become Python's own, which alone can be saved, and lists tuples.
    """
    cls: type = type(config)
    hints = _hints(cls)
    for name in (each.name for each in fields(config)):
        value = getattr(config, name)
        check_kind(hints[name], **{name: value})
        if isinstance(value, str) and not value.isascii() and "\ud800" <= max(value) <= "\udfff":
            raise ValueError(
                f"{name} is {value!r}; it must be text in UTF-8, in which files of options are "
                "written; use another name"
            )
        if isinstance(value, np.generic):
            object.__setattr__(config, name, value.item())  # it may be frozen
        elif isinstance(value, list):
            object.__setattr__(config, name, tuple(value))


def require(config: object, what: str, holds: Callable[[float], bool], *names: str) -> None:
    """Raise ValueError for the first of the fields ``names`` that is a number and not ``what``."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not holds(value):
            raise ValueError(f"{name} is {value}; it must be {what}")


def check_kind(declared: Any, **given: object) -> None:
    """Raise ValueError unless all the ``given`` arguments are as ``declared``, an annotation."""
    for name, value in given.items():
        if not _is_of(declared, value):
            raise ValueError(f"{name} is {value!r}; it must be: {_type_name(declared)}")


def check_seed(seed: int) -> None:
    """Raises ValueError unless it is an integer of at least 0, as generators take it."""
    check_kind(int, seed=seed)
    if seed < 0:
        raise ValueError(f"seed is {seed}; it must be at least 0")


_hints = functools.cache(get_type_hints)


def alternatives(declared: Any) -> tuple[Any, ...]:
    """Return the members of a union that is the type of an option, else the type alone."""
    if get_origin(declared) is Annotated:
        return alternatives(get_args(declared)[0])
    return get_args(declared) if get_origin(declared) in (Union, UnionType) else (declared,)


def _is_of(declared: Any, value: object) -> bool:
    """Whether ``value`` is as ``declared``; True where that is no annotation of an option."""
    for kind in alternatives(declared):
        arguments = get_args(kind)
        if get_origin(kind) is Literal:
            fits = value in arguments
        elif get_origin(kind) is tuple and isinstance(value, tuple | list):
            fits = all(_is_of(arguments[0], each) for each in value)
        elif kind in _PLAIN:  # a bool is an int, too
            fits = isinstance(value, _PLAIN[kind][0]) and (kind is bool or type(value) is not bool)
        else:
            fits = get_origin(kind) is not tuple
        if fits:
            return True
    return False


def _type_name(declared: Any) -> str:
    if len(kinds := alternatives(declared)) > 1:
        return " or ".join(map(_type_name, kinds))
    (kind,) = kinds
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    if get_origin(kind) is tuple:
        return f"list of {_type_name(get_args(kind)[0])}"
    return _PLAIN[kind][1] if kind in _PLAIN else str(kind)
