"""Pictures that runs and sweeps leave beside their tables: a picture that fails ends neither.

Matplotlib takes a while to load, and may fail to: it is loaded where a picture is drawn.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from accel_rl.runs.files import write_whole
from accel_rl.runs.tables import (
    EPISODE_WINDOW,
    Row,
)

if TYPE_CHECKING:
    from accel_rl.runs.figures import Axes

_LOGGER = logging.getLogger(__name__)


def draw_or_warn(draw: Callable[[], object], path: Path) -> bool:
    """Call ``draw``, which draws the picture ``path``; log a warning and return False if it fails.

    Matplotlib is to be imported in ``draw``, since its import may fail, too.
    """
    try:
        draw()
    except Exception as error:
        _LOGGER.warning("%s was not drawn: %s: %s", path, type(error).__name__, error)
        _LOGGER.info("%s", traceback.format_exc())
        return False
    return True


_LINE, _BAND, _INK, _GRID = "#1f6f8b", "#9ecbd6", "#333333", "#e3e3e3"


def draw_learning_curve(path: Path, rows: Sequence[Row], title: str, frame_skip: int) -> None:
    """Writes a PNG of the raw episode return over steps, from rows of metrics.

    The line is the mean of the last 100 episodes, the band their 10th to 90th percentile; frames
    stand along the top where a step has several. Rows before the first finished episode have no
    point.

    Raises:
        OSError: the file could not be written; the one before stays.
    """
    from accel_rl.runs.figures import EngFormatter, new_figure, plain, to_png

    figure = new_figure(8.0, 4.8)
    axes = figure.add_subplot()
    _draw_returns(axes, rows)
    axes.set_xlabel("steps")
    axes.set_ylabel(f"episode return, raw\n(last {EPISODE_WINDOW} episodes: mean, 10 to 90 %)")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("right",) if frame_skip > 1 else ("right", "top"):
        axes.spines[side].set_visible(False)
    if frame_skip > 1:
        to_frames = partial(np.multiply, frame_skip)
        from_frames = partial(np.multiply, 1 / frame_skip)
        top = axes.secondary_xaxis("top", functions=(to_frames, from_frames))
        top.set_xlabel("frames", color=_INK)
        top.xaxis.set_major_formatter(EngFormatter(sep=""))
    figure.suptitle(plain(title), fontsize=11, color=_INK)
    write_whole(path, to_png(figure))


def _draw_returns(axes: Axes, rows: Sequence[Row]) -> None:
    """Line, band and last value; or that there is none yet."""
    steps, mean, low, high = (
        np.array([row[name] for row in rows], np.float64)
        for name in (
            "steps",
            "episode_return_raw_mean",
            "episode_return_raw_p10",
            "episode_return_raw_p90",
        )
    )
    axes.fill_between(steps, low, high, color=_BAND, alpha=0.45, linewidth=0)
    axes.plot(steps, mean, color=_LINE, linewidth=1.8, marker="." if len(rows) < 20 else None)
    finished = np.flatnonzero(np.isfinite(mean))
    if finished.size:
        last = finished[-1]
        axes.annotate(
            f"{mean[last]:.4g}",
            (steps[last], mean[last]),
            xytext=(5, 0),
            textcoords="offset points",
            color=_LINE,
            fontweight="bold",
            va="center",
        )
    else:
        axes.text(
            0.5,
            0.5,
            "no episode has finished yet",
            transform=axes.transAxes,
            ha="center",
            color=_INK,
        )
    axes.set_xlim(0, float(steps[-1]) * 1.06 if len(rows) else 1.0)
