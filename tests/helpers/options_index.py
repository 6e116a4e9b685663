"""Writes ``cli/index.json``, the index of presets and options, and ``keywords.py`` anew."""

import json
import re
from typing import Any

from option_keywords import write_keywords

from accel_rl.cli.check import CheckOptions
from accel_rl.cli.index import PATH, Index, Listed, describe, listed
from accel_rl.cli.tools import OPTIONS
from accel_rl.options import list_options
from accel_rl.presets import PRESETS
from accel_rl.sweeps.plan import SweepOptions


def make_index() -> Index:
    """Return the index of presets and commands as they are."""
    commands = {**OPTIONS, "check": CheckOptions(), "sweep": SweepOptions()}
    return Index(
        {name: describe(preset) for name, preset in PRESETS.items()},
        {name: listed(list_options(own)) for name, own in commands.items()},
    )


def write_index() -> None:
    """Write ``index.json``."""
    index = make_index()
    presets, commands = index.presets.values(), index.commands.values()
    groups = [*(each.options for each in presets), *commands]
    known = list(dict.fromkeys(each[:4] for options in groups for each in options))

    def numbers(options: list[Listed]) -> list[Any]:
        return [[known.index(each[:4]), each.default] for each in options]

    tree = {
        "options": known,
        "presets": {name: [*own[:4], numbers(own.options)] for name, own in index.presets.items()},
        "commands": {name: numbers(own) for name, own in index.commands.items()},
    }
    # One line an option, preset or command.
    PATH.write_text(re.sub(r"(\]\], |\], (?=\[\"))", r"\1\n", json.dumps(tree)) + "\n")


if __name__ == "__main__":
    write_index()
    write_keywords()
