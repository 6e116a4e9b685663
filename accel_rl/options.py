"""The options of a config: every leaf of nested dataclasses, and what each is about."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import types
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from accel_rl.settings import Idle, Kind


@dataclass(frozen=True)
class Option:
    """One option. ``key`` is dotted (``sampler.num_envs``); ``type`` its annotation.

    ``kind``, ``idle``, ``is_common``: as `accel_rl.settings.option` says. Options of a user's own
    config are common, and of what is learned unless they say otherwise.
    """

    key: str
    type: Any
    doc: str
    default: Any
    kind: Kind = "learning"
    idle: Idle | None = None
    is_common: bool = True

    @property
    def group(self) -> str:
        """The group it is in, empty at the top."""
        return self.key.rpartition(".")[0]

    @property
    def name(self) -> str:
        """The key without its group."""
        return self.key.rpartition(".")[2]

    @property
    def alternatives(self) -> tuple[Any, ...]:
        """The members of a union, else the type alone."""
        is_union = get_origin(self.type) in (Union, types.UnionType)
        return get_args(self.type) if is_union else (self.type,)

    @property
    def is_list(self) -> bool:
        """Whether one value of it is a list."""
        return any(get_origin(each) is tuple for each in self.alternatives)

    @property
    def type_name(self) -> str:
        """What may be given, in words."""
        return " or ".join(_type_name(each) for each in self.alternatives)


def list_options(config: object, group: str = "", idle: Idle | None = None) -> list[Option]:
    """Return an `Option` for every leaf of ``config``, in the order of the fields.

    Args:
        config: a dataclass instance; fields that are dataclasses are groups of options.
        group: dotted key of the group that ``config`` is, empty at the top.
        idle: when options without an ``idle`` of their own have no effect; None: never.
    """
    assert is_dataclass(config)
    cls: type = type(config)
    hints, docs = get_type_hints(cls), field_docs(cls)
    options = []
    for field in fields(config):
        value = getattr(config, field.name)
        key = f"{group}.{field.name}" if group else field.name
        known = field.metadata
        of_field = known.get("idle") or idle
        if is_dataclass(value):
            options += list_options(value, key, of_field)
            continue
        is_common = known.get("common", not cls.__module__.startswith("accel_rl."))
        hint, doc, kind = hints[field.name], docs.get(field.name, ""), known.get("kind", "learning")
        options.append(Option(key, hint, doc, value, kind, of_field, is_common))
    return options


@functools.cache
def field_docs(cls: type) -> dict[str, str]:
    """The string under each field of a dataclass, base classes included, on one line each.

    A field of the user's without such a string is left out.
    """
    docs: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        if not is_dataclass(each):
            continue
        names = {field.name for field in fields(each)}
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(each))).body[0]
        except (OSError, SyntaxError):  # a class of the user's that is in no file
            continue
        assert isinstance(body, ast.ClassDef)
        for statement, below in zip(body.body, body.body[1:], strict=False):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                if statement.target.id not in names:
                    continue
                if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                    docs[statement.target.id] = " ".join(str(below.value.value).split())
    return docs


def format_value(value: Any) -> str:
    """A value as it would be written on the command line."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return "[" + ",".join(format_value(each) for each in value) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _type_name(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    if get_origin(kind) is tuple:
        return f"list of {_type_name(get_args(kind)[0])}"
    names = {int: "integer", float: "number", bool: "true|false", str: "text"}
    return names.get(kind, "none")
