"""GA3C's trainings a second by predictors, trainers and agents, and what its tuner finds.

One engine is measured with one setting after another, from few agents to many and back, so that few
have to be started anew.
"""

from __future__ import annotations

import itertools
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from accel_rl.training.torch_setup import sampling_threads
from benchmarks.ga3c.ga3c_engine import Counts, Engine
from benchmarks.ga3c.ga3c_runs import read_table, run
from benchmarks.harness.report import Row, ratio, spread

if TYPE_CHECKING:
    from benchmarks.ga3c.ga3c import Options

WARM_UP_SECONDS = 1.0
START_SECONDS = 300.0
LAST_SHARE = 3
"""the tuner's speed is that of the last third of its windows"""


def run_grid(options: Options, console: Console) -> list[Row]:
    """A row for each combination of counts."""
    grid = itertools.product(options.grid_agents, options.grid_predictors, options.grid_trainers)
    settings = [(predictors, trainers, agents) for agents, predictors, trainers in sorted(grid)]
    return measure_counts(options, settings, console)


def measure_counts(options: Options, settings: list[Counts], console: Console) -> list[Row]:
    """A row for each of ``settings``, measured in rounds."""
    rows: list[Row] = [
        {**_named(counts), "trainings": [], "predictions": []} for counts in settings
    ]
    most_agents = max(agents for _, _, agents in settings)
    with sampling_threads(), Engine(_arguments(options, most_agents)) as engine:
        for number in range(options.rounds):
            order = list(zip(settings, rows, strict=True))
            for counts, row in reversed(order) if number % 2 else order:
                name = "{} predictors, {} trainers, {} agents".format(*counts)
                console.print(f"round {number + 1}/{options.rounds}: {name}", highlight=False)
                engine.set_counts(counts)
                done = engine.measure(options.seconds, min(WARM_UP_SECONDS, options.seconds))
                row["trainings"].append(done.trainings / done.seconds)
                row["predictions"].append(done.predictions / done.seconds)
    for row in rows:
        row["trainings_per_second"] = spread(row["trainings"])
        row["predictions_per_second"] = spread(row["predictions"])
    return rows


def find_best(rows: list[Row]) -> Counts:
    """The counts of the row with most trainings a second."""
    best = max(rows, key=lambda row: float(row["trainings_per_second"]["median"]))
    return best["predictors"], best["trainers"], best["agents"]


def run_tuner(options: Options, best: Counts, folder: Path, console: Console) -> Row:
    """The tuner from one of each, and what it ends with beside ``best``, measured in rounds.

    Raises:
        RunFailedError: the run ended early, or no window of the tuner did.
    """
    most_agents = max(*options.grid_agents, best[2])
    table = folder / "tuner.csv"
    arguments = _arguments(options, most_agents)
    arguments += ["num_predictors=1", "num_trainers=1"]
    arguments += [f"tuner_interval_seconds={options.tuner_interval_seconds}"]
    arguments += ["total_steps=1e9", "log_interval=100000"]

    def is_done() -> bool:
        windows = read_table(table)
        return bool(windows) and windows[-1]["seconds"] >= options.tuner_seconds

    console.print(f"the tuner, for {options.tuner_seconds:.0f} s", highlight=False)
    run(arguments, folder, START_SECONDS + 2 * options.tuner_seconds, is_done)
    windows = read_table(table)
    found = last_kept(windows)
    row: Row = {"windows": windows, "found": _named(found), "best": _named(best)}
    last = windows[-max(1, len(windows) // LAST_SHARE) :]
    speeds = [window["trainings_per_second"] for window in last]
    row["last_trainings_per_second"] = statistics.fmean(speeds)
    row["compared"] = measure_counts(options, [found, best], console)
    row["of_best"] = ratio(*(each["trainings"] for each in row["compared"]))
    return row


def last_kept(windows: list[dict[str, float]]) -> Counts:
    """The counts of the last window that were kept; those to start with if none were."""
    kept = [window for window in windows if window["is_kept"]] or windows[:1]
    names = ("num_predictors", "num_trainers", "num_agents")
    predictors, trainers, agents = (int(kept[-1][name]) for name in names)
    return predictors, trainers, agents


def _arguments(options: Options, most_agents: int) -> list[str]:
    """Of a run that begins with one agent."""
    given = ["algo=ga3c", f"env={options.game}", *options.extra.split(), "num_envs=1"]
    given += [f"model={options.networks[0]}", f"device={options.device}"]
    return [*given, f"max_agents={most_agents}", f"min_training_batch={options.min_training_batch}"]


def _named(counts: Counts) -> dict[str, Any]:
    return dict(zip(("predictors", "trainers", "agents"), counts, strict=True))
