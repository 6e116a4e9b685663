"""Where a tool's result goes, and how far it has come."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from rich.console import Console
from rich.progress import Progress

from accel_rl.training.progress import LINE_SECONDS


def check_output(path: Path, suffixes: tuple[str, ...], *, overwrite: bool) -> None:
    """Raises a ValueError unless a file of such a kind can be written to ``path``."""
    if path.suffix not in suffixes:
        raise ValueError(f"out={path} must end in {' or '.join(suffixes)}")
    if not path.parent.is_dir():
        raise ValueError(f"out={path}: there is no directory {path.parent}; make it first")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"out={path}: {path.parent} may not be written to; choose another")
    if path.is_dir():
        raise ValueError(f"out={path} is a directory; name a file")
    if path.exists() and not overwrite:
        raise ValueError(f"{path} exists; choose another with out=PATH, or add overwrite=true")


@contextmanager
def show_progress(console: Console, what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Gives a function that is told how many of ``total`` are done, and shows it.

    A bar in a terminal; elsewhere a line now and then. More than ``total`` are what games that have
    begun take to their end.
    """
    if console.is_terminal and not console.is_dumb_terminal:
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task(what, total=total)

            def update(done: int) -> None:
                name = what if done <= total else "the last games"
                progress.update(task, completed=done, description=name)

            yield update
        return
    shown = perf_counter()

    def show(done: int) -> None:
        nonlocal shown
        if perf_counter() - shown >= LINE_SECONDS:
            shown = perf_counter()
            text = f"{what}: {done:,} of {total:,}"
            if done > total:
                text = f"{what}: all {total:,}; the last games are played to their end"
            console.print(text, markup=False, highlight=False, soft_wrap=True)

    yield show
