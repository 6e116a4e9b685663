"""What do batches of simulators cost in our workers?

    python benchmarks/sampling/batched_speed.py [key=value ...]

Measures by turns, all with random actions, and compares round by round:

    EnvPool     `ParallelSampler` on an EnvPool task, with EnvPool's own asynchronous loop
    Gymnasium   `ParallelSampler` on Gymnasium's vectorised CartPole, with the same environments one
                by one, and with two bare loops over half the environments each, at once

Figures are medians of the ratios with their 95 % bootstrap intervals. Prints a table and writes
OUT.json.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.harness.interleave import Case, measure
from benchmarks.harness.machine import describe_machine, usable_cores
from benchmarks.harness.options import parse
from benchmarks.harness.report import interval, make_rows, ratio, write


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    envpool: tuple[str, ...] = ("CartPole-v1:1024", "CartPole-v1:64", "Breakout-v5:64")
    """EnvPool tasks, and the number of environments of each; null: none"""
    gymnasium: tuple[int, ...] = (1024,)
    """numbers of environments of Gymnasium's CartPole; null: none"""
    python: str = sys.executable
    """interpreter that has EnvPool"""
    horizon: int = 64
    """steps of each environment in one rollout"""
    rounds: int = 9
    """times that everything is measured"""
    seconds: float = 1.5
    """of one measurement, after a short warm-up"""
    seed: int = 0
    """of environments and actions"""
    out: str = "benchmarks/results/batched_speed"
    """where to write, without the ending"""


def main() -> None:
    """Measures, prints and writes."""
    options = parse(Options, sys.argv[1:], __doc__)
    cores = usable_cores()
    machine = describe_machine(cores)
    cases = [*envpool_cases(options, cores), *gymnasium_cases(options, cores)]
    results = measure(
        cases, rounds=options.rounds, seconds=options.seconds, console=Console(stderr=True)
    )
    rows, measured = make_rows(results.values())
    report = {"machine": machine, "options": dataclasses.asdict(options)}
    report |= {"rows": rows, "figures": compare(measured)}
    write(report, options.out, tabulate)
    if any(result.error for result in results.values()):
        raise SystemExit(1)


def envpool_cases(options: Options, cores: list[list[int]]) -> Iterator[Case]:
    """Each task in our workers, then alone."""
    for text in options.envpool or ():
        task, _, number = text.rpartition(":")
        num_envs, threads = int(number), len(cores)
        about = {"env": f"envpool:{task}", "num_envs": num_envs}
        yield _sampler(options, f"envpool:{task}", num_envs, cores, about, options.python)
        settings = {"num_envs": num_envs, "batch_size": num_envs // 2, "num_threads": threads}
        spec = {"part": "envpool", "env": task, "settings": settings}
        yield _case(options, [(spec, _all(cores))], {**about, "part": "envpool"}, options.python)


def gymnasium_cases(options: Options, cores: list[list[int]]) -> Iterator[Case]:
    """CartPole as a batch, one by one, and in bare loops, one on each core."""
    for num_envs in options.gymnasium or ():
        about = {"env": "gymnasium-vec:CartPole-v1", "num_envs": num_envs}
        yield _sampler(options, "gymnasium-vec:CartPole-v1", num_envs, cores, about)
        yield _sampler(options, "CartPole-v1", num_envs, cores, {**about, "part": "looped"})
        spec = {"part": "vectorised", "env": "CartPole-v1", "num_envs": num_envs // len(cores)}
        specs = [(spec, cpus) for cpus in cores]
        yield _case(options, specs, {**about, "part": "bare"})


def _sampler(
    options: Options,
    env: str,
    num_envs: int,
    cores: list[list[int]],
    about: dict[str, Any],
    python: str = sys.executable,
) -> Case:
    settings = {
        "num_envs": num_envs,
        "horizon": options.horizon,
        "num_workers": len(cores),
        "final_observation_slots": 8,
    }
    spec = {"part": "sampler", "env": env, "settings": settings}
    return _case(options, [(spec, _all(cores))], {"part": "sampler", **about}, python)


def _case(
    options: Options,
    specs: list[tuple[dict[str, Any], list[int]]],
    row: dict[str, Any],
    python: str = sys.executable,
) -> Case:
    common = {"seed": options.seed, "malloc": "tuned"}
    name = f"{row['env']} {row['num_envs']} {row['part']}"
    whole = tuple({**spec, **common, "cpus": cpus} for spec, cpus in specs)
    return Case(name, "sampling/batched_stepping.py", whole, row, python)


def _all(cores: list[list[int]]) -> list[int]:
    return sorted(cpu for core in cores for cpu in core)


def compare(measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Our sampler's steps a second, as a share of those of each other part."""
    figures = []
    for row in measured:
        for other in measured:
            same = all(row[key] == other[key] for key in ("env", "num_envs"))
            if row["part"] == "sampler" and other is not row and same:
                figures.append(
                    {"env": row["env"], "num_envs": row["num_envs"], "of": other["part"]}
                    | ratio(row["rates"], other["rates"])
                    | {"interval": interval(row["rates"], other["rates"], len(row["rates"]))}
                )
    return figures


def tabulate(report: dict[str, Any], console: Console) -> None:
    """Prints steps a second, and the ratios."""
    table = Table(title="Steps a second")
    for column in ("", "steps/s", "range"):
        table.add_column(column, justify="left" if not column else "right")
    for row in report["rows"]:
        if "steps_per_second" not in row:
            continue
        steps = row["steps_per_second"]
        span = f"{steps['low']:,.0f}-{steps['high']:,.0f}"
        table.add_row(row["name"], f"{steps['median']:,.0f}", span)
    console.print(table)
    table = Table(title="Our sampler, as a multiple")
    for column in ("", "of", "median", "95 %"):
        table.add_column(column)
    for each in report["figures"]:
        low, high = each["interval"]
        name = f"{each['env']} {each['num_envs']}"
        table.add_row(name, each["of"], f"{each['median']:.3f}", f"{low:.3f}-{high:.3f}")
    console.print(table)


if __name__ == "__main__":
    main()
