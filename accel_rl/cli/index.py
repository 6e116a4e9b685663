"""The index of presets and options, ``index.json``, from which help and completion are made.

To read it takes no torch, which presets and algorithms load. After a change of presets, options or
their documentation, ``python tests/helpers/options_index.py`` renews it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from accel_rl.options import Option

PATH = Path(__file__).with_suffix(".json")


class Listed(NamedTuple):
    """An option, as help shows it."""

    key: str  # dotted key
    type_name: str  # what may be given, in words
    doc: str  # documentation
    is_common: bool  # whether ``--help`` shows it, too; ``--help=all`` shows all
    default: str  # default value, as on the command line

    @property
    def name(self) -> str:
        """The key without its group."""
        return self.key.rpartition(".")[2]


class Preset(NamedTuple):
    """A preset, as help shows it."""

    about: str  # documentation; the first line is its title
    actions: str  # kinds of actions that it learns, in words
    has_memory: bool  # whether ``memory=lstm`` is possible
    learners: str  # how several learners work together, in words
    options: list[Listed]  # all options


class Index(NamedTuple):
    """Attributes:
    presets: by name.
    commands: options of the other commands, by name.
    """

    presets: dict[str, Preset]
    commands: dict[str, list[Listed]]


@functools.cache
def read_index() -> Index:
    """Return the index of ``index.json``."""
    tree = json.loads(PATH.read_text())
    known: list[list[Any]] = tree["options"]

    def options(found: list[list[Any]]) -> list[Listed]:
        return [Listed(*(*known[number], default)) for number, default in found]

    presets = {name: Preset(*(*own[:4], options(own[4]))) for name, own in tree["presets"].items()}
    return Index(presets, {name: options(own) for name, own in tree["commands"].items()})


def keys_of_presets() -> dict[str, list[str]]:
    """Return the keys of all options of each preset."""
    return {name: [each.key for each in own.options] for name, own in read_index().presets.items()}


def listed(options: Sequence[Option]) -> list[Listed]:
    """Return ``options`` as help shows them."""
    from accel_rl.options import format_value

    return [
        Listed(each.key, each.type_name, each.doc, each.is_common, format_value(each.default))
        for each in options
    ]


def describe(preset: Any) -> Preset:
    """Return what help says about a preset."""
    import dataclasses
    import inspect

    from accel_rl.algos import SACConfig
    from accel_rl.options import list_options

    config = preset()
    learner = config.learner
    takes_all = getattr(learner, "learns_all_spaces", False)
    actions = "floats" if isinstance(learner, SACConfig) else "any" if takes_all else "discrete"
    learners = "store" if config.parallel.sync == "store" else "in step"
    try:
        dataclasses.replace(config, learners=2)
    except ValueError:
        learners = "one"
    about = (inspect.getdoc(preset) or "").partition("\n\nRaises:")[0]
    options = listed(list_options(config))
    return Preset(about, actions, learner.learns_sequences, learners, options)
