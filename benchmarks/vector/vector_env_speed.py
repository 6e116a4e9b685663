"""How fast is `VectorEnv`?

    python benchmarks/vector/vector_env_speed.py [key=value ...]

Measures in one interleaved run, all with random actions:

    loop         a Gymnasium environment in a plain loop, in one process
    vector_env   ours, stepped at once and by groups, with and without copies
    gymnasium    Gymnasium's AsyncVectorEnv
    sampler      ParallelSampler on an Atari game, and vector_env on the same

Figures are medians over the rounds with their range; ratios are taken round by round: to the loop
for the Gymnasium environment, to the sampler for the game. Prints a table and writes OUT.json.
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

from benchmarks.harness.interleave import Case, Result, measure
from benchmarks.harness.machine import describe_machine, usable_cores
from benchmarks.harness.options import parse
from benchmarks.harness.report import make_rows, ratio, ratio_cell, write

REFERENCES = ("loop", "sampler")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    env: str | None = "CartPole-v1"
    """Gymnasium id; null: none"""
    game: str | None = "breakout"
    """Atari game; null: none"""
    num_envs: int = 64
    """environments in all"""
    peers: tuple[str, ...] = ("gymnasium",)
    """vector environments to compare with on the Gymnasium environment: gymnasium"""
    horizon: int = 5
    """steps of each environment in one rollout of the sampler"""
    rounds: int = 5
    """times that everything is measured"""
    seconds: float = 2.0
    """of one measurement, after a short warm-up"""
    seed: int = 0
    """of environments and actions"""
    out: str = "benchmarks/results/vector_env_speed"
    """where to write, without the ending"""


def main() -> None:
    """Measures, prints and writes."""
    options = parse(Options, sys.argv[1:], __doc__)
    progress = Console(stderr=True)
    cores = usable_cores()
    machine = describe_machine(cores)
    cases = [*cart_pole_cases(options, cores), *atari_cases(options, cores)]
    results = measure(cases, rounds=options.rounds, seconds=options.seconds, console=progress)

    report = summarise(list(results.values()), machine, dataclasses.asdict(options))
    write(report, options.out, tabulate)
    if any(result.error for result in results.values()):
        raise SystemExit(1)


def cart_pole_cases(options: Options, cores: list[list[int]]) -> Iterator[Case]:
    """The Gymnasium environment: the loop on one CPU, ours, the peers."""
    if options.env is None:
        return
    yield _case(options, options.env, "loop", [cores[0][0]])
    for groups in (1, 2):
        more = {"num_envs": options.num_envs, "num_groups": groups}
        yield _case(options, options.env, "vector_env", _all(cores), vector_env=more)
    for peer in options.peers:
        more = {"num_envs": options.num_envs}
        yield _case(options, options.env, peer, _all(cores), vector_env=more)


def atari_cases(options: Options, cores: list[list[int]]) -> Iterator[Case]:
    """The game: the sampler, and ours in the same two groups."""
    if options.game is None:
        return
    sampler = {"num_envs": options.num_envs, "num_groups": 2, "horizon": options.horizon}
    yield _case(options, options.game, "sampler", _all(cores), sampler=sampler)
    for copy in (False, True):
        more = {"num_envs": options.num_envs, "num_groups": 2, "copy": copy}
        yield _case(options, options.game, "vector_env", _all(cores), vector_env=more)


def _case(options: Options, env: str, part: str, cpus: list[int], **more: Any) -> Case:
    spec = {"part": part, "env": env, "cpus": cpus, "seed": options.seed, "malloc": "tuned", **more}
    settings = " ".join(f"{key}={value}" for m in more.values() for key, value in m.items())
    name = f"{env} {part} {settings}".strip()
    return Case(name, "vector/vector_env_stepping.py", (spec,), {"env": env, "part": part, **more})


def _all(cores: list[list[int]]) -> list[int]:
    return sorted(cpu for core in cores for cpu in core)


def summarise(
    results: list[Result], machine: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    """One JSON object; ``of_reference`` is round by round, of the loop or sampler on the same."""
    rows, measured = make_rows(results)
    reference = {row["env"]: row for row in measured if row["part"] in REFERENCES}
    for row in measured:
        if row["env"] in reference:
            row["of_reference"] = ratio(row["rates"], reference[row["env"]]["rates"])
    return {"machine": machine, "options": options, "rows": rows}


def tabulate(report: dict[str, Any], console: Console) -> None:
    """Prints the rows."""
    machine = report["machine"]
    cores = len(machine["cores_used"])
    table = Table(title=f"Steps a second on {cores} cores of {machine['cpu']}")
    for column in ("", "steps/s", "range", "of loop or sampler"):
        table.add_column(column, justify="left" if not column else "right")
    for row in report["rows"]:
        steps = row.get("steps_per_second")
        if steps is None:
            table.add_row(row["name"], "failed")
            continue
        span = f"{steps['low']:,.0f}-{steps['high']:,.0f}"
        of_reference = ratio_cell(row.get("of_reference"))
        table.add_row(row["name"], f"{steps['median']:,.0f}", span, of_reference)
    console.print(table)


if __name__ == "__main__":
    main()
