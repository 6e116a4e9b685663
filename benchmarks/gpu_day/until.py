"""How long does a preset take until it plays a game well?

    python benchmarks/gpu_day/until.py [game=pong] [aim=18] [key=value ...]

Trains by `accel_rl train` until the mean return of the last 100 episodes is ``aim``, or for
``limit_seconds``. Seconds count from the start of the program, with everything that it loads.
Prints a line and writes OUT.json and OUT.csv, the run's metrics.
"""

from __future__ import annotations

import dataclasses
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.harness.machine import describe_machine, usable_cores
from benchmarks.harness.options import parse
from benchmarks.harness.report import Row, write
from benchmarks.speed.learning_speed import RunFailedError, train

RETURN = "episode_return_raw_mean"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to train."""

    game: str = "pong"
    """Atari game"""
    aim: float = 18.0
    """mean return of the last 100 episodes"""
    algo: str = "ppo num_envs=64"
    """a preset, with further options of training after a blank"""
    total_steps: int = 20_000_000
    """of the run, which schedules depend on"""
    device: str = "auto"
    """where the network is: auto, cpu or cuda"""
    limit_seconds: float = 0.0
    """after which it ends; 0: none"""
    log_interval: int = 20_480
    """steps between two readings"""
    seed: int = 0
    """of the run"""
    out: str = "build/until"
    """where to write, without the ending"""


def main() -> None:
    """Train, print and write."""
    options = parse(Options, sys.argv[1:], __doc__)
    row: Row = {"part": "until", "game": options.game, "aim": options.aim, "reached": False}
    machine, given = describe_machine(usable_cores()), dataclasses.asdict(options)
    report = {"machine": machine, "options": given, "rows": [row]}
    try:
        train_until(options, row)
    except KeyboardInterrupt:  # a time limit from outside
        row["error"] = "interrupted"
    except RunFailedError as error:
        row["error"] = str(error)
        raise SystemExit(row["error"]) from None
    finally:
        write(report, options.out, tabulate)


def train_until(options: Options, row: Row) -> None:
    """Train until the aim is reached or time is over, and keep ``row`` up to date."""
    algo, *more = options.algo.split()
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        command = [
            sys.executable,
            "-m",
            "accel_rl",
            "train",
            f"algo={algo}",
            *more,
            f"env={options.game}",
        ]
        command += [f"device={options.device}", f"seed={options.seed}", f"run_dir={run_dir}"]
        command += [f"total_steps={options.total_steps}", f"log_interval={options.log_interval}"]
        began = time.monotonic()

        def is_done(rows: list[dict[str, float]]) -> bool:
            row["seconds"] = time.monotonic() - began
            look(rows, options.aim, row)
            return bool(row["reached"]) or 0 < options.limit_seconds < row["seconds"]

        try:
            train([*command, "evaluation_interval=0"], run_dir, is_done)
        finally:
            if (run_dir / "metrics.csv").exists():
                Path(options.out).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(run_dir / "metrics.csv", f"{options.out}.csv")


def look(rows: list[dict[str, float]], aim: float, row: Row) -> None:
    """Put steps, the best return, and whether that is the aim into ``row``."""
    returns = [each[RETURN] for each in rows if each[RETURN] == each[RETURN]]  # none ended: nan
    if rows:
        row |= {name: rows[-1][name] for name in ("steps", "training_seconds")}
    if returns:
        row["best_return"] = max(returns)
        row["reached"] = max(returns) >= aim


def tabulate(report: dict[str, Any], console: Console) -> None:
    """Print one line."""
    for row in report["rows"]:
        what = "reached" if row["reached"] else "not reached"
        text = f"{row['game']}: {row['aim']:g} {what} after {row.get('seconds', 0):.0f} s"
        text += f", {row.get('steps', 0):,.0f} steps; best {row.get('best_return', '-')}"
        console.print(text, highlight=False)


if __name__ == "__main__":
    main()
