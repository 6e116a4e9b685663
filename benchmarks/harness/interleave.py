"""Measures many cases in one interleaved run: all of them once, and again, so that drift of the
machine hits all alike."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.harness.children import SETTLE_SECONDS, Child, ChildError


@dataclass(frozen=True)
class Case:
    """One thing to measure: its children at the same time, their steps a second added up.

    ``row`` says what it is, in the table and in the JSON.
    """

    name: str
    script: str
    specs: tuple[dict[str, Any], ...]
    row: dict[str, Any]
    python: str = sys.executable


@dataclass
class Result:
    """Steps a second of a case in each round, and the settings that its first child reported.

    ``numbers[round][child]``: what else each child counted. ``rounds_per_start``: rates that follow
    each other and come from the same processes.
    """

    case: Case
    settings: dict[str, Any] = field(default_factory=dict)
    rates: list[float] = field(default_factory=list)
    numbers: list[list[dict[str, float]]] = field(default_factory=list)
    error: str | None = None
    rounds_per_start: int = 1


def measure(
    cases: Iterable[Case], *, rounds: int, seconds: float, console: Console, starts: int = 1
) -> dict[str, Result]:
    """Start every case, measure each for ``seconds`` in every round, end them; ``starts`` times.

    Each of the ``starts`` begins with new processes, whose memory lies elsewhere. A case that fails
    is left out of the rounds that follow, and its error is printed.
    """
    results = {case.name: Result(case, rounds_per_start=rounds) for case in cases}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=starts * (rounds + 1) * len(results))
        for start in range(starts):
            children: dict[str, list[Child]] = {}

            def go_through(label: str, act: Callable[[str], None]) -> None:
                if not console.is_terminal:
                    console.print(label, highlight=False)
                for name, result in results.items():
                    progress.update(task, description=f"{label}: {name}")
                    if result.error is None:
                        _try(result, console, lambda name=name: act(name))
                    progress.advance(task)

            try:
                go_through(
                    f"start {start + 1}/{starts}",
                    lambda name, children=children: _start(results[name], children),
                )
                for number in range(rounds):
                    go_through(
                        f"start {start + 1}/{starts}, round {number + 1}/{rounds}",
                        lambda name, children=children: _ask(
                            results[name], children[name], seconds
                        ),
                    )
            finally:
                started = [child for group in children.values() for child in group]
                for child in started:
                    child.leave()
                for child in started:
                    child.close()
    return results


def _start(result: Result, children: dict[str, list[Child]]) -> None:
    case = result.case
    children[case.name] = [Child(case.script, spec, case.python) for spec in case.specs]
    settings = [child.wait_until_ready() for child in children[case.name]]
    result.settings = settings[0]


def _ask(result: Result, children: list[Child], seconds: float) -> None:
    for child in children:
        child.ask(seconds)
    result.rates.append(sum([child.answer(seconds) for child in children]))
    result.numbers.append([child.numbers for child in children])
    time.sleep(SETTLE_SECONDS)


def _try(result: Result, console: Console, act: Any) -> None:
    try:
        act()
    except ChildError as error:
        result.error = str(error)
        console.print(f"[red]{result.case.name} failed[/red]: {error}", highlight=False)
