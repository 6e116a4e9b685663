"""Predictions and trainings a second of CPU A3C, GA3C, PAAC and two-group A2C: GA3C's Table 2.

    python benchmarks/ga3c/ga3c_speeds.py [networks=[nips]] [key=value ...]

GA3C: Babaeizadeh et al. 2017 (arXiv:1611.06256). PAAC: Clemente et al. 2017 (arXiv:1705.04862).
Engines have the same simulators (84 x 84, whole games) and the same network; CPU A3C has one
environment in each learner. A prediction is an agent step, a training an update: of 5 samples, of
at least ``min_training_batch``, or of all environments. All of one network are measured in one
interleaved run. ``other=DIR`` measures another checkout by turns with this one. Prints a table and
writes OUT.json.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from accel_rl.envs import is_atari_game
from benchmarks.harness.interleave import Case, Result, measure, with_other
from benchmarks.harness.machine import describe_machine, usable_cores
from benchmarks.harness.options import parse
from benchmarks.harness.report import (
    Row,
    compare,
    find,
    make_rows,
    ratio,
    ratio_cell,
    spread,
    spread_cells,
    table_for,
    tabulate_ratios,
    write,
)
from benchmarks.scaling.scaling_learner import learner_case

HORIZON = 5
PROTOCOL = ("observation_size=84x84", "episodic_lives=false", "press_fire=false")
"""the same simulators for all"""
PAPER_FACTORS = {
    "nips": 1361 / 352,
    "ga3c_large_stride4": 1271 / 113,
    "ga3c_large_stride3": 1206 / 97,
    "ga3c_large_stride2": 874 / 43,
    "ga3c_large_stride1": 490 / 11,
}
"""of GA3C's predictions a second to CPU A3C's, on its first system with a GPU"""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    engines: tuple[str, ...] = ("a3c", "ga3c", "paac", "a2c")
    """whom to measure"""
    networks: tuple[str, ...] = tuple(PAPER_FACTORS)
    """networks, each in a run of its own"""
    other: str | None = None
    """directory of another checkout: it runs all, too, by turns with this one"""
    game: str = "pong"
    """Atari game"""
    device: Literal["cpu", "cuda"] = "cpu"
    """where the network is, but for CPU A3C"""
    num_envs: int = 32
    """environments of every engine but CPU A3C, which are agents of GA3C"""
    min_training_batch: int = 20
    """least samples of GA3C's updates"""
    learners: int | None = None
    """of CPU A3C; null: one for each CPU"""
    extra: str = "decorrelation_steps=0"
    """more options of every run, as on its command line"""
    starts: int = 1
    """times that all processes are started"""
    rounds: int = 5
    """times that everything is measured after each start"""
    seconds: float = 4.0
    """of one measurement"""
    out: str = "build/ga3c"
    """where to write, without the ending"""


def main() -> None:
    """Measures, prints and writes."""
    options = parse(Options, sys.argv[1:], __doc__)
    progress = Console(stderr=True)
    cores = usable_cores()
    machine = describe_machine(cores)
    cpus = sorted(cpu for core in cores for cpu in core)
    rows: list[Row] = []
    for network in options.networks:
        cases = with_other(make_cases(options, network, cpus), options.other)
        results = measure(
            cases,
            rounds=options.rounds,
            seconds=options.seconds,
            console=progress,
            starts=options.starts,
        )
        rows += summarise(list(results.values()), len(cores))
    report = {"machine": machine, "options": dataclasses.asdict(options), "rows": rows}
    write(report, options.out, tabulate)
    if any(row["error"] for row in rows):
        raise SystemExit(1)


def make_cases(options: Options, network: str, cpus: list[int]) -> Iterator[Case]:
    """The engines with one network."""
    learners = options.learners or len(cpus)
    for engine in options.engines:
        given = [f"algo={engine}", f"env={options.game}", f"model={network}"]
        given += [*(PROTOCOL if is_atari_game(options.game) else ()), *options.extra.split()]
        row: Row = {"engine": engine, "network": network, "device": options.device}
        name = f"{engine}, {network}"
        spec: dict[str, Any] = {"cpus": cpus, "malloc": "tuned", "what": "train"}
        if engine == "a3c":
            row |= {"device": "cpu", "steps_per_update": HORIZON}
            given += [f"learners={learners}", "num_envs=1", "sampler.num_groups=1", "device=cpu"]
            case = learner_case(name, spec | {"options": given, "serial": True}, learners, row)
            specs = tuple(  # one thread of learning each
                each | {"cpus": [cpus[each["rank"] % len(cpus)]]} for each in case.specs
            )
            yield dataclasses.replace(case, specs=specs)
            continue
        given += [f"num_envs={options.num_envs}", f"device={options.device}"]
        if engine == "ga3c":
            given += ["tuner=false", f"min_training_batch={options.min_training_batch}"]
            yield Case(name, "ga3c/ga3c_child.py", (spec | {"options": given},), row)
        else:
            row["steps_per_update"] = options.num_envs * HORIZON
            yield learner_case(name, spec | {"options": given}, 1, row)


def summarise(results: list[Result], cores: int) -> list[Row]:
    """The rows of one network; ``of_a3c``: predictions of those of CPU A3C, round by round.

    ``trained_share``: samples trained on / predictions; 1 where GA3C's queues are in balance.
    """
    rows, measured = make_rows(results)
    compare(measured)
    numbers = {result.case.name: result.numbers for result in results}
    for row in measured:
        rounds = numbers[row["name"]]
        seconds = [max(each["seconds"] for each in children) for children in rounds]
        used = [sum(each["cpu_seconds"] for each in children) for children in rounds]
        row["cpu_share"] = spread([a / b / cores for a, b in zip(used, seconds, strict=True)])
        if "steps_per_update" in row:
            rates = [rate / row["steps_per_update"] for rate in row["rates"]]
        else:
            done = [children[0] for children in rounds]
            rates = [each["trainings"] / each["seconds"] for each in done]
            row["trained_share"] = spread([x["samples"] / x["predictions"] for x in done])
            for name, what, of in (
                ("prediction_batch", "predictions", "prediction_batches"),
                ("training_batch", "samples", "trainings"),
            ):
                row[name] = statistics.median(each[what] / max(1, each[of]) for each in done)
        row["trainings_per_second"] = spread(rates)
        for a3c in find(measured, engine="a3c", is_other=row.get("is_other")):
            row["of_a3c"] = ratio(row["rates"], a3c["rates"])
    return rows


def tabulate(report: dict[str, Any], console: Console) -> None:
    """A line for each engine and network, then GA3C beside CPU A3C."""
    columns = ("predictions/s", "range", "trainings/s", "CPU", "of CPU A3C")
    table = table_for(report, "Engines", columns)
    for row in report["rows"]:
        if "steps_per_second" not in row:
            table.add_row(row["name"], "failed")
            continue
        table.add_row(
            row["name"],
            *spread_cells(row["steps_per_second"]),
            f"{row['trainings_per_second']['median']:,.1f}",
            f"{row['cpu_share']['median']:.0%}",
            ratio_cell(row.get("of_a3c")),
        )
    console.print(table)
    tabulate_ratios(report["rows"], console)
    for row in find(report["rows"], engine="ga3c"):
        if "of_a3c" in row and row["network"] in PAPER_FACTORS:
            times = f"{ratio_cell(row['of_a3c'])} times CPU A3C's predictions"
            paper = f"{PAPER_FACTORS[row['network']]:.1f} times"
            console.print(f"{row['name']}: {times}; the paper, with a GPU: {paper}")


if __name__ == "__main__":
    main()
