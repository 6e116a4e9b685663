"""Measures many cases in one interleaved run: all of them once, and again, so that drift of the
machine hits all alike."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from children import SETTLE_SECONDS, Child, ChildError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


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
    """Steps a second of a case in each round, and what its first child said of its settings.

    ``numbers[round][child]``: what else each child counted.
    """

    case: Case
    settings: dict[str, Any] = field(default_factory=dict)
    rates: list[float] = field(default_factory=list)
    numbers: list[list[dict[str, float]]] = field(default_factory=list)
    error: str | None = None


def measure(
    cases: Iterable[Case], *, rounds: int, seconds: float, console: Console
) -> dict[str, Result]:
    """Starts every case, measures each for ``seconds`` in every round, ends them.

    A case that fails is left out of the rounds that follow, and its error is told.
    """
    results = {case.name: Result(case) for case in cases}
    children: dict[str, list[Child]] = {}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        try:
            task = progress.add_task("", total=len(results))
            for name, result in results.items():
                progress.update(task, description=f"start: {name}")
                _try(result, console, lambda name=name: _start(results[name], children))
                progress.advance(task)
            progress.reset(task, total=rounds * len(results))
            for number in range(rounds):
                if not console.is_terminal:
                    console.print(f"round {number + 1}/{rounds}", highlight=False)
                for name, result in results.items():
                    progress.update(task, description=f"round {number + 1}/{rounds}: {name}")
                    if result.error is None:
                        _try(
                            result,
                            console,
                            lambda name=name: _ask(results[name], children[name], seconds),
                        )
                    progress.advance(task)
        finally:
            for group in children.values():
                for child in group:
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
