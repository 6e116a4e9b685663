"""What the papers of GA3C and PAAC compare, on this machine.

    python benchmarks/ga3c/ga3c.py [parts=[pps]] [key=value ...]

GA3C: Babaeizadeh et al. 2017 (arXiv:1611.06256). PAAC: Clemente et al. 2017 (arXiv:1705.04862).

    pps    predictions and trainings a second, and CPU use, of CPU A3C (one environment a learner),
           GA3C, PAAC and two-group A2C, with the small network and the larger ones of GA3C's
           Table 2; beside it what simulators, inference and update, each measured alone, allow
    tps    GA3C's trainings a second by numbers of agents, predictors and trainers
    tuner  GA3C's tuner, from one of each, beside the best of tps
    split  PAAC's shares of time by number of environments (its Fig. 2)
    batch  GA3C on Catch by the least size of a training batch (its Fig. 7)

Prints tables and writes OUT_PART.json and OUT_PART.png for each part. `tuner` needs `tps` beside
it, or ``best``.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from accel_rl.envs import make_env_factory
from benchmarks.harness.machine import describe_machine, usable_cores
from benchmarks.harness.options import parse
from benchmarks.harness.report import Row, write

PARTS = ("pps", "tps", "tuner", "split", "batch")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    parts: tuple[str, ...] = PARTS
    """pps, tps, tuner, split, batch"""
    game: str = "pong"
    """of all parts but batch: Atari game"""
    device: Literal["cpu", "cuda"] = "cpu"
    """where the network is, but for CPU A3C"""
    rounds: int = 5
    """times that everything is measured in pps, tps and the comparison of tuner"""
    seconds: float = 4.0
    """of one measurement there"""
    extra: str = "decorrelation_steps=0"
    """more options of every run in pps, tps and tuner, as on its command line"""
    num_envs: int = 32
    """pps: environments of every engine but CPU A3C, which are agents of GA3C"""
    min_training_batch: int = 20
    """pps, tps, tuner: least samples of GA3C's updates"""
    engines: tuple[str, ...] = ("a3c", "ga3c", "paac", "a2c")
    """pps: whom to measure"""
    learners: int | None = None
    """pps: of CPU A3C; null: one for each CPU"""
    networks: tuple[str, ...] = (
        "nips",
        "ga3c_large_stride4",
        "ga3c_large_stride3",
        "ga3c_large_stride2",
        "ga3c_large_stride1",
    )
    """pps: networks; tps and tuner have the first"""
    grid_agents: tuple[int, ...] = (8, 16, 32, 64)
    """tps: numbers of agents; the largest is the tuner's limit"""
    grid_predictors: tuple[int, ...] = (1, 2)
    """tps: numbers of predictors"""
    grid_trainers: tuple[int, ...] = (1, 2)
    """tps: numbers of trainers"""
    best: tuple[int, ...] | None = None
    """tuner: predictors, trainers and agents to compare with; null: the best of tps"""
    tuner_seconds: float = 1200.0
    """tuner: of its run"""
    tuner_interval_seconds: float = 10.0
    """tuner: between two changes"""
    split_envs: tuple[int, ...] = (16, 32, 64, 128, 256)
    """split: numbers of environments"""
    split_networks: tuple[str, ...] = ("nips", "nature")
    """split: networks"""
    split_seconds: float = 20.0
    """split: of each run, after its first reading"""
    split_log_interval: int = 2_560
    """split: steps between two readings"""
    batches: tuple[int, ...] = (0, 5, 20, 40, 80, 160)
    """batch: least samples of an update"""
    seeds: tuple[int, ...] = (0, 1, 2)
    """batch: of the runs"""
    batch_steps: int = 100_000
    """batch: steps of each run"""
    batch_envs: int = 16
    """batch: agents"""
    batch_lr: float = 1e-3
    """batch: learning rate; the loss is a sum over samples, so larger batches make larger steps"""
    out: str = "benchmarks/results/ga3c"
    """where to write, without part and ending"""


def main() -> None:
    """Measures, prints and writes."""
    options = parse(Options, sys.argv[1:], __doc__)
    problem = check(options)
    if problem:
        print(problem, file=sys.stderr)
        raise SystemExit(1)
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")  # as accel_rl.__main__, before torch is loaded
    from accel_rl.training.torch_setup import tune_malloc
    from benchmarks.ga3c.ga3c_report import DRAW, TABULATE

    tune_malloc()
    progress = Console(stderr=True)
    cores = usable_cores()
    is_failed = False
    best = None if options.best is None else tuple(options.best)
    for part, measure in _measures(options, cores, progress).items():
        if part not in options.parts:
            continue
        machine = describe_machine(cores)
        try:
            rows = measure(machine, best)
        except ValueError as error:  # of settings that do not go together
            print(f"{part}: {error}", file=sys.stderr)
            is_failed = True
            continue
        if all(row.get("error") for row in rows):
            is_failed = True
            print(f"{part}: nothing was measured: {rows[0]['error']}", file=sys.stderr)
            continue
        if part == "tps":
            from benchmarks.ga3c.ga3c_counts import find_best

            best = best or find_best(rows)
        report = {"machine": machine, "options": dataclasses.asdict(options), "rows": rows}
        write(report, f"{options.out}_{part}", TABULATE[part], DRAW[part])
        is_failed |= any(row.get("error") for row in rows)
    if is_failed:
        raise SystemExit(1)


def check(options: Options) -> str | None:
    """What is wrong with the options, if anything."""
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown or not options.parts:
        return f"parts is {list(options.parts)}; it must be some of {', '.join(PARTS)}"
    for name in ("rounds", "learners", "batch_steps", "batch_envs", "split_log_interval"):
        value = getattr(options, name)
        if value is not None and value < 1:
            return f"{name} is {value}; it must be at least 1"
    for name in ("seconds", "tuner_seconds", "tuner_interval_seconds", "split_seconds", "batch_lr"):
        if not getattr(options, name) > 0:
            return f"{name} is {getattr(options, name)}; it must be above 0"
    for name in ("grid_agents", "grid_predictors", "grid_trainers", "split_envs"):
        if min(getattr(options, name), default=0) < 1:
            return f"{name} is {list(getattr(options, name))}; it must be numbers of at least 1"
    for name in ("engines", "networks", "split_networks", "batches", "seeds"):
        if not getattr(options, name):
            return f"{name} is empty; give at least one"
    try:
        make_env_factory(options.game)
    except ValueError as error:
        return str(error)
    if options.best is not None and (len(options.best) != 3 or min(options.best) < 1):
        return f"best is {list(options.best)}; it must be three numbers of at least 1"
    if "tuner" in options.parts and "tps" not in options.parts and options.best is None:
        return (
            "parts has tuner and not tps, so there is nothing to compare with; give both, or "
            "best=[PREDICTORS,TRAINERS,AGENTS]"
        )
    return None


def _measures(
    options: Options, cores: list[list[int]], console: Console
) -> dict[str, Callable[[dict[str, Any], Any], list[Row]]]:
    """By part: what gives its rows, from the machine and the counts that tuner compares with."""
    from benchmarks.ga3c.ga3c_counts import run_grid, run_tuner
    from benchmarks.ga3c.ga3c_runs import RunFailedError, run_batches, run_split
    from benchmarks.ga3c.ga3c_speeds import run_speeds

    cpus = sorted(cpu for core in cores for cpu in core)

    def tuner(best: Any) -> list[Row]:
        with tempfile.TemporaryDirectory() as folder:
            try:
                return [run_tuner(options, best, Path(folder) / "run", console)]
            except RunFailedError as error:
                return [{"error": str(error)}]

    return {
        "pps": lambda machine, _: run_speeds(options, machine, cpus, console),
        "tps": lambda *_: run_grid(options, console),
        "tuner": lambda _, best: tuner(best),
        "split": lambda *_: run_split(options, console),
        "batch": lambda *_: run_batches(options, console),
    }


if __name__ == "__main__":
    main()
