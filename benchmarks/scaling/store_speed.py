"""What does a push into the parameter store cost, and how long do learners wait for its locks?

    python benchmarks/scaling/store_speed.py [key=value ...]

Measures in one interleaved run, for A3C-Net's parameters, one torch thread a process:

    local     the update rule alone, in the learner's memory
    parts     copy in of parameters and optimizer state, the rule, copy out of the parameters
    push      `StoreSync.step`, by the number of chunks
    learners  several processes that do nothing but push into one store at the same time

Times are medians over the rounds with their range. ``other=DIR`` measures another checkout by turns
with this one, but for several learners, which share a store. Prints a table and writes OUT.json.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from accel_rl.parallel import create_store
from benchmarks.harness.interleave import Case, Result, measure, with_other
from benchmarks.harness.machine import describe_machine, usable_cores
from benchmarks.harness.options import parse
from benchmarks.harness.report import (
    compare,
    find,
    make_rows,
    ratio,
    ratio_cell,
    spread,
    table_for,
    tabulate_ratios,
    write,
)
from benchmarks.scaling.store_pushes import RULES, make_parameters


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    rules: tuple[str, ...] = ("rmsprop", "adam")
    """update rules: rmsprop, adam"""
    num_chunks: tuple[int, ...] = (1, 3, 8)
    """of one learner's store; several learners use three"""
    learners: tuple[int, ...] = (2, 4)
    """processes that push into one store at the same time"""
    other: str | None = None
    """directory of another checkout: it runs the cases of one learner, too, by turns with this"""
    device: str = "cpu"
    """where learners have their parameters: cpu or cuda, the same GPU for all"""
    starts: int = 1
    """times that all processes are started"""
    rounds: int = 5
    """times that everything is measured after each start"""
    seconds: float = 0.5
    """of one measurement, after a short warm-up"""
    out: str = "build/store_speed"
    """where to write, without the ending"""


def main() -> None:
    """Measures, prints and writes."""
    options = parse(Options, sys.argv[1:], __doc__)
    progress = Console(stderr=True)
    cores = usable_cores()
    machine = describe_machine(cores)
    with contextlib.ExitStack() as stores:
        cases = [*make_cases(options, sorted(cpu for core in cores for cpu in core), stores)]
        alone = with_other([case for case in cases if case.row["learners"] == 1], options.other)
        results = measure(
            [*alone, *(case for case in cases if case.row["learners"] > 1)],
            rounds=options.rounds,
            seconds=options.seconds,
            console=progress,
            starts=options.starts,
        )
    report = summarise(list(results.values()), machine, dataclasses.asdict(options))
    write(report, options.out, tabulate)
    if any(result.error for result in results.values()):
        raise SystemExit(1)


def make_cases(options: Options, cpus: list[int], stores: contextlib.ExitStack) -> Iterator[Case]:
    """The cases; stores of several learners live until ``stores`` is closed."""

    def case(name: str, learners: int = 1, **row: Any) -> Case:
        row = {"num_chunks": 3, "learners": learners} | row
        spec = row | {"cpus": cpus, "torch_threads": 1, "malloc": "tuned"}
        spec["device"] = options.device
        if learners > 1:
            store = create_store(make_parameters(), RULES[row["rule"]], row["num_chunks"])
            spec["address"] = stores.enter_context(contextlib.closing(store)).address
        return Case(f"{row['rule']}: {name}", "scaling/store_pushes.py", (spec,) * learners, row)

    for rule in options.rules:
        for part in ("local", "parts"):
            yield case(part, part=part, rule=rule)
        for num_chunks in options.num_chunks:
            yield case(f"push, chunks: {num_chunks}", part="push", rule=rule, num_chunks=num_chunks)
        for learners in options.learners:
            yield case(f"{learners} learners push", learners, part="push", rule=rule)


def summarise(
    results: list[Result], machine: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    """One JSON object as `report` has it; times in milliseconds, those of learners each alone."""
    rows, measured = make_rows(results)
    compare(measured)
    numbers = {result.case.name: result.numbers for result in results}
    for row in measured:
        learners = row["learners"]
        row["step_ms"] = spread([1000 * learners / rate for rate in row["rates"]])
        if row["part"] != "push":
            continue
        row["numbers"] = rounds = numbers[row["name"]]
        for name, key in (("wait_ms", "lock_wait_seconds"), ("push_ms", "push_seconds")):
            row[name] = spread(
                [
                    1000 * sum(child[key] for child in children) / (rate * options["seconds"])
                    for children, rate in zip(rounds, row["rates"], strict=True)
                ]
            )
        lags = [child.get("push_lag_mean", 0.0) for children in rounds for child in children]
        row["lag_mean"] = statistics.fmean(lags)
        for parts in find(measured, part="parts", rule=row["rule"], is_other=row.get("is_other")):
            row["of_parts"] = ratio(parts["rates"], row["rates"])
    return {"machine": machine, "options": options, "rows": rows}


def tabulate(report: dict[str, Any], console: Console) -> None:
    """Prints the rows."""
    columns = ("ms a step", "range", "of its parts", "in push", "waiting for locks", "lag")
    table = table_for(report, "Parameter store", columns)
    for row in report["rows"]:
        step = row.get("step_ms")
        if step is None:
            table.add_row(row["name"], "failed")
            continue
        shown = [row["name"], f"{step['median']:.3f}", f"{step['low']:.3f}-{step['high']:.3f}"]
        if row["part"] == "push":
            shown.append(ratio_cell(row.get("of_parts")) if row["learners"] == 1 else "")
            shown += [f"{row[key]['median']:.3f}" for key in ("push_ms", "wait_ms")]
            shown.append(f"{row['lag_mean']:.2f}")
        table.add_row(*shown)
    console.print(table)
    tabulate_ratios(report["rows"], console)


if __name__ == "__main__":
    main()
