"""The options of a config: every leaf of nested dataclasses, and what each is about."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import types
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Option:
    """One option. ``key`` is dotted (``sampler.num_envs``); ``type`` its annotation."""

    key: str
    type: Any
    doc: str
    default: Any

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


def list_options(config: object, group: str = "") -> list[Option]:
    """Every leaf of the dataclass instance ``config``, in order."""
    assert is_dataclass(config)
    cls: type = type(config)
    hints, docs = get_type_hints(cls), field_docs(cls)
    options = []
    for field in fields(config):
        value = getattr(config, field.name)
        key = f"{group}.{field.name}" if group else field.name
        if is_dataclass(value):
            options += list_options(value, key)
        else:
            options.append(Option(key, hints[field.name], docs.get(field.name, ""), value))
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


Kind = Literal["identity", "course", "engine", "watching"]
"""What an option is about, by which resuming and plotting go.

``identity``: which run it is; curves are means over such runs. ``course``: how long a run goes on,
and with how many learners. ``engine``: where and how fast it computes, not what it learns.
``watching``: what is recorded of it. A resumed run may change the last three; runs that differ in
engine or watching make one curve over steps. Every other option changes what is learned.
"""

_KINDS: dict[Kind, tuple[str, ...]] = {
    "identity": ("seed", "run_dir", "resume", "trust"),
    "course": ("total_steps", "schedule_steps", "max_minutes", "learners"),
    "engine": (
        "device",
        "capture",
        "gpus",  # where it says how many learners there are, they count as if given
        "serial",
        "cpus",
        "sampler.num_groups",
        "sampler.num_workers",
        "sampler.workers_per_core",
        "sampler.cores_per_worker",
        "sampler.affinity",
        "sampler.on_worker_failure",
        "sampler.max_worker_restarts",
        "sampler.step_timeout_seconds",
        "sampler.reset_timeout_seconds",
        "sampler.final_observation_slots",
        "atari.cached_starts",
        "parallel.learner_timeout_seconds",
        "parallel.on_learner_failure",
        "learner.replay_device",
        "learner.save_replay",
        "learner.num_predictors",
        "learner.num_trainers",
        "learner.max_agents",
        "learner.tuner",
        "learner.tuner_interval_seconds",
    ),
    "watching": (
        "info_keys",
        "log_interval",
        "checkpoint_interval",
        "num_checkpoints",
        "evaluation_interval",
        "evaluation_steps",
        "evaluation_envs",
        "learner.log_norms",
        "learner.gradient_cosine_interval",
    ),
}


def options_of(*kinds: Kind) -> frozenset[str]:
    """Return the full keys of all options of these kinds."""
    return frozenset(key for kind in kinds for key in _KINDS[kind])
