"""Where a run stands: a panel or plain lines, and a table at the end."""

from __future__ import annotations

import logging
import math
import shlex
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from accel_rl.runs.tables import EPISODE_WINDOW, Row
from accel_rl.training.time_split import Bottleneck, TimeSplit

PANEL_SECONDS = 1.0
"""between two drawings of the panel: each takes some milliseconds from training"""
LINE_SECONDS = 10.0
"""between two plain lines, at least"""

COLOURS = {"simulators": "cyan", "inference": "green", "learning": "magenta", "other": "white"}
_MOST_POINTS = 512
_BARS = " ▁▂▃▄▅▆▇█"
_NO_EPISODE = (
    "no episode has finished: too few steps, or does the environment never return terminated or "
    "truncated?"
)


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
        """Seconds left at the present speed; infinite if there was no step since the last row."""
        left = max(0, self.planned_steps - self.steps)
        return left / self.steps_per_second if self.steps_per_second else math.inf


class Progress(Protocol):
    """Shows first steps, then a `Status`; ``interval_seconds`` is how often it wants one."""

    interval_seconds: float

    def prepare(self, num_steps: int, expected: int) -> None: ...

    def show(self, status: Status) -> None: ...

    def say(self, message: str) -> None: ...

    def close(self) -> None: ...


def make_progress(console: Console, title: str, num_learners: int = 1) -> Progress:
    """Return a panel with a ``title`` if the console can draw it again and again, else lines."""
    if console.is_terminal and not (console.is_dumb_terminal or console.is_jupyter):
        return LivePanel(console, title, num_learners)
    return PlainLines(console)


class PlainLines:
    """One line at a time, for files and CI: no escape codes."""

    interval_seconds = LINE_SECONDS

    def __init__(self, console: Console) -> None:
        self._console = console

    def prepare(self, num_steps: int, expected: int) -> None:
        if num_steps:
            self.say(f"random first steps: {num_steps:,} of about {expected:,}")

    def show(self, status: Status) -> None:
        self.say(line(status))

    def say(self, message: str) -> None:
        self._console.print(message, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        pass


class LivePanel:
    """A panel that is drawn over itself. No thread: it is drawn when it is called."""

    interval_seconds = PANEL_SECONDS

    def __init__(self, console: Console, title: str, num_learners: int = 1) -> None:
        self._console = console
        self._title, self._num_learners = title, num_learners
        self._points: list[tuple[int, float, float]] = []  # steps, score, steps a second
        self._live = Live(console=console, auto_refresh=False)
        self._live.start()

    def prepare(self, num_steps: int, expected: int) -> None:
        text = f"random first steps  {count(num_steps)} of about {count(expected)}"
        text = text if num_steps else "simulators start"
        self._draw(_bar(num_steps, expected, text))

    def show(self, status: Status) -> None:
        score = status.scores["episode_return_raw_mean"]
        if math.isfinite(score):
            self._points.append((status.steps, score, status.steps_per_second))
        if len(self._points) == _MOST_POINTS:
            del self._points[1::2]
        # The panel without curves has 9 lines; a few are left for what the run says.
        width, height = self._console.width - 4, self._console.height - 16
        parts = []
        if self._points and height > 1 and width > 30 and not self._console.options.ascii_only:
            steps, scores, speeds = zip(*self._points, strict=True)
            second = height // 3 if height > 18 else 0
            parts.append(curve("score", steps, scores, width, height - second))
            if second:
                parts.append(curve("steps/s", steps, speeds, width, second - 2))
        self._draw(panel(status, *parts, num_learners=self._num_learners))

    def _draw(self, drawn: RenderableType) -> None:
        title = Text(self._title, "bold")
        self._live.update(Panel(drawn, title=title, title_align="left"), refresh=True)

    def say(self, message: str) -> None:
        self._console.print(message, markup=False, highlight=False)

    def close(self) -> None:
        """Leave the last panel standing, and the terminal as it was."""
        self._live.stop()


class ProgressHandler(logging.Handler):
    """Shows log records, warnings above all, without breaking the panel."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        self._progress.say(f"{record.levelname.lower()}: {record.getMessage()}")


def line(status: Status) -> str:
    """Return the status as one line of text."""
    mean = status.scores["episode_return_raw_mean"]
    score = f"score {mean:.2f}" if mean == mean else "score none yet"
    worst = status.bottleneck
    return (
        f"{status.steps / status.planned_steps:4.0%}  {status.steps:,} steps  "
        f"{status.steps_per_second:,.0f} steps/s  {score}  "
        f"episodes {status.num_episodes:,}  left {clock(status.seconds_left)}"
        + (f"  limited by {worst.name} ({worst.share:.0%})" if worst.share else "")
        + (f"; learning had {status.split.core:.0%} of a core" if status.split.is_disturbed else "")
    )


def panel(status: Status, *parts: RenderableType, num_learners: int = 1) -> RenderableType:
    """Return the status, and ``parts`` below it; no line needs more than 76 columns."""
    share = f"{status.steps / status.planned_steps:.0%}"
    steps = f"{count(status.steps)} of {count(status.planned_steps)} steps"
    bar = _bar(status.steps, status.planned_steps, f"{share}  {steps}")
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="bold", no_wrap=True)
    rows.add_column(overflow="ellipsis")
    rows.add_row("score", _score(status, "no episode has finished yet"))
    rows.add_row("speed", _speed(status))
    rows.add_row("time", f"{clock(status.seconds)} gone, {clock(status.seconds_left)} left")
    for row in _spent(status):
        rows.add_row(*row)
    if num_learners > 1:
        rows.add_row("learners", f"this is the first of {num_learners}")
    return Group(bar, rows, *parts)


def _bar(done: int, total: int, text: str) -> Table:
    bar = Table.grid(expand=True, padding=(0, 1))
    bar.add_column(ratio=1)
    bar.add_column(justify="right", no_wrap=True)
    green = ProgressBar(max(1, total), done, complete_style="green", finished_style="green")
    bar.add_row(green, text)
    return bar


def curve(
    name: str, steps: Sequence[int], values: Sequence[float], width: int, height: int
) -> Text:
    """Return bars of ``values``, from 0 or the least below 0, over ``steps`` from 0.

    ``width`` is in characters, ``height`` in lines of bars, with a line above and one below.
    """
    low = min(0.0, *values)
    high = max(0.0, *values) or float(low == 0)  # an axis to 1 if all are 0
    ends = [count(each) if abs(each) >= 1000 else f"{each:.4g}" for each in (low, high)]
    margin = max(map(len, ends))
    heights = np.interp(np.linspace(0, steps[-1], width - margin - 1), steps, values)
    eighths = np.rint(8 * height * (heights - low) / (high - low)).astype(int)
    text, labels = Text(name, "bold"), {0: ends[0], height - 1: ends[1]}
    for row in reversed(range(height)):
        text.append(f"\n{labels.get(row, ''):>{margin}}┤", "not bold dim")
        bars = "".join(_BARS[each] for each in np.clip(eighths - 8 * row, 0, 8))
        text.append(bars, "not bold green")
    end = f"{count(steps[-1])} steps"
    text.append(f"\n{'0':>{margin + 2}}{end:>{width - margin - 2}}", "not bold dim")
    return text


def summary(
    status: Status,
    run_dir: Path,
    updates: int,
    stopped_by: signal.Signals | None,
    is_cut: bool = False,
) -> RenderableType:
    """Return the end of a run as a table; ``is_cut``: whether it ended after ``max_minutes``."""
    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    how = "ended after max_minutes" if is_cut else "finished"
    how += "" if status.steps else ", before its first rollout"
    table.add_row("run", how if stopped_by is None else f"stopped by {stopped_by.name}")
    frames = f", {status.steps * status.frame_skip:,} frames" if status.frame_skip > 1 else ""
    table.add_row("trained", f"{status.steps:,} steps{frames}, {updates:,} updates")
    table.add_row("score", _score(status, _NO_EPISODE))
    for name, value in status.scores.items():
        if name.startswith("episode_info_") and not math.isnan(value):
            key = name.removeprefix("episode_info_").removesuffix("_mean")
            table.add_row(Text(key), f"{value:.4g}  mean of the episodes' last steps")
    is_long = status.seconds >= 60
    table.add_row("time", clock(status.seconds) if is_long else f"{status.seconds:.1f} s")
    resumed = f" since the resume at {status.since_steps:,} steps" if status.since_steps else ""
    table.add_row("speed", f"{_speed(status)}{resumed}")
    for row in _spent(status):
        table.add_row(*row)
    if status.gpu:
        table.add_row("GPU", status.gpu)
    table.add_row("files", Text(str(run_dir)))  # a name is no markup
    if stopped_by is not None or is_cut:
        table.add_row("go on", Text(f"with resume={shlex.quote(str(run_dir))}"))
    return table


def count(number: float) -> str:
    """Return a count in short: 950, 12.5k, 3.00M."""
    for limit, unit, digits in ((1e9, "G", 2), (1e6, "M", 2), (1e4, "k", 1)):
        if number >= limit:
            return f"{number / (1e3 if unit == 'k' else limit):.{digits}f}{unit}"
    return f"{number:.0f}"


def clock(seconds: float) -> str:
    """Return hours, minutes and seconds: 1:02:03; "unknown" if ``seconds`` is not finite."""
    if not math.isfinite(seconds):
        return "unknown"
    whole = round(min(seconds, 359_999_999))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _score(status: Status, without: str) -> Text:
    scores = status.scores
    if not status.num_episodes:
        return Text(without, "dim")
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


def _spent(status: Status) -> Iterator[tuple[str, RenderableType]]:
    """Yield the rows about time: its split, and what limits the speed, if there is any speed."""
    split, worst, text = status.split, status.bottleneck, Text()
    shares = (split.waiting, split.inference, split.learning, split.other)
    for (name, colour), share in zip(COLOURS.items(), shares, strict=True):
        text.append("■ ", colour)
        text.append(f"{name} {share:.0%}  ")
    yield "spent", text
    if worst.share:
        yield "limit", f"{worst.name} ({worst.share:.0%} of the time): {worst.hint}"
    if split.is_disturbed:
        yield (
            "others",
            f"other processes run here: learning had {split.core:.0%} of a core",
        )
