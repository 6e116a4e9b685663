"""Whole runs by `python -m accel_rl`: PAAC's split of time, GA3C's batches on Catch."""

from __future__ import annotations

import csv
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from benchmarks.harness.report import Row
from benchmarks.training import learning_speed
from benchmarks.training.learning_speed import RunFailedError

if TYPE_CHECKING:
    from benchmarks.ga3c.ga3c import Options

POLL_SECONDS = 0.2
RUN_TIMEOUT_SECONDS = 3600.0


def run(
    arguments: list[str],
    run_dir: Path,
    timeout_seconds: float,
    is_done: Callable[[], bool] = lambda: False,
) -> None:
    """A run to its end, or until ``is_done``; it saves and ends then.

    Raises:
        RunFailedError: it failed, or took longer; the message holds the end of what it printed.
    """
    command = [sys.executable, "-m", "accel_rl", *arguments, f"run_dir={run_dir}"]
    deadline = time.monotonic() + timeout_seconds
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        is_ended = False
        try:
            while process.poll() is None and not (is_ended := is_done()):
                if time.monotonic() > deadline:
                    break
                time.sleep(POLL_SECONDS)
            if not is_ended and process.poll() != 0:
                output.seek(0)
                words = output.read().decode(errors="replace")[-2000:]
                raise RunFailedError(f"{' '.join(command)}\n{words}")
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def read_table(path: Path) -> list[dict[str, float]]:
    """The rows of a CSV file that may grow meanwhile; none where there is no file."""
    if not path.exists():
        return []
    lines = [line for line in path.read_text().splitlines(True) if line.endswith("\n")]
    return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(lines)]


def run_split(options: Options, console: Console) -> list[Row]:
    """PAAC's shares of time for each number of environments and network: its Fig. 2."""
    rows: list[Row] = []
    for network in options.split_networks:
        for num_envs in options.split_envs:
            console.print(f"PAAC, {network}, {num_envs} environments", highlight=False)
            how = learning_speed.Options(
                game=options.game,
                device=options.device,
                log_interval=options.split_log_interval,
                seconds=options.split_seconds,
            )
            preset = f"paac num_envs={num_envs} model={network}"
            row: Row = {"network": network, "num_envs": num_envs}
            try:
                row |= learning_speed.summarise(learning_speed.run(how, preset))
            except RunFailedError as error:
                row["error"] = str(error)
            rows.append(row)
    return rows


def run_batches(options: Options, console: Console) -> list[Row]:
    """GA3C on Catch for each least batch and seed: the final score and the mean over the run."""
    rows: list[Row] = []
    for batch in options.batches:
        row: Row = {"min_training_batch": batch, "curves": []}
        rows.append(row)
        for seed in options.seeds:
            console.print(f"Catch, min_training_batch={batch}, seed {seed}", highlight=False)
            try:
                with tempfile.TemporaryDirectory() as folder:
                    row["curves"].append(_learn(options, batch, seed, Path(folder) / "run"))
            except RunFailedError as error:
                row["error"] = str(error)
        if row["curves"]:
            row |= summarise_curves(row["curves"])
    return rows


def _learn(options: Options, batch: int, seed: int, run_dir: Path) -> dict[str, list[float]]:
    """Score over steps, and what batches there were."""
    arguments = ["algo=ga3c", "env=catch", "model=mlp", "tuner=false", "device=cpu"]
    arguments += [f"num_envs={options.batch_envs}", f"learner.lr={options.batch_lr}"]
    arguments += [f"min_training_batch={batch}", f"seed={seed}"]
    arguments += [f"total_steps={options.batch_steps}"]
    arguments += [f"log_interval={max(1, options.batch_steps // 50)}"]
    run(arguments, run_dir, RUN_TIMEOUT_SECONDS)
    table = read_table(run_dir / "metrics.csv")
    names = {
        "steps": "steps",
        "score": "episode_return_raw_mean",
        "training_batch": "training_batch_mean",
        "lag": "lag_updates_mean",
    }
    return {name: [row[column] for row in table] for name, column in names.items()}


def summarise_curves(curves: list[dict[str, list[float]]]) -> Row:
    """Of all seeds: final scores, and areas under the curves divided by the steps."""
    final = [curve["score"][-1] for curve in curves]
    areas = [_area(curve["steps"], curve["score"]) for curve in curves]
    return {
        "final": final,
        "area": areas,
        "final_mean": statistics.fmean(final),
        "area_mean": statistics.fmean(areas),
        "area_spread": max(areas) - min(areas),
        "training_batch": statistics.fmean(statistics.fmean(c["training_batch"]) for c in curves),
        "lag": statistics.fmean(statistics.fmean(c["lag"]) for c in curves),
    }


def _area(steps: list[float], score: list[float]) -> float:
    """The mean score over the steps, straight between rows; one row is its own mean."""
    x, y = np.array(steps), np.array(score)
    known = np.isfinite(y)
    x, y = x[known], y[known]
    if len(x) < 2:
        return float(y.mean())
    return float(((y[1:] + y[:-1]) / 2 * np.diff(x)).sum() / (x[-1] - x[0]))
