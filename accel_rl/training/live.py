"""The live display of a run: a panel in a terminal, elsewhere lines."""

from __future__ import annotations

import math

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.text import Text

from accel_rl.training.progress import (
    PANEL_SECONDS,
    PlainLines,
    Progress,
    Status,
    count,
    panel,
)

_MOST_POINTS = 512
_BARS = " ▁▂▃▄▅▆▇█"


def make_progress(console: Console, title: str, num_learners: int = 1) -> Progress:
    """Return a panel if the console can draw it again and again, else lines.

    Args:
        console: Where the progress is shown.
        title: Of the panel.
        num_learners: All learners of the run.
    """
    if console.is_terminal and not (console.is_dumb_terminal or console.is_jupyter):
        return LivePanel(console, title, num_learners)
    return PlainLines(console)


class LivePanel:
    """A panel that is drawn over itself. No thread: it is drawn when `show` is called."""

    interval_seconds = PANEL_SECONDS

    def __init__(self, console: Console, title: str, num_learners: int = 1) -> None:
        self._console = console
        self._title, self._num_learners = title, num_learners
        self._scores: list[tuple[int, float]] = []  # with the steps before
        self._live = Live(console=console, auto_refresh=False)
        self._live.start()

    def show(self, status: Status) -> None:
        score = status.scores["episode_return_raw_mean"]
        if math.isfinite(score):
            self._scores.append((status.steps, score))
        if len(self._scores) == _MOST_POINTS:
            del self._scores[1::2]
        # The panel without a curve has 9 lines; a few are left for what the run says.
        height = min(8, self._console.height - 14)
        parts = []
        if self._scores and height > 1 and not self._console.options.ascii_only:
            parts.append(curve(self._scores, self._console.width - 4, height))
        drawn = panel(status, self._title, *parts, num_learners=self._num_learners)
        self._live.update(drawn, refresh=True)

    def say(self, message: str) -> None:
        self._console.print(message, markup=False, highlight=False)

    def close(self) -> None:
        """Leave the last panel standing, and the terminal as it was."""
        self._live.stop()


def curve(points: list[tuple[int, float]], width: int, height: int) -> Text:
    """Return bars from score 0, or the least below 0, over steps from 0.

    Args:
        points: Steps, rising, and scores.
        width: Characters of a line.
        height: Lines, without the one that says the range.
    """
    scores = np.interp(np.linspace(0, points[-1][0], width), *np.transpose(points))
    low, high = min(0.0, scores.min()), max(0.0, scores.max())
    eighths = np.rint(8 * height * (scores - low) / (high - low or 1.0)).astype(int)
    text = Text.assemble(("score", "bold"), f", {_short(low)} to {_short(high)}")
    for row in reversed(range(height)):
        bars = "".join(_BARS[each] for each in np.clip(eighths - 8 * row, 0, 8))
        text.append(f"\n{bars}", "green")
    return text


def _short(number: float) -> str:
    return count(number) if abs(number) >= 1000 else f"{number:.4g}"
