"""How training and sampling grow with the number of learners: Tables 2 and 3 of arXiv:1803.02811.

    python benchmarks/scaling/scaling.py [key=value ...]

All in one interleaved run, in agent steps a second of all learners together, on the CPU or on GPUs
of this machine; the environments are as many whatever the number of learners:

    train, all_reduce   learners that make one update together
    train, store        learners that each push into the parameter store
    sample_in_step      sampling alone, with a barrier of all learners after every five steps
    sample              the same without

Beside each stands the share of time in all-reduces, lock waits, pushes and barriers. Prints a table
and writes OUT.json.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from accel_rl.algos import DQNConfig
from accel_rl.presets import PRESETS
from benchmarks.harness.interleave import Case, Result, measure
from benchmarks.harness.machine import describe_machine, usable_cores
from benchmarks.harness.options import parse
from benchmarks.harness.report import (
    find,
    make_rows,
    ratio,
    ratio_cell,
    spread_cells,
    table_for,
    write,
)
from benchmarks.scaling.scaling_learner import learner_case

SMALL_REPLAY = {"learning_starts": 2_000, "buffer_size": 50_000}
"""so that learning begins soon, and all cases have room in memory at once"""
SHARES = ("learning", "all_reduce", "push", "lock_wait", "agreement")
"""of time; agreement: to stop or go on, which is the barrier where learners go in step"""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    game: str = "breakout"
    """Atari game"""
    algos: tuple[str, ...] = ("a2c",)
    """presets to train, options may follow after a blank; sampling is that of a2c. Q-learning has
    learning_starts=2000 and buffer_size=50000 unless these are among the options"""
    learners: tuple[int, ...] = (1, 2, 4)
    """processes that learn together"""
    num_envs: int = 64
    """simulators of all learners together"""
    what: tuple[str, ...] = ("train", "sample")
    """train, sample"""
    extra: str = "decorrelation_steps=0"
    """more options of every run, as on its command line"""
    device: str = "cpu"
    """where networks are: cpu or cuda, a GPU for each learner where there are enough"""
    rounds: int = 5
    """times that everything is measured"""
    seconds: float = 2.0
    """of one measurement, after a short warm-up, and at least one iteration"""
    out: str = "build/scaling"
    """where to write, without the ending"""


def main() -> None:
    """Measures, prints and writes."""
    options = parse(Options, sys.argv[1:], __doc__)
    progress = Console(stderr=True)
    cores = usable_cores()
    machine = describe_machine(cores)
    cases = [*make_cases(options, sorted(cpu for core in cores for cpu in core))]
    results = measure(cases, rounds=options.rounds, seconds=options.seconds, console=progress)
    report = summarise(list(results.values()), machine, dataclasses.asdict(options))
    write(report, options.out, tabulate)
    if any(result.error for result in results.values()):
        raise SystemExit(1)


def make_cases(options: Options, cpus: list[int]) -> Iterator[Case]:
    """The cases, by number of learners."""

    def case(what: str, algo: str, sync: str, learners: int) -> Case:
        num_envs = options.num_envs // (learners if sync == "store" else 1)
        given = [
            *f"algo={algo}".split(),
            f"env={options.game}",
            f"device={options.device}",
            f"learners={learners}",
        ]
        given += [f"sync={sync}", f"num_envs={num_envs}", *options.extra.split()]
        preset = PRESETS.get(given[0].removeprefix("algo="))
        if preset is not None and isinstance(preset().learner, DQNConfig):
            named = {each.partition("=")[0] for each in given}
            given += [f"{key}={value}" for key, value in SMALL_REPLAY.items() if key not in named]
        spec = {"what": what, "options": given, "cpus": cpus, "malloc": "tuned"}
        row = {"part": what, "algo": algo, "sync": sync, "learners": learners}
        name = f"{what}, {algo}, {sync}, learners: {learners}"
        return learner_case(name, spec, learners, row)

    for learners in options.learners:
        if "train" in options.what:
            for algo in options.algos:
                for sync in ("all_reduce", "store"):
                    yield case("train", algo, sync, learners)
        if "sample" in options.what:
            for what in ("sample_in_step", "sample"):
                yield case(what, "a2c", "all_reduce", learners)


def summarise(
    results: list[Result], machine: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    """One JSON object as `report` has it.

    ``of_one`` (learner) is round by round.
    """
    rows, measured = make_rows(results)
    numbers = {result.case.name: result.numbers for result in results}
    for row in measured:
        row["numbers"] = numbers[row["name"]]
        row["shares"] = {
            name: statistics.median(_share(each, f"{name}_seconds") for each in row["numbers"])
            for name in SHARES
        }
        same = {key: row[key] for key in ("algo", "sync")}
        for one in find(measured, part=row["part"], learners=1, **same):
            row["of_one"] = ratio(row["rates"], one["rates"])
    return {"machine": machine, "options": options, "rows": rows}


def _share(children: list[dict[str, float]], name: str) -> float:
    """Of the time measured, the mean over learners."""
    return statistics.fmean(child.get(name, 0.0) / child["seconds"] for child in children)


def tabulate(report: dict[str, Any], console: Console) -> None:
    """Prints the rows."""
    columns = ("steps/s", "range", "of one", *SHARES)
    table = table_for(report, f"{report['options']['num_envs']} environments", columns)
    for row in report["rows"]:
        if "steps_per_second" not in row:
            table.add_row(row["name"], "failed")
        else:
            cells = spread_cells(row["steps_per_second"])
            shares = (f"{row['shares'][name]:.1%}" for name in SHARES)
            table.add_row(row["name"], *cells, ratio_cell(row.get("of_one")), *shares)
    console.print(table)


if __name__ == "__main__":
    main()
