"""Options, places of files, tables and progress that the tools have in common."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from time import perf_counter
from typing import Literal

from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from accel_rl.options import check_settings
from accel_rl.training.progress import LINE_SECONDS


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Options of all commands on saved runs."""

    overwrite: bool = False
    """Replace what is there."""
    trust: bool = False
    """Import code that a run names (module:function), even if another person made the run. Your own
    runs need no trust."""

    def __post_init__(self) -> None:
        check_settings(self)
        for each in fields(self):
            value = getattr(self, each.name)
            least = 0 if each.name in ("seed", "max_noops", "num_workers") else 1
            if type(value) is int and each.name != "checkpoint" and value < least:
                raise ValueError(f"{each.name} is {value}; it must be at least {least}")


def check_output(path: Path, suffixes: tuple[str, ...], *, overwrite: bool) -> None:
    """Raise ValueError unless a file of such a kind can be written to ``path``."""
    if path.suffix not in suffixes:
        raise ValueError(f"out={path} must end in {' or '.join(suffixes)}")
    _check_place(path, path.parent)
    if path.is_dir():
        raise ValueError(f"out={path} is a directory; name a file")
    if path.exists() and not overwrite:
        raise ValueError(f"{path} exists; choose another with out=PATH, or add overwrite=true")


def check_folder(folder: Path, files: Sequence[Path], *, overwrite: bool) -> None:
    """Raise ValueError unless ``files`` can be written to ``folder``, which may be new."""
    if os.path.lexists(folder) and not folder.is_dir():
        raise ValueError(f"out={folder} is no directory; name one, which may be new")
    _check_place(folder, folder if folder.is_dir() else folder.parent)
    for file in files:
        if os.path.lexists(file) and not overwrite:
            raise ValueError(f"{file} exists; choose another out=DIRECTORY, or add overwrite=true")


def _check_place(out: Path, place: Path) -> None:
    if not place.is_dir():
        raise ValueError(f"out={out}: there is no directory {place}; make it first")
    if not os.access(place, os.W_OK):
        raise ValueError(f"out={out}: {place} may not be written to; choose another")


@contextmanager
def show_progress(
    console: Console, what: str, total: int | None
) -> Iterator[Callable[[int], None]]:
    """Give a function that takes how many of ``total`` are done, and shows it in a bar or lines.

    It can be more than ``total`` while the last games are played to their end.
    """
    if console.is_terminal and not console.is_dumb_terminal:
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task(what, total=total)

            def update(done: int) -> None:
                name = what if total is None or done <= total else "the last games"
                progress.update(task, completed=done, description=name)

            yield update
        return
    shown = perf_counter()

    def show(done: int) -> None:
        nonlocal shown
        if perf_counter() - shown >= LINE_SECONDS:
            shown = perf_counter()
            text = f"{what}: {done:,}" + ("" if total is None else f" of {total:,}")
            if total is not None and done > total:
                text = f"{what}: all {total:,}; the last games are played to their end"
            console.print(text, markup=False, highlight=False, soft_wrap=True)

    yield show


def make_table(head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Table:
    """Return a table for a terminal ``width`` columns wide.

    The first column has labels, which are broken first. Numbers and headers stay whole if the
    terminal is as wide as they are together.
    """
    columns = list(zip(head, *rows, strict=True))
    lines = [[line for cell in column for line in cell.split("\n")] for column in columns]
    longest_line = [max(map(len, each)) for each in lines]
    widths = [max(len(word) for line in each for word in line.split()) for each in lines]
    room = width - sum(widths) - 2 * len(head)
    if room < 0:
        widths[0] = max(len(head[0]), widths[0] + room)
    for place in reversed(range(len(head))):
        more = max(0, min(room, longest_line[place] - widths[place]))
        widths[place] += more
        room -= more
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    for place, name in enumerate(head):
        justify: Literal["left", "right"] = "right" if place else "left"
        table.add_column(Text(name), width=widths[place], justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))  # a name is no markup
    return table
