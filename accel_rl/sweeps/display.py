"""How the runs of a sweep stand, while they run: a live table in a terminal, elsewhere lines."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from accel_rl.runs.files import open_regular
from accel_rl.sweeps.queue import Job
from accel_rl.tools.output import make_table
from accel_rl.training.progress import LINE_SECONDS, PANEL_SECONDS, clock, count

_TAIL_BYTES = 1 << 14


@dataclass(frozen=True)
class Standing:
    """The last row of a run's ``metrics.csv``; NaN where there is none yet."""

    steps: float = 0.0
    steps_per_second: float = math.nan
    score: float = math.nan


def read_standing(run_dir: Path) -> Standing:
    """How the run in ``run_dir`` stands, from the end of its metrics: they may be long."""
    try:
        with open_regular(run_dir / "metrics.csv") as file:
            header = file.readline().decode()
            start = file.tell()
            file.seek(max(start, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            lines = file.read().decode().splitlines(keepends=True)
        whole = [line for line in lines if line.endswith("\n")]
        read = list(csv.reader(io.StringIO("".join([header, *whole[-1:]]))))
        if len(read) != 2 or len(read[0]) != len(read[1]):  # it is just being written
            return Standing()
        row = dict(zip(read[0], map(float, read[1]), strict=True))
        return Standing(row["steps"], row["steps_per_second"], row["episode_return_raw_mean"])
    except (OSError, KeyError, ValueError, csv.Error):  # the run itself or the report says so
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
        """A line about a job whose state has changed."""
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
        """Shows how all jobs stand, if it is time to."""
        wait = LINE_SECONDS if self._live is None else PANEL_SECONDS
        if monotonic() - self._shown < wait:
            return
        self._shown = monotonic()
        running = [(job, read_standing(job.run_dir)) for job in self._jobs if _runs(job)]
        left = seconds_left(self._jobs, dict((job.run.name, each) for job, each in running))
        if self._live is not None:
            self._live.update(table(self._jobs, running, left, self._console.width), refresh=True)
            return
        for job, each in running:
            speed = each.steps_per_second
            self.say(
                f"{job.run.name}: {each.steps / job.run.config.planned_steps:.0%}, "
                f"{each.steps:,.0f} steps, "
                f"{f'{speed:,.0f} steps/s' if math.isfinite(speed) else 'speed none yet'}, "
                f"score {_number(each.score)}, sweep left {clock(left)}"
            )

    def close(self) -> None:
        """Leaves the last table standing; calling it again does nothing."""
        if self._live is not None:
            self._live.stop()


def seconds_left(jobs: Sequence[Job], running: dict[str, Standing]) -> float:
    """What is left of all jobs at the speed of those that run together; NaN before one is known."""
    speeds = [each.steps_per_second for each in running.values()]
    known = [speed for speed in speeds if math.isfinite(speed) and speed > 0]
    if not known:
        return math.nan
    steps = sum(
        _steps_left(job, running.get(job.run.name, Standing()))
        for job in jobs
        if job.state == "waiting" or _runs(job)
    )
    # Those without a row yet shall count like the others.
    return steps / (sum(known) / len(known) * len(running))


def _steps_left(job: Job, standing: Standing) -> float:
    """None where it has taken more than were planned, as runs with several learners may."""
    return max(0, job.run.config.planned_steps - standing.steps)


def table(
    jobs: Sequence[Job], running: Sequence[tuple[Job, Standing]], left: float, width: int
) -> RenderableType:
    """All jobs in a bar, and those that run, if any, in a row each.

    ``left``: seconds, NaN where unknown. ``width``: columns of the terminal.
    """
    states = [job.state for job in jobs]
    numbers = [f"{states.count('finished')} of {len(jobs)} runs finished"]
    for state in ("failed", "stopped", "stopping", "running", "waiting"):
        if number := states.count(state):
            numbers.append(f"{number} {state}")
    head = Table.grid(expand=True, padding=(0, 1))
    head.add_column(ratio=1)
    head.add_column(justify="right", no_wrap=True)
    head.add_row(
        ProgressBar(total=len(jobs), completed=states.count("finished")),
        ", ".join([*numbers, *([f"left {clock(left)}"] if running else [])]),
    )
    if not running:
        return head
    rows = []
    for job, each in running:
        planned = job.run.config.planned_steps
        rows.append(
            (
                job.run.name,
                count(each.steps),
                count(planned),
                _number(each.steps_per_second, 0),
                _number(each.score),
                clock(_steps_left(job, each) / (each.steps_per_second or math.nan)),
            )
        )
    columns = ("run", "steps", "of", "steps/s", "score", "left")
    return Group(head, make_table(columns, rows, width))


def _number(value: float, digits: int = 2) -> str:
    return f"{value:,.{digits}f}" if math.isfinite(value) else "none yet"


def _runs(job: Job) -> bool:
    return job.state in ("running", "stopping")
