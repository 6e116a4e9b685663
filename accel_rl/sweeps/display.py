"""The progress of a sweep: a live table in a terminal, elsewhere lines."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from accel_rl.runs.files import open_regular
from accel_rl.sweeps.queue import Job
from accel_rl.tools.output import make_table
from accel_rl.training.progress import LINE_SECONDS, PANEL_SECONDS, clock, count

_TAIL_BYTES = 1 << 14


class Standing(NamedTuple):
    """The last row of a run's ``metrics.csv``; NaN where there is none yet."""

    steps: float = 0.0
    steps_per_second: float = math.nan
    score: float = math.nan


def read_standing(run_dir: Path) -> Standing:
    """Return how a run stands, from the end of its metrics, which may be long."""
    columns = ("steps", "steps_per_second", "episode_return_raw_mean")
    try:
        with open_regular(run_dir / "metrics.csv") as file:
            header = file.readline()
            file.seek(max(file.tell(), os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            whole = [line for line in file if line.endswith(b"\n")]
        (row,) = csv.DictReader(line.decode() for line in (header, *whole[-1:]))
        return Standing(*(float(row[name]) for name in columns))
    except (OSError, KeyError, TypeError, ValueError, csv.Error):  # the report says so
        return Standing()


class SweepDisplay:
    """Shows jobs on ``console``: a table that is drawn over itself, or lines in a file or CI."""

    def __init__(self, console: Console, jobs: Sequence[Job]) -> None:
        self._console = console
        self._jobs = jobs
        self._live: Live | None = None
        if console.is_terminal and not console.is_dumb_terminal:
            self._live = Live(console=console, auto_refresh=False)
            self._live.start()
        self._shown = monotonic()

    def tell(self, job: Job) -> None:
        """Print a line about a job whose state has changed."""
        number = sum(each.state in ("finished", "failed") for each in self._jobs)
        message = f"{number} of {len(self._jobs)}  {job.run.name}: {job.state}"
        if job.state == "finished":
            message += f", score {_number(read_standing(job.run_dir).score)}"
        if job.state == "running" and job.left is not None:
            message += f", from the beginning in {job.run_dir}: {job.left} has no checkpoint"
        if job.error:
            message += f", {job.error} (all it printed: {job.output})"
        self.say(message)

    def say(self, message: str) -> None:
        self._console.print(message, markup=False, highlight=False, soft_wrap=True)

    def look(self) -> None:
        """Show how all jobs stand, if it is time to."""
        wait = LINE_SECONDS if self._live is None else PANEL_SECONDS
        if monotonic() - self._shown < wait:
            return
        self._shown = monotonic()
        running = {job.run.name: read_standing(job.run_dir) for job in self._jobs if _runs(job)}
        left = seconds_left(self._jobs, running)
        if self._live is not None:
            self._live.update(table(self._jobs, running, left, self._console.width), refresh=True)
            return
        for job in filter(_runs, self._jobs):
            each = running[job.run.name]
            self.say(
                f"{job.run.name}: {each.steps / job.run.config.planned_steps:.0%}, "
                f"{each.steps:,.0f} steps, steps/s {_number(each.steps_per_second, 0)}, "
                f"score {_number(each.score)}, sweep left {clock(left)}"
            )

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()


def seconds_left(jobs: Sequence[Job], running: Mapping[str, Standing]) -> float:
    """Return the time that all jobs still need; NaN before a speed is known."""
    speeds = [each.steps_per_second for each in running.values()]
    known = [speed for speed in speeds if speed > 0]
    if not known:
        return math.nan
    left = [job for job in jobs if job.state == "waiting" or _runs(job)]
    steps = sum(_steps_left(job, running.get(job.run.name, Standing())) for job in left)
    # Runs without a row yet count like the others.
    return steps / (sum(known) / len(known) * len(running))


def _steps_left(job: Job, standing: Standing) -> float:
    return max(0, job.run.config.planned_steps - standing.steps)


def table(
    jobs: Sequence[Job], running: Mapping[str, Standing], left: float, width: int
) -> RenderableType:
    """Return a bar of all jobs, and a row for each job that runs.

    ``left``: seconds, NaN if unknown. ``width``: columns of the terminal.
    """
    states = [job.state for job in jobs]
    told = [f"{states.count('finished')} of {len(jobs)} runs finished"]
    for state in ("failed", "stopped", "stopping", "running", "waiting"):
        told += [f"{states.count(state)} {state}"] * (state in states)
    head = Table.grid(expand=True, padding=(0, 1))
    head.add_column(ratio=1)
    head.add_column(justify="right", no_wrap=True)
    head.add_row(
        ProgressBar(total=len(jobs), completed=states.count("finished")),
        ", ".join([*told, *[f"left {clock(left)}"] * bool(running)]),
    )
    if not running:
        return head
    rows = []
    for job in filter(_runs, jobs):
        each = running[job.run.name]
        steps = count(each.steps), count(job.run.config.planned_steps)
        numbers = _number(each.steps_per_second, 0), _number(each.score)
        time = clock(_steps_left(job, each) / (each.steps_per_second or math.nan))
        rows.append((job.run.name, *steps, *numbers, time))
    columns = ("run", "steps", "of", "steps/s", "score", "left")
    return Group(head, make_table(columns, rows, width))


def _number(value: float, digits: int = 2) -> str:
    return f"{value:,.{digits}f}" if math.isfinite(value) else "none yet"


def _runs(job: Job) -> bool:
    return job.state in ("running", "stopping")
