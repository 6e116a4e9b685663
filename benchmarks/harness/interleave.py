"""Measures many cases in one interleaved run: all of them once, and again, so that drift of the
machine hits all alike."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.harness.children import CHECKOUT, SETTLE_SECONDS, Child, ChildError

OTHER = " (other checkout)"
"""what follows the name of a case that another checkout of accel_rl runs"""
_STORES: list[Any] = []  # which live as long as this process, as learners of the cases do


@dataclass(frozen=True)
class Case:
    """One thing to measure: its children at the same time, their steps a second added up.

    Children whose ``specs`` have a ``rank`` find each other in a ``store`` that is added to these.
    ``row`` says what it is, in the table and in the JSON. ``checkout`` has the script and, for its
    processes, accel_rl.
    """

    name: str
    script: str
    specs: tuple[dict[str, Any], ...]
    row: dict[str, Any]
    python: str = sys.executable
    checkout: Path = CHECKOUT


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


def with_other(cases: Iterable[Case], checkout: str | None) -> list[Case]:
    """Each case, and each of ours (not those of peers) again as another checkout runs it.

    Raises:
        SystemExit: there is no such checkout.
    """
    if checkout is None:
        return list(cases)
    root = Path(checkout).resolve()
    if not (root / "benchmarks" / "harness").is_dir():
        raise SystemExit(f"other is {checkout}, which is no checkout of accel_rl")
    found = []
    for case in cases:
        found.append(case)
        if case.python == sys.executable and (root / "benchmarks" / case.script).exists():
            other = replace(case, name=case.name + OTHER, checkout=root)
            found.append(replace(other, row=case.row | {"beside": (), "is_other": True}))
    return found


def measure(
    cases: Iterable[Case], *, rounds: int, seconds: float, console: Console, starts: int = 1
) -> dict[str, Result]:
    """Start every case, measure each for ``seconds`` in every round, end them; ``starts`` times.

    Each of the ``starts`` begins with new processes, whose memory lies elsewhere. A case that fails
    is left out of the rounds that follow, and its error is printed. Ctrl-C ends the measurement:
    what there is by then is returned.
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
                _close(children, patience=10.0)
            except KeyboardInterrupt:
                console.print("interrupted")
                break
            finally:
                _close(children, patience=0.0)
    return results


def _close(children: dict[str, list[Child]], patience: float) -> None:
    """End all children that have not ended."""
    started = [child for group in children.values() for child in group]
    for child in started:
        child.leave()
    for child in started:
        child.close(patience)


def _start(result: Result, children: dict[str, list[Child]]) -> None:
    case, more = result.case, {}
    if any("rank" in spec for spec in case.specs):
        from accel_rl.parallel import MachineStore

        _STORES.append(MachineStore())
        more["store"] = _STORES[-1].address
    children[case.name] = [
        Child(case.script, spec | more, case.python, case.checkout) for spec in case.specs
    ]
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
