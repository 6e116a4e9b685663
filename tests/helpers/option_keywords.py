"""Writes ``accel_rl/keywords.py``, the types of the keywords of ``accel_rl.train``."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import accel_rl
from accel_rl.options import alternatives, list_options
from accel_rl.presets import PRESETS

PATH = Path(accel_rl.__file__).with_name("keywords.py")
_OWN = ("algo", "env", "total_steps", "resume")
"""options that functions of `accel_rl.api` have as arguments of their own"""
_HEAD = '''\
"""The keywords of `accel_rl.train`: all options of all presets, for editors and type checkers.

``python tests/helpers/options_index.py`` writes this file anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Literal, TypedDict


class TrainOptions(TypedDict, total=False):
    """Options of a run by name, as on the command line. ``accel_rl train --help=all`` says more."""

    config: str | PathLike[str]
'''


def make_keywords() -> str:
    """Return the text of ``keywords.py`` as it should be."""
    kinds: dict[str, dict[str, None]] = {}
    for preset in PRESETS.values():
        for option in list_options(preset()):
            texts = (text for kind in alternatives(option.type) for text in _texts(kind))
            kinds.setdefault(option.name, {}).update(dict.fromkeys(texts))
    for name in _OWN:
        del kinds[name]
    for name in ("run_dir", "init"):
        kinds[name]["PathLike[str]"] = None
    for own in kinds.values():  # None stands last
        if "None" in own:
            own["None"] = own.pop("None")
    return _HEAD + "".join(f"    {name}: {' | '.join(own)}\n" for name, own in kinds.items())


def _texts(kind: Any) -> Iterator[str]:
    if get_origin(kind) is Literal:
        yield f"Literal[{', '.join(_quoted(each) for each in get_args(kind))}]"
    elif get_origin(kind) is tuple:
        yield f"Sequence[{get_args(kind)[0].__name__}]"
    else:
        yield "None" if kind is NoneType else kind.__name__


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def write_keywords() -> None:
    """Write ``keywords.py``."""
    PATH.write_text(make_keywords())
    subprocess.run([sys.executable, "-m", "ruff", "format", "-q", str(PATH)], check=True)
