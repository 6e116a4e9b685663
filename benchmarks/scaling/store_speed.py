"""What does a push into the parameter store cost, and how long do learners wait for its locks?

Measures in one interleaved run, for A3C-Net's parameters, one torch thread a process:

    local   the update rule alone, in the learner's memory
    parts   copy in of parameters and optimizer state, the rule, copy out of the parameters
    push    `StoreExchange.step`, by the number of chunks
    learners  several processes that push into one store at the same time, at once or after so much
            work as a gradient costs; with multi-step Adam where it says so

Times are medians over the rounds with their range; the ratio of a push to its parts is taken round
by round. Prints a table and writes OUT.json and OUT.png.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from accel_rl.parallel import ParameterStore
from benchmarks.harness.figures import Bar, Panel, draw_bars, plural, where
from benchmarks.harness.interleave import Case, Result, measure
from benchmarks.harness.machine import describe_machine, usable_cores
from benchmarks.harness.options import parse
from benchmarks.harness.report import Row, find, ratio, ratio_cell, spread, write
from benchmarks.scaling.store_pushes import RULES, make_parameters

PUSH_BAR = 1.5


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    rules: tuple[str, ...] = ("rmsprop", "adam")
    """update rules: rmsprop, adam"""
    num_chunks: tuple[int, ...] = (1, 3, 8)
    """of one learner's store; several learners use three"""
    learners: tuple[int, ...] = (1, 2, 4)
    """processes that push into one store at the same time"""
    work_ms: tuple[float, ...] = (0.0, 10.0)
    """processor time that each of these spends between two pushes"""
    sync_period: int = 3
    """local steps of multi-step Adam"""
    device: str = "cpu"
    """where learners have their parameters: cpu or cuda, the same GPU for all"""
    rounds: int = 5
    """times that everything is measured"""
    seconds: float = 0.5
    """of one measurement, after a short warm-up"""
    out: str = "benchmarks/results/store_speed"
    """where to write, without the ending"""


def main() -> None:
    """Measures, prints and writes."""
    options = parse(Options, sys.argv[1:], __doc__)
    progress = Console(stderr=True)
    cores = usable_cores()
    machine = describe_machine(cores)
    with contextlib.ExitStack() as stores:
        cases = [*make_cases(options, sorted(cpu for core in cores for cpu in core), stores)]
        results = measure(cases, rounds=options.rounds, seconds=options.seconds, console=progress)
    report = summarise(list(results.values()), machine, dataclasses.asdict(options))
    write(report, options.out, tabulate, draw)
    if any(result.error for result in results.values()):
        raise SystemExit(1)


def make_cases(options: Options, cpus: list[int], stores: contextlib.ExitStack) -> Iterator[Case]:
    """The cases; their stores live until ``stores`` is closed."""

    def case(name: str, learners: int = 1, **row: Any) -> Case:
        row = {"num_chunks": 3, "work_ms": 0.0, "sync_period": 0, "learners": learners} | row
        spec = row | {"cpus": cpus, "torch_threads": 1, "malloc": "tuned"}
        spec["device"] = options.device
        if row["part"] == "push":
            store = ParameterStore.create(make_parameters(), RULES[row["rule"]], row["num_chunks"])
            spec["address"] = stores.enter_context(contextlib.closing(store)).address
        return Case(name, "scaling/store_pushes.py", (spec,) * learners, row)

    for rule in options.rules:
        for part in ("local", "parts"):
            yield case(f"{rule}: {part}", part=part, rule=rule)
        for num_chunks in options.num_chunks:
            name = f"{rule}: push, chunks: {num_chunks}"
            yield case(name, part="push", rule=rule, num_chunks=num_chunks)
    for work_ms in options.work_ms:
        for learners in options.learners:
            for rule in options.rules:
                periods = (0, options.sync_period) if rule == "adam" else (0,)
                for period in periods:
                    way = f"every {period} steps" if period else "every step"
                    name = f"{rule}: {learners} learners, {work_ms:g} ms of work, {way}"
                    row = {"rule": rule, "work_ms": work_ms, "sync_period": period}
                    yield case(name, learners, part="push", among_learners=True, **row)


def summarise(
    results: list[Result], machine: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    """One JSON object as `report` has it; times in milliseconds, those of learners each alone."""
    rows: list[Row] = []
    for result in results:
        row = {"name": result.case.name, **result.case.row, "settings": result.settings}
        row |= {"rates": result.rates, "error": result.error}
        rows.append(row)
        if not result.rates or result.error:
            continue
        learners = row["learners"]
        row["step_ms"] = spread([1000 * learners / rate for rate in result.rates])
        if row["part"] == "push":
            row["numbers"] = result.numbers
            for name, key in (("wait_ms", "lock_wait_seconds"), ("push_ms", "push_seconds")):
                row[name] = spread(
                    [
                        1000 * sum(child[key] for child in children) / (rate * options["seconds"])
                        for children, rate in zip(result.numbers, result.rates, strict=True)
                    ]
                )
            children = [child for each in result.numbers for child in each]
            lags = [child["push_lag_mean"] for child in children if "push_lag_mean" in child]
            row["lag_mean"] = statistics.fmean(lags) if lags else 0.0
    measured = [row for row in rows if "step_ms" in row]
    for row in find(measured, part="push", among_learners=None):
        for parts in find(measured, part="parts", rule=row["rule"]):
            row["of_parts"] = ratio(parts["rates"], row["rates"])
    return {"machine": machine, "options": options, "rows": rows}


def tabulate(report: dict[str, Any], console: Console) -> None:
    """Prints the rows, and how a push in three chunks stands to the bar."""
    machine = report["machine"]
    cores = len(machine["cores_used"])
    table = Table(title=f"milliseconds a step, {cores} cores of {machine['cpu']}")
    for column in ("", "step", "range", "of its parts", "in push", "waiting for locks", "lag"):
        table.add_column(column, justify="left" if not column else "right")
    for row in report["rows"]:
        step = row.get("step_ms")
        if step is None:
            table.add_row(row["name"], "failed")
            continue
        shown = [row["name"], f"{step['median']:.3f}", f"{step['low']:.3f}-{step['high']:.3f}"]
        shown.append(ratio_cell(row.get("of_parts")))
        if row["part"] == "push":
            shown += [f"{row[key]['median']:.3f}" for key in ("push_ms", "wait_ms")]
            shown.append(f"{row['lag_mean']:.2f}")
        table.add_row(*shown)
    console.print(table)
    for row in find(report["rows"], num_chunks=3, among_learners=None, part="push"):
        if "of_parts" in row:
            text = f"{row['name']} / its parts: {ratio_cell(row['of_parts'])}, at most {PUSH_BAR}"
            console.print(text, highlight=False)


def draw(report: dict[str, Any], path: Path) -> None:
    """A step by one learner with each rule, and by several learners that only push."""
    rows = [row for row in report["rows"] if "step_ms" in row]
    panels = []
    parts = {"local": "the rule alone", "parts": "rule and copies"}
    for rule in dict.fromkeys(row["rule"] for row in rows):
        bars = [
            Bar(
                parts.get(row["part"], f"a push, {plural(row['num_chunks'], 'chunk')}"),
                row["step_ms"],
            )
            for row in find(rows, among_learners=None, rule=rule)
        ]
        panels.append(Panel(f"{rule}, one learner", bars))
    several = [row for row in find(rows, among_learners=True) if row["work_ms"] == 0]
    bars = [
        Bar(
            f"{row['learners']} x {row['rule']}"
            + f", every {row['sync_period']} steps" * bool(row["sync_period"]),
            row["step_ms"],
            mark=row["wait_ms"]["median"],
        )
        for row in several
    ]
    if bars:
        panels.append(Panel("learners that only push; the mark is their wait for locks", bars))
    draw_bars(
        path, panels, "Parameter store: milliseconds of a step", "milliseconds", where(report)
    )


if __name__ == "__main__":
    main()
