"""One learner with simulators in workers, or a learner on each core with simulators of its own.

    python benchmarks/scaling/learners_speed.py [key=value ...]

Both train the same run: ``learners=1``, and ``learners=N serial=true`` in step, for ``N`` cores. In
agent steps a second of all learners together, in one interleaved run; the ratio has a 95 %
bootstrap interval over the rounds. ``busy``: with a program beside it that keeps one core busy for
that share of the time. Prints a table and writes OUT.json. ``learners=auto`` stands on its results.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from accel_rl.algos import DQNConfig
from accel_rl.presets import PRESETS
from benchmarks.harness.interleave import Case, measure
from benchmarks.harness.machine import describe_machine, usable_cores
from benchmarks.harness.options import parse
from benchmarks.harness.report import interval, make_rows, ratio, write_json
from benchmarks.sampling.sampling_speed import neighbour
from benchmarks.scaling.learner_cases import learner_case
from benchmarks.scaling.scaling import SMALL_REPLAY


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    runs: list[str] = field(
        default_factory=lambda: [
            "a2c env=breakout num_envs=16",
            "a2c env=breakout num_envs=64",
            "ppo env=breakout num_envs=8",
            "ppo env=breakout num_envs=64",
            "dqn env=breakout num_envs=32",
            "cat_dqn env=breakout num_envs=32",
            "a2c env=catch",
            "ppo env=gymnasium:CartPole-v1 num_envs=8",
            "dqn env=gymnasium:CartPole-v1 num_envs=16",
        ]
    )
    """presets, each with options of its run"""
    busy: list[float] = field(default_factory=lambda: [0.0, 0.5])
    """shares of one core that another program takes"""
    rounds: int = 15
    """times that everything is measured"""
    seconds: float = 1.5
    """of one measurement, after a short warm-up"""
    out: str = "benchmarks/results/learners_speed"
    """where to write, without the ending"""


def main() -> None:
    """Measures, prints and writes."""
    options = parse(Options, sys.argv[1:], __doc__)
    cores = usable_cores()
    cpus = [core[0] for core in cores]
    rows: list[dict[str, Any]] = []
    machine = describe_machine(cores)
    for busy in options.busy:
        for run in options.runs:
            with neighbour(cpus[0], busy):
                console = Console(stderr=True, quiet=True)
                cases = list(make_cases(run, cpus))
                results = measure(
                    cases, rounds=options.rounds, seconds=options.seconds, console=console
                )
            found, _ = make_rows(results.values())
            for row in found:
                row["busy"] = busy
                if row["error"]:
                    print(f"{row['name']}: {row['error']}", file=sys.stderr)
            one, several = found
            if one["rates"] and several["rates"]:
                several["of_one"] = ratio(several["rates"], one["rates"])
                several["interval"] = interval(several["rates"], one["rates"], options.rounds)
                print(
                    run, busy, several["of_one"], several["interval"], file=sys.stderr, flush=True
                )
            rows += found
            report = {"machine": machine, "options": dataclasses.asdict(options), "rows": rows}
            write_json(report, Path(f"{options.out}.json"))
    tabulate(rows)
    print(f"wrote {options.out}.json")


def make_cases(run: str, cpus: list[int]) -> Iterator[Case]:
    """One learner, and one for each of ``cpus``."""
    algo, *own = run.split()
    for learners in (1, len(cpus)):
        given = [
            f"algo={algo}",
            "device=cpu",
            "decorrelation_steps=0",
            f"learners={learners}",
            *own,
        ]
        if learners > 1:
            given.append("serial=true")
        if isinstance(PRESETS[algo]().learner, DQNConfig):
            given += [f"{key}={value}" for key, value in SMALL_REPLAY.items()]
        spec = {"what": "train", "options": given, "cpus": cpus, "malloc": "tuned"}
        row = {"run": run, "learners": learners}
        yield learner_case(f"{run}, learners: {learners}", spec, learners, row)


def tabulate(rows: list[dict[str, Any]]) -> None:
    """Print a line for each run and load."""
    table = Table("run", "busy", "one, steps/s", "one a core", "ratio", "95 %")
    for one, several in zip(rows[::2], rows[1::2], strict=True):
        if "of_one" in several:
            low, high = several["interval"]
            speeds = (f"{each['steps_per_second']['median']:,.0f}" for each in (one, several))
            share = f"{several['of_one']['median']:.2f}"
            table.add_row(one["run"], str(one["busy"]), *speeds, share, f"{low:.2f} to {high:.2f}")
    Console(width=None if sys.stdout.isatty() else 120).print(table)


if __name__ == "__main__":
    main()
