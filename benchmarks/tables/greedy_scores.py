"""Scores of the trained policies of the table on MinAtar when they no longer explore.

    python -m benchmarks.tables.greedy_scores SWEEP_DIR...

Plays games for 100,000 steps with the last checkpoint of each finished run, with the most probable
action, or the one of the largest value. The scores are kept in
``benchmarks/results/minatar/greedy.csv``. A run that has a row there is not played again.
"""

from __future__ import annotations

import csv
import io
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from accel_rl.runs.files import write_whole
from accel_rl.tools.evaluate import EvaluateOptions, evaluate_run
from benchmarks.tables.minatar import cell_of
from benchmarks.tables.rows import finished

SCORES = Path(__file__).resolve().parents[1] / "results" / "minatar" / "greedy.csv"
STEPS, ENVS = 100_000, 16


class Score(NamedTuple):
    """A row: the mean return of ``games`` games of ``length`` steps on average."""

    algorithm: str
    game: str
    seed: int
    games: int
    mean: float
    standard_error: float
    length: float


def read(path: Path) -> list[Score]:
    """The kept scores."""
    if not path.exists():
        return []
    with path.open() as file:
        return [
            Score(row[0], row[1], int(row[2]), int(row[3]), *map(float, row[4:]))
            for row in list(csv.reader(file))[1:]
        ]


def main(sweeps: Sequence[str]) -> None:
    """Play with each policy that has not played yet, and keep its score."""
    scores = {score[:3]: score for score in read(SCORES)}
    for sweep in sweeps:
        for run, config in finished(sweep):
            cell = cell_of(config)
            if cell is None or (*cell, config["seed"]) in scores:
                continue
            score = _play(run, *cell, config["seed"])
            scores[score[:3]] = score
            print(f"{run.name}: {score.mean:.1f} in {score.games} games", flush=True)
            table = io.StringIO()
            csv.writer(table, lineterminator="\n").writerows(
                [Score._fields, *sorted(scores.values())]
            )
            write_whole(SCORES, table.getvalue().encode())


def _play(run: Path, algorithm: str, game: str, seed: int) -> Score:
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "evaluation.json")
        report = evaluate_run(
            run,
            EvaluateOptions(
                num_steps=STEPS, num_envs=ENVS, greedy=True, num_workers=0, trust=True, out=out
            ),
        )
    error = float(np.std(report.scores) / len(report.scores) ** 0.5)
    mean, length = float(np.mean(report.scores)), float(np.mean(report.lengths))
    return Score(
        algorithm, game, seed, report.num_games, round(mean, 3), round(error, 3), round(length, 1)
    )


if __name__ == "__main__":
    main(sys.argv[1:])
