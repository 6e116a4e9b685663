"""Figures and their PNG files, drawn by Matplotlib's Agg without pyplot, and the learning curve.

All of Matplotlib that accel_rl uses is imported through this module, because ``import matplotlib``
fails where the environment variable MPLBACKEND names a backend that is not installed. Notebooks set
that variable for every program that they start.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np

from accel_rl.runs.files import write_whole
from accel_rl.runs.tables import EPISODE_WINDOW, Row


def _import_matplotlib() -> None:
    """Import Matplotlib without MPLBACKEND; a backend that is there is set afterwards."""
    if "matplotlib" in sys.modules:  # the host's choice of a backend stays
        return
    named = os.environ.pop("MPLBACKEND", None)
    try:
        import matplotlib
    finally:
        if named is not None:
            os.environ["MPLBACKEND"] = named
    if named:
        with suppress(ValueError):
            matplotlib.rcParams["backend"] = named  # for what the host may draw by pyplot


_import_matplotlib()

from matplotlib.axes import Axes as Axes  # noqa: E402
from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: E402
from matplotlib.figure import Figure as Figure  # noqa: E402
from matplotlib.ticker import EngFormatter as EngFormatter  # noqa: E402
from matplotlib.ticker import LogLocator as LogLocator  # noqa: E402
from matplotlib.ticker import MaxNLocator as MaxNLocator  # noqa: E402
from matplotlib.ticker import NullFormatter as NullFormatter  # noqa: E402
from matplotlib.ticker import StrMethodFormatter as StrMethodFormatter  # noqa: E402

COLOURS = ("#1f6f8b", "#c8553d", "#5b8c3a", "#7b4f9d", "#b8860b", "#3a4f8c", "#a23b72", "#555555")
_BAND, _INK, _GRID = "#9ecbd6", "#333333", "#e3e3e3"


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure; ``width`` and ``height`` are in inches."""
    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plain(text: str) -> str:
    """Return ``text`` so that Matplotlib shows it as it is: as no formula and no hidden label."""
    return " " * text.startswith("_") + text.replace("$", r"\$")


def style_axes(axes: Axes, grid: Literal["both", "x", "y"] = "both") -> None:
    """Give ``axes`` a light grid behind what is drawn, and no frame at the right and the top."""
    axes.grid(color=_GRID, linewidth=0.8, axis=grid)
    axes.set_axisbelow(True)
    axes.spines[["right", "top"]].set_visible(False)


def to_png(figure: Figure) -> memoryview:
    """Return ``figure`` as the bytes of a PNG file.

    Raises:
        ValueError: Matplotlib cannot draw it, as with settings of the user's that need LaTeX.
    """
    buffer = io.BytesIO()
    try:
        figure.savefig(buffer, format="png")
    except Exception as error:
        raise ValueError(
            f"Matplotlib cannot draw this picture ({type(error).__name__}: {error}); look at its "
            "settings, in the file matplotlibrc"
        ) from error
    return buffer.getbuffer()


def draw_learning_curve(path: Path, rows: Sequence[Row], title: str, frame_skip: int) -> None:
    """Write a PNG of the raw episode return over steps, from rows of metrics.

    The line is the mean of the last 100 episodes, the band their 10th to 90th percentile; frames
    stand along the top where a step has several. Rows before the first finished episode have no
    point.

    Raises:
        OSError: the file could not be written; the one before stays.
    """
    figure = new_figure(8.0, 4.8)
    axes = figure.add_subplot()
    _draw_returns(axes, rows)
    axes.set_xlabel("steps")
    axes.set_ylabel(f"episode return, raw\n(last {EPISODE_WINDOW} episodes: mean, 10 to 90 %)")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    style_axes(axes)
    if frame_skip > 1:
        ways = (lambda steps: steps * frame_skip, lambda frames: frames / frame_skip)
        top = axes.secondary_xaxis("top", functions=ways)
        top.set_xlabel("frames", color=_INK)
        top.xaxis.set_major_formatter(EngFormatter(sep=""))
    figure.suptitle(plain(title), fontsize=11, color=_INK)
    write_whole(path, to_png(figure))


def _draw_returns(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw line, band and last value, or say that there is no episode yet."""
    names = [f"episode_return_raw_{each}" for each in ("mean", "p10", "p90")]
    steps, mean, low, high = (
        np.array([row[name] for row in rows], np.float64) for name in ("steps", *names)
    )
    axes.fill_between(steps, low, high, color=_BAND, alpha=0.45, linewidth=0)
    axes.plot(steps, mean, color=COLOURS[0], linewidth=1.8, marker="." if len(rows) < 20 else None)
    finished = np.flatnonzero(np.isfinite(mean))
    if finished.size:
        place, text = (steps[finished[-1]], mean[finished[-1]]), f"{mean[finished[-1]]:.4g}"
        font: Any = {"color": COLOURS[0], "fontweight": "bold", "va": "center"}
        axes.annotate(text, place, xytext=(5, 0), textcoords="offset points", **font)
    else:
        nothing = "no episode has finished yet"
        axes.text(0.5, 0.5, nothing, transform=axes.transAxes, ha="center", color=_INK)
    axes.set_xlim(0, float(steps[-1]) * 1.06 if len(rows) else 1.0)
