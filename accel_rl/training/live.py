"""The live display of a run: a panel in a terminal or a notebook, elsewhere lines.

In the foreground of a terminal, q asks the run to stop and p pauses the drawing.
"""

from __future__ import annotations

import math
import os
import signal
from typing import Any

import numpy as np
import psutil
from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from accel_rl.keys import KEYS_VARIABLE, Keys
from accel_rl.system.topology import CorePlan, available_cpus, format_cpus
from accel_rl.training.progress import (
    COLOURS,
    PANEL_SECONDS,
    PlainLines,
    Progress,
    Status,
    count,
    panel,
)

_MOST_POINTS = 512
_BARS = "▁▂▃▄▅▆▇█"
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""of a braille character, from its top: those of the left column, then the right one"""


def make_progress(
    console: Console, title: str, plan: CorePlan | None = None, num_learners: int = 1
) -> Progress:
    """Return a panel if the console can draw it again and again, else lines.

    Args:
        console: Where the progress is shown.
        title: Of the panel.
        plan: Where this learner and its workers run; None if there are no workers.
        num_learners: All learners of the run.
    """
    if console.is_jupyter:
        return NotebookPanel(console, title, plan, num_learners)
    if console.is_terminal and not console.is_dumb_terminal:
        return LivePanel(console, title, plan, num_learners)
    return PlainLines(console)


class LivePanel:
    """A panel that is drawn over itself. No thread: it is drawn when `show` is called."""

    interval_seconds = PANEL_SECONDS

    def __init__(
        self, console: Console, title: str, plan: CorePlan | None = None, num_learners: int = 1
    ) -> None:
        self._console = console
        self._title = title
        self._plan, self._num_learners = plan, num_learners
        self._scores, self._speeds = History(), History()
        self._status: Status | None = None
        self._is_paused = False
        self._open()

    def _open(self) -> None:
        self._live = Live(console=self._console, auto_refresh=False)
        self._live.start()
        self._keys = Keys()
        self._are_keys_passed_on = os.environ.pop(KEYS_VARIABLE, None) is not None
        if self._are_keys_passed_on:
            signal.signal(signal.SIGURG, lambda *_: self._pause())

    def show(self, status: Status) -> None:
        self._status = status
        self._scores.add(status.scores["episode_return_raw_mean"])
        self._speeds.add(status.steps_per_second)
        if not self._is_paused:
            self._draw()

    def say(self, message: str) -> None:
        self._console.print(message, markup=False, highlight=False)

    def is_stop_asked(self) -> bool:
        """Do what the keys typed since the last call ask for; return whether q is among them."""
        typed = self._keys.read().lower()
        if typed.count("p") % 2:
            self._pause()
        return "q" in typed

    def close(self) -> None:
        """Leave the last panel standing, and the terminal as it was."""
        self._keys.close()
        if self._live.is_started and self._status is not None:
            self._present(self._render(self._status, ""))
        self._live.stop()

    def _pause(self) -> None:
        self._is_paused = not self._is_paused
        self._draw()

    def _draw(self) -> None:
        hint = ""
        if self._keys.are_read or self._are_keys_passed_on:
            hint = "q stops and saves, p pauses this panel"
        if self._is_paused:
            hint = "paused: p goes on, q stops and saves"
        if self._status is not None:
            self._present(self._render(self._status, hint))

    def _present(self, drawn: RenderableType) -> None:
        self._live.update(drawn, refresh=True)

    def _render(self, status: Status, hint: str) -> RenderableType:
        # The panel without plots has 11 lines; a few are left for what the run says.
        height = min(8, (self._console.height - 14) // 3)
        if self._console.options.ascii_only or height < 2:
            return panel(status, self._title, hint=hint)
        width = (self._console.width - 6) // 2
        plots = Table.grid(padding=(0, 2))
        plots.add_column(width=width)
        plots.add_row(
            curve("score", self._scores.values(), width, height, "green"),
            curve("steps/s", self._speeds.values(), width, height, "cyan"),
        )
        return panel(status, self._title, self._cores(), plots, hint=hint)

    def _cores(self) -> Text:
        """How busy each CPU is, coloured by who runs there, and who that is."""
        mine = set(available_cpus())
        workers = {cpu for cpus in self._plan.worker_cpus for cpu in cpus} if self._plan else set()
        text = Text("cores  ", "bold")
        for cpu, busy in enumerate(psutil.cpu_percent(percpu=True)):
            # The others are of other learners, or not of this run.
            role = "simulators" if cpu in workers else "learning" if cpu in mine else "other"
            text.append(_BARS[min(7, int(busy / 12.5))], COLOURS[role])
        text.append(f"  {_where(self._plan, mine, self._num_learners)}", "not bold")
        return text


class NotebookPanel(LivePanel):
    """The panel as HTML below a notebook's cell. Nothing but IPython is needed for that."""

    def _open(self) -> None:
        self._handle: Any = None
        self._keys = Keys(-1)  # a notebook has none
        self._are_keys_passed_on = False

    def _present(self, drawn: RenderableType) -> None:
        from IPython.display import display

        if self._handle is None:
            self._handle = display(drawn, display_id=True)
        else:
            self._handle.update(drawn)

    def close(self) -> None:
        """Leave the last panel standing."""


class History:
    """Values at equal distances since the start: of those before, every second is dropped in time.

    Values that are not finite are left out.
    """

    def __init__(self) -> None:
        self._kept: list[float] = []
        self._last = math.nan
        self._stride, self._number = 1, 0

    def add(self, value: float) -> None:
        """Add the value of now."""
        if not math.isfinite(value):
            return
        self._last = value
        if self._number % self._stride == 0:
            self._kept.append(value)
        self._number += 1
        if len(self._kept) == _MOST_POINTS:
            self._kept = self._kept[::2]
            self._stride *= 2

    def values(self) -> list[float]:
        """Return the values, the latest last."""
        return [*self._kept[:-1], self._last] if self._kept else []


def curve(name: str, values: list[float], width: int, height: int, colour: str) -> Text:
    """Return a plot of ``values`` over equal distances, below a line with its name and range."""
    if not values:
        return Text("\n".join([f"{name}: none yet", *[""] * height]))
    low, high = (_short(each) for each in (min(values), max(values)))
    text = Text.assemble((name, "bold"), f", {low} to {high}" if low != high else f", {low}")
    text.truncate(width)
    for line in braille(values, width, height):
        text.append(f"\n{line}", colour)
    return text


def braille(values: list[float], width: int, height: int) -> list[str]:
    """Return lines of braille characters that draw a curve through ``values``.

    Args:
        values: At equal distances, at least one, all finite.
        width: Characters in each line; each is two points wide.
        height: Lines; each is four points high.
    """
    low, high = min(values), max(values)
    places = np.linspace(0, len(values) - 1, 2 * width)
    drawn = np.interp(places, np.arange(len(values)), values)
    share = (drawn - low) / (high - low) if high > low else np.full(2 * width, 0.5)
    points = np.rint((1 - share) * (4 * height - 1)).astype(int)  # from the top
    cells = np.zeros((height, width), int)
    before = points[0]
    for column, point in enumerate(points):
        step = 1 if point > before else -1
        for row in range(before + step, point + step, step) if point != before else [point]:
            cells[row // 4, column // 2] |= _DOTS[column % 2][row % 4]
        before = point
    return ["".join(chr(0x2800 + cell) for cell in line) for line in cells]


def _short(number: float) -> str:
    return count(number) if abs(number) >= 1000 else f"{number:.4g}"


def _where(plan: CorePlan | None, cpus: set[int], num_learners: int) -> str:
    """Return who runs on which CPUs, for people."""
    texts = [f"first of {num_learners} learners" if num_learners > 1 else "learner"]
    if plan is None:
        return f"{texts[0]} on CPUs {format_cpus(cpus)}"
    workers = {cpu for each in plan.worker_cpus for cpu in each}
    num = len(plan.worker_cpus)
    texts.append(f"{num} worker{'s' * (num > 1)} on CPUs {format_cpus(workers)}")
    texts[0] += f" on CPUs {format_cpus(plan.server_cpus)}"
    return ", ".join(texts)
