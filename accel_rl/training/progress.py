"""Where a run stands and its time goes, as a panel, as plain lines, and as a table in the end."""

from __future__ import annotations

import logging
import math
import shlex
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from accel_rl.config import TrainConfig
from accel_rl.runs.tables import EPISODE_WINDOW, Row

PANEL_SECONDS = 1.0
"""between two drawings of the panel: each takes some milliseconds from training"""
LINE_SECONDS = 10.0
"""between two plain lines, at least"""

COLOURS = {"simulators": "cyan", "inference": "green", "learning": "magenta", "other": "white"}
_LARGER_BATCHES = "a larger num_envs makes larger batches"
_NO_EPISODE = (
    "no episode has finished: too few steps, or does the environment never return terminated or "
    "truncated?"
)


class Reading(NamedTuple):
    """Counts, and clocks in seconds, at one moment: of the wall, the sampler and the learner.

    ``evaluating``: of the wall's, in which this learner evaluated while others went on.
    ``logging``, ``saving``: of the wall's, for rows of metrics and for checkpoints that were due.
    """

    wall: float
    waiting: float
    inference: float
    simulating: float
    learning: float
    evaluating: float = 0.0
    logging: float = 0.0
    saving: float = 0.0
    steps: int = 0
    updates: int = 0


class TimeSplit(NamedTuple):
    """Shares of the wall time between two readings, evaluations left out.

    ``waiting`` (for simulators), ``inference``, ``learning`` and ``other`` are this process' own
    and add up to 1. ``simulating`` is how much of the time the simulators worked, on average, in
    their own processes meanwhile; a serial sampler's work in this one, where it is ``waiting``.

    On a GPU ``learning`` includes the wait for the device to finish the update, which comes where
    this process reads the first actions of the next rollout (`accel_rl.training.device_clock`).

    ``logging`` and ``saving`` are the parts of ``other`` that ``log_interval`` and
    ``checkpoint_interval`` make longer or shorter.
    """

    waiting: float
    inference: float
    learning: float
    other: float
    simulating: float
    logging: float = 0.0
    saving: float = 0.0

    @classmethod
    def between(cls, before: Reading, after: Reading) -> TimeSplit:
        evaluating = after.evaluating - before.evaluating
        wall = max(after.wall - before.wall - evaluating, 1e-9)
        waiting = (after.waiting - before.waiting) / wall
        inference = (after.inference - before.inference) / wall
        learning = (after.learning - before.learning) / wall
        other = max(0.0, 1.0 - waiting - inference - learning)
        return cls(
            waiting,
            inference,
            learning,
            other,
            (after.simulating - before.simulating) / wall,
            (after.logging - before.logging) / wall,
            (after.saving - before.saving) / wall,
        )


class Bottleneck(NamedTuple):
    """What limits the speed, the share of time saved if it took none, and what to change."""

    name: str
    share: float
    hint: str


def find_bottleneck(split: TimeSplit, config: TrainConfig, *, on_gpu: bool) -> Bottleneck:
    """The measured part whose disappearance would save most.

    Time that was not measured (a run's start and its last records above all) is no candidate, since
    no option shortens it. Waiting for simulators would all be saved. Inference hides behind
    simulators that work meanwhile, so that no more is saved than the sampling time in which they do
    not.
    """
    sampling = split.waiting + split.inference
    saved = {
        "simulators": split.waiting,
        "inference": min(split.inference, max(0.0, sampling - split.simulating)),
        "learning": split.learning,
        "logging": split.logging,
        "checkpoints": split.saving,
    }
    name = max(saved, key=lambda each: saved[each])
    return Bottleneck(name, saved[name], _hint(name, config, on_gpu))


def _hint(name: str, config: TrainConfig, on_gpu: bool) -> str:
    if name == "simulators" and config.sampler.num_workers == 0:
        return "num_workers=none steps in parallel"
    if name == "simulators":
        return "more CPU cores would help"
    if name in ("inference", "learning") and not on_gpu:
        return "a GPU or a smaller model"
    if name == "inference":
        return _LARGER_BATCHES
    if name == "learning":
        return _update_hint(config)
    return f"a larger {'log_interval' if name == 'logging' else 'checkpoint_interval'}"


def _update_hint(config: TrainConfig) -> str:
    """What makes the updates of a GPU cost less time."""
    learner = config.learner
    if learner.in_rollouts and not config.overlap and config.parallel.pull_steps is None:
        return "overlap=true learns while simulators work"
    if learner.precision == "float32":
        return "precision=tf32 computes faster"
    if "num_envs" in learner.batches(config.sampler):
        return _LARGER_BATCHES
    return "a smaller model"


@dataclass(frozen=True)
class Status:
    """Where a run stands. Speeds and time shares are those since the last row of metrics.

    ``since_steps``: steps at which speeds and shares begin. ``gpu``: how it was used, for people;
    only at the end.
    """

    steps: int
    since_steps: int
    planned_steps: int
    frame_skip: int
    seconds: float
    steps_per_second: float
    num_episodes: int
    scores: Row
    split: TimeSplit
    bottleneck: Bottleneck
    gpu: str = ""

    @property
    def seconds_left(self) -> float:
        """At the present speed; infinite if no step has been taken since the last row."""
        left = max(0, self.planned_steps - self.steps)
        return left / self.steps_per_second if self.steps_per_second else math.inf


class Progress(Protocol):
    """Shows a `Status`; ``interval_seconds`` is how often it wants one."""

    interval_seconds: float

    def show(self, status: Status) -> None: ...

    def say(self, message: str) -> None: ...

    def close(self) -> None: ...


class PlainLines:
    """One line at a time, for files and CI: no escape codes."""

    interval_seconds = LINE_SECONDS

    def __init__(self, console: Console) -> None:
        self._console = console

    def show(self, status: Status) -> None:
        self.say(line(status))

    def say(self, message: str) -> None:
        self._console.print(message, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Nothing is left open."""


class ProgressHandler(logging.Handler):
    """Shows log records, warnings above all, without breaking the panel."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        self._progress.say(f"{record.levelname.lower()}: {record.getMessage()}")


def line(status: Status) -> str:
    """The status as one line of text."""
    mean = status.scores["episode_return_raw_mean"]
    score = f"score {mean:.2f}" if mean == mean else "score none yet"
    worst = status.bottleneck
    return (
        f"{status.steps / status.planned_steps:4.0%}  {status.steps:,} steps  "
        f"{status.steps_per_second:,.0f} steps/s  {score}  "
        f"episodes {status.num_episodes:,}  left {clock(status.seconds_left)}"
        + (f"  limited by {worst.name} ({worst.share:.0%})" if worst.share else "")
    )


def panel(
    status: Status, title: str, *parts: RenderableType, num_learners: int = 1
) -> RenderableType:
    """The status, and ``parts`` below it, as a panel; no line needs more than 80 columns."""
    bar = Table.grid(expand=True, padding=(0, 1))
    bar.add_column(ratio=1)
    bar.add_column(justify="right", no_wrap=True)
    bar.add_row(
        ProgressBar(total=status.planned_steps, completed=status.steps),
        f"{status.steps / status.planned_steps:.0%}  "
        f"{count(status.steps)} of {count(status.planned_steps)} steps",
    )
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="bold", no_wrap=True)
    rows.add_column(overflow="ellipsis")
    rows.add_row("score", _score(status))
    rows.add_row("speed", _speed(status))
    rows.add_row("time", f"{clock(status.seconds)} gone, {clock(status.seconds_left)} left")
    rows.add_row("spent", _split(status.split))
    worst = status.bottleneck
    rows.add_row("limit", f"{worst.name} ({worst.share:.0%} of the time): {worst.hint}")
    if num_learners > 1:
        rows.add_row("learners", f"this is the first of {num_learners}")
    parts = (bar, rows, *parts)
    return Panel(Group(*parts), title=Text(title, "bold"), title_align="left", padding=(0, 1))


def summary(
    status: Status,
    run_dir: Path,
    updates: int,
    stopped_by: signal.Signals | None,
    is_cut: bool = False,
) -> RenderableType:
    """The end of a run as a table; speeds and shares are those that ``status`` has.

    ``is_cut``: it has ended after ``max_minutes``. A run without any step has no ``limit``.
    """
    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    how = "ended after max_minutes" if is_cut else "finished"
    how += "" if status.steps else ", before its first rollout"
    how = how if stopped_by is None else f"stopped by {stopped_by.name}"
    frames = f", {status.steps * status.frame_skip:,} frames" if status.frame_skip > 1 else ""
    table.add_row("run", how)
    table.add_row("trained", f"{status.steps:,} steps{frames}, {updates:,} updates")
    table.add_row("score", _score(status) if status.num_episodes else _NO_EPISODE)
    for name, value in status.scores.items():
        if name.startswith("episode_info_") and not math.isnan(value):
            key = name.removeprefix("episode_info_").removesuffix("_mean")
            table.add_row(Text(key), f"{value:.4g}  mean of the episodes' last steps")
    table.add_row(
        "time", clock(status.seconds) if status.seconds >= 60 else f"{status.seconds:.1f} s"
    )
    resumed = f" since the resume at {status.since_steps:,} steps" if status.since_steps else ""
    table.add_row("speed", f"{_speed(status)}{resumed}")
    table.add_row("spent", _split(status.split))
    worst = status.bottleneck
    if worst.share:
        table.add_row("limit", f"{worst.name} ({worst.share:.0%} of the time): {worst.hint}")
    if status.gpu:
        table.add_row("GPU", status.gpu)
    table.add_row("files", Text(str(run_dir)))  # a name is no markup
    if stopped_by is not None or is_cut:
        table.add_row("go on", Text(f"with resume={shlex.quote(str(run_dir))}"))
    return table


def count(number: float) -> str:
    """A count in short: 950, 12.5k, 3.00M."""
    for limit, unit, digits in ((1e9, "G", 2), (1e6, "M", 2), (1e4, "k", 1)):
        if number >= limit:
            return f"{number / (1e3 if unit == 'k' else limit):.{digits}f}{unit}"
    return f"{number:.0f}"


def clock(seconds: float) -> str:
    """Hours, minutes and seconds: 1:02:03; "unknown" if ``seconds`` is infinite or NaN."""
    if not math.isfinite(seconds):
        return "unknown"
    whole = round(min(seconds, 359_999_999))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _score(status: Status) -> Text:
    scores = status.scores
    if not status.num_episodes:
        return Text("no episode has finished yet", "dim")
    return Text.assemble(
        (f"{scores['episode_return_raw_mean']:.2f}", "bold"),
        f"  mean of the last {min(EPISODE_WINDOW, status.num_episodes)} of "
        f"{status.num_episodes:,} episodes, "
        f"{scores['episode_return_raw_min']:g} to {scores['episode_return_raw_max']:g}",
    )


def _speed(status: Status) -> str:
    text = f"{status.steps_per_second:,.0f} steps/s"
    if status.frame_skip > 1:
        text += f", {status.steps_per_second * status.frame_skip:,.0f} frames/s"
    return text


def _split(split: TimeSplit) -> Text:
    shares = {
        "simulators": split.waiting,
        "inference": split.inference,
        "learning": split.learning,
        "other": split.other,
    }
    text = Text()
    for name, share in shares.items():
        text.append("■ ", COLOURS[name])
        text.append(f"{name} {share:.0%}  ")
    return text
