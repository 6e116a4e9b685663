"""How fast does every preset learn here, and where does its time go?

    python benchmarks/speed/learning_speed.py [key=value ...]

Runs each preset by `accel_rl train`, and stops it after some seconds of learning. The figures
are the run's own, from its metrics.csv: the first row in which it learned is left out, and the rest
is taken together. Q-learners learn after ``learning_starts``, from a replay of ``buffer_size``; all
else is as the preset has it, but that there are no evaluations and no random first steps. Beside
the hours that 50 M steps would take stand those of Stooke and Abbeel 2018 (arXiv:1803.02811, table
2) on one GPU and five cores.
``presets=[a2c,'a2c cuda_graphs=off']`` shows what CUDA graphs give.
Prints a table and writes OUT.json, also of the presets before an interruption.
"""

from __future__ import annotations

import csv
import dataclasses
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.harness.machine import describe_machine, usable_cores
from benchmarks.harness.options import parse
from benchmarks.harness.report import Row, table_for, write

STEPS = 50_000_000
PAPER_HOURS = {
    "a2c": 3.8,
    "ppo": 4.4,
    "dqn batch_size=512": 8.3,
    "rainbow": 14.1,  # its preset's batch is 512
    "cat_dqn batch_size=2048": 10.7,
}
SHARES = {  # of this process, which add up to 1; simulators work beside it
    "waiting": "waiting_for_simulators_share",
    "inference": "inference_share",
    "learning": "learning_share",
    "other": "other_share",
}
BESIDE = {"simulating": "simulators_busy_share"}
Q_LEARNERS = ("dqn", "double_dqn", "cat_dqn", "rainbow")
START_TIMEOUT_SECONDS, STOP_SECONDS = 300.0, 5.0


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure."""

    presets: tuple[str, ...] = (
        "a2c",
        "a2c num_envs=128",
        "paac",
        "ppo",
        "ppo num_envs=64",
        "dqn",
        "dqn batch_size=512",
        "double_dqn",
        "double_dqn batch_size=512",
        "cat_dqn",
        "cat_dqn batch_size=2048",
        "rainbow batch_size=32",
        "rainbow",
    )
    """presets, each with further options of training after a blank"""
    game: str = "breakout"
    """Atari game"""
    device: str = "auto"
    """where the network is: auto, cpu or cuda"""
    learning_starts: int = 3_000
    """steps before a Q-learner learns"""
    buffer_size: int = 100_000
    """steps in a Q-learner's replay; 1,000,000, as in the presets, take 8.3 GB"""
    log_interval: int = 1_024
    """steps between two readings"""
    seconds: float = 20.0
    """of learning, for each; at least two readings"""
    seed: int = 0
    """of the runs"""
    out: str = "build/learning_speed"
    """where to write, without the ending"""


def main() -> None:
    """Measures, prints and writes."""
    options = parse(Options, sys.argv[1:], __doc__)
    progress = Console(stderr=True)
    machine = describe_machine(usable_cores())
    rows = []
    for preset in options.presets:
        progress.print(preset, highlight=False)
        rows.append({"preset": preset, "paper_hours": PAPER_HOURS.get(preset)})
        try:
            rows[-1] |= summarise(run(options, preset))
        except RunFailedError as error:
            rows[-1]["error"] = str(error)
            progress.print(f"[red]{preset} failed[/red]: {error}", highlight=False)
        except KeyboardInterrupt:  # a time limit from outside
            rows[-1]["error"] = "interrupted"
            break
    report = {"machine": machine, "options": dataclasses.asdict(options), "rows": rows}
    write(report, options.out, tabulate)
    if any("error" in row for row in rows):
        raise SystemExit(1)


class RunFailedError(RuntimeError):
    """A run ended or did not learn in time; the message holds the end of what it printed."""


def command(options: Options, preset: str, run_dir: Path) -> list[str]:
    """The run of ``preset``, a name and perhaps options after it."""
    algo, *more = preset.split()
    run = [sys.executable, "-m", "accel_rl", "train", f"algo={algo}", *more, f"env={options.game}"]
    run += [f"device={options.device}", f"seed={options.seed}", f"run_dir={run_dir}"]
    run += [f"total_steps={STEPS}", "evaluation_interval=0"]
    run += [f"log_interval={options.log_interval}", "sampler.decorrelation_steps=0"]
    if algo in Q_LEARNERS:
        run += [f"learning_starts={options.learning_starts}", f"buffer_size={options.buffer_size}"]
    return run


def run(options: Options, preset: str) -> list[dict[str, float]]:
    """The rows of metrics in which the run learned.

    Raises:
        RunFailedError: see there.
    """
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        deadline = time.monotonic() + START_TIMEOUT_SECONDS + 10 * options.seconds

        def is_done(rows: list[dict[str, float]]) -> bool:
            if time.monotonic() > deadline:
                raise RunFailedError(f"no learning for {options.seconds:.0f} s")
            return len(rows) >= 3 and _passed(rows, "training_seconds") >= options.seconds

        return train(command(options, preset, run_dir), run_dir, is_done)


def train(
    command: list[str], run_dir: Path, is_done: Callable[[list[dict[str, float]]], bool]
) -> list[dict[str, float]]:
    """Train until ``is_done`` of the rows in which the run learned; return these rows.

    Raises:
        RunFailedError: it has ended before.
    """
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            while not is_done(rows := learning_rows(run_dir / "metrics.csv")):
                if process.poll() is not None:
                    output.seek(0)
                    raise RunFailedError(output.read().decode(errors="replace")[-2000:])
                time.sleep(0.2)
            return rows
        finally:
            process.terminate()  # it saves and ends
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def learning_rows(path: Path) -> list[dict[str, float]]:
    """The rows of ``metrics.csv`` with updates in them; none where there is no file."""
    if not path.exists():
        return []
    with path.open() as file:
        lines = [line for line in file if line.endswith("\n")]  # the last may be half written
    rows = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(lines)]
    return [row for row in rows if row["updates_per_second"] > 0]


def _passed(rows: list[dict[str, float]], name: str) -> float:
    return rows[-1][name] - rows[0][name]


def summarise(rows: list[dict[str, float]]) -> Row:
    """What happened from the first of ``rows`` to the last; ``steps_per_second`` is a spread."""
    seconds = [
        after["training_seconds"] - before["training_seconds"] for before, after in pairwise(rows)
    ]
    total = sum(seconds)
    speeds = [row["steps_per_second"] for row in rows[1:]]
    steps_per_second = _passed(rows, "steps") / total
    shares = {
        name: sum(row[column] * each for row, each in zip(rows[1:], seconds, strict=True)) / total
        for name, column in (SHARES | BESIDE).items()
    }
    return {
        "seconds": total,
        "steps_per_second": {"mean": steps_per_second, "low": min(speeds), "high": max(speeds)},
        "updates_per_second": _passed(rows, "updates") / total,
        "shares": shares,
        "hours": STEPS / steps_per_second / 3600,
    }


def tabulate(report: dict[str, Any], console: Console) -> None:
    """Prints a line for each preset."""
    columns = ("steps/s", "range", "updates/s", *SHARES, *BESIDE, "hours for 50 M", "paper, 1 GPU")
    table = table_for(report, f"Learning {report['options']['game']}", columns)
    for row in report["rows"]:
        if "error" in row:
            table.add_row(row["preset"], "failed")
            continue
        steps = row["steps_per_second"]
        shown = [
            row["preset"],
            f"{steps['mean']:,.0f}",
            f"{steps['low']:,.0f}-{steps['high']:,.0f}",
        ]
        shown += [f"{row['updates_per_second']:,.1f}"]
        shown += [f"{share:.0%}" for share in row["shares"].values()]
        table.add_row(*shown, f"{row['hours']:,.1f}", str(row["paper_hours"] or ""))
    console.print(table)


if __name__ == "__main__":
    main()
