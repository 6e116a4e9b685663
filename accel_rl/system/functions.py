"""Code of the user's own: functions that options name as ``module:function``, and failures."""

from __future__ import annotations

import ast
import contextlib
import importlib
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

FAILURES = (Exception, SystemExit)
"""of code that is not ours: where that calls sys.exit(), a run is to say so, not to end quietly"""


class ExitError(RuntimeError):
    """Code of the user's called ``sys.exit()`` in the middle of a run."""


_DUMPED = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_MOST_NAMES = 8  # of a module, in a message
_FOLDERS = frozenset("/\\")
_OURS = f"{Path(__file__).parents[1]}{os.sep}"
_STANDARD = f"{sysconfig.get_path('stdlib')}{os.sep}"
_LIBRARIES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
"""folders of what is installed, also in another environment that this one takes packages from"""


def find_function(option: str, path: str) -> Callable[..., Any]:
    """Import the module of ``path``, ``module:function``, and return the function."""
    module_name, _, function_name = path.partition(":")
    if not function_name.isidentifier():
        raise ValueError(
            f"{option}={path} names no function; use module:function, as in my_module:make"
        )
    module = import_module(module_name, option, path)
    function = getattr(module, function_name, None)
    if not callable(function):
        where = getattr(module, "__file__", None) or "built in"  # one of the same name comes first
        own = [name for name, each in vars(module).items() if _is_own(each, module_name)]
        has = f"; it has {', '.join(own[:_MOST_NAMES])}" if own else ""
        raise ValueError(
            f"{option}={path}: the module {module_name} ({where}) has no function "
            f"{function_name}{has}"
        )
    found: Callable[..., Any] = function
    return found


def suggest_function(option: str, name: str) -> str:
    """Return what to write if ``name`` is a module in the current directory, else an empty text.

    Nothing of the module runs.
    """
    try:
        tree = ast.parse(Path(f"{name.removesuffix('.py')}.py").read_text())
    except (OSError, ValueError, SyntaxError):
        return ""
    kinds = (ast.FunctionDef, ast.ClassDef)
    names = [each.name for each in tree.body if isinstance(each, kinds)]
    ways = [f"{option}={name.removesuffix('.py')}:{each}" for each in names if each[0] != "_"]
    return f"{name.removesuffix('.py')}.py is here: use {' or '.join(ways[:3])}" if ways else ""


def import_module(name: str, option: str, value: str) -> ModuleType:
    """Import the module ``name``, which ``option=value`` needs, and return it.

    The current directory is searched, too, after all installed packages. Python itself searches it
    only for ``python -m``, not for scripts.
    """
    if not all(name.split(".")) or not _FOLDERS.isdisjoint(name):
        raise ValueError(
            f"{option}={value}: {name!r} is no name of a module; give it as in an import, without "
            f"folders, and put its folder on PYTHONPATH"
        )
    with contextlib.suppress(FileNotFoundError):  # the directory was deleted
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
    try:
        return importlib.import_module(name)
    except ImportError as error:
        hint = "install it or put its folder on PYTHONPATH"
        if name.endswith(".py"):
            hint = "leave out .py"
        raise ValueError(
            f"{option}={value}: the module {name} cannot be imported ({error}); {hint}"
        ) from error
    except FAILURES as error:
        raise ValueError(
            f"{option}={value}: the module {name} cannot be imported: "
            f"{type(error).__name__}: {error}"
        ) from error


@contextmanager
def refusing_exit() -> Iterator[None]:
    """Raise an `ExitError` if the user's code calls ``sys.exit()`` within."""
    try:
        yield
    except SystemExit as error:
        place = place_of(error)
        raise ExitError(f"sys.exit({error.code!r}) was called during the run{place}") from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its kind if it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def place_of(error: BaseException, *, libraries: bool = True) -> str:
    """Return the last line of the user's own code that ``error`` came through, in brackets.

    If there is none, return a line of a library if ``libraries``, else an empty text.
    """
    frames = traceback.extract_tb(error.__traceback__)
    return _last_place([(each.filename, each.lineno, each.name) for each in frames], libraries)


def place_in_dump(text: str) -> str:
    """Return `place_of` for a stack written by `faulthandler`, whose last call comes first."""
    frames = [(file, int(line), name) for file, line, name in _DUMPED.findall(text)]
    return _last_place(frames[::-1], libraries=True)


def _is_own(value: object, module: str) -> bool:
    name = getattr(value, "__name__", "_")
    return callable(value) and getattr(value, "__module__", "") == module and name[0] != "_"


def _last_place(frames: Sequence[tuple[str, int | None, str]], libraries: bool) -> str:
    foreign = [each for each in frames if not each[0].startswith((_OURS, "<"))]
    theirs = [each for each in foreign if not _is_library(each[0])]
    for file, line, name in (theirs or (foreign if libraries else []))[-1:]:
        return f" ({file}, line {line}, in {name})"
    return ""


def _is_library(path: str) -> bool:
    return path.startswith(_STANDARD) or any(folder in path for folder in _LIBRARIES)
