"""Figures and their PNG files, drawn by Matplotlib's Agg without pyplot, and the learning curve.

All of Matplotlib that accel_rl uses is imported through this module, because ``import matplotlib``
fails where the environment variable MPLBACKEND names a backend that is not installed. Notebooks set
that variable for every program that they start.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from textwrap import fill
from typing import Any, Literal

import numpy as np

from accel_rl.runs.files import write_whole
from accel_rl.runs.human_scores import RANDOM_AND_HUMAN
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
from matplotlib.ticker import MaxNLocator as MaxNLocator  # noqa: E402

COLOURS = ("#1f6f8b", "#c8553d", "#5b8c3a", "#7b4f9d", "#b8860b", "#3a4f8c", "#a23b72")
GREY, INK = "#8a8a8a", "#333333"
_ACRONYMS = {*"a2c a3c appo dqn ga3c impala paac ppo pqn r2d2 sac".split()}


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure; ``width`` and ``height`` are in inches."""
    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plain(text: str) -> str:
    """Return ``text`` so that Matplotlib shows it as it is: as no formula and no hidden label."""
    return " " * text.startswith("_") + text.replace("$", r"\$")


def entitle(figure: Figure, title: str, foot: str = "") -> None:
    """Write ``title``, a sentence, above the figure, and ``foot`` small below it."""
    width = figure.get_figwidth()
    place: Any = {"x": 0.01, "ha": "left"}
    text = plain(fill(title, int(9.5 * width)))
    figure.suptitle(text, color=INK, fontsize=12, fontweight="bold", **place)
    if foot:
        figure.supxlabel(plain(fill(foot, int(15 * width))), color=GREY, fontsize=8, **place)


def style_axes(axes: Axes, grid: Literal["both", "x", "y"] = "both") -> None:
    """Give ``axes`` a light grid behind what is drawn, and no frame at the right and the top."""
    axes.grid(color="#e3e3e3", linewidth=0.8, axis=grid)
    axes.set_axisbelow(True)
    axes.spines[["right", "top"]].set_visible(False)


def name_ends(axes: Axes, ends: Sequence[tuple[float, float, str, str]], size: float = 9) -> None:
    """Name lines at their ends, so that no name covers another; limits of ``axes`` are final.

    Args:
        ends: x and y of the end, name and colour of each line.
        size: of the letters, in points.
    """
    inches = axes.bbox.height / axes.figure.dpi
    to_share = axes.transScale + axes.transLimits
    shares = [tuple(map(float, to_share.transform(end[:2]))) for end in ends]
    for column in {round(x, 1) for x, _ in shares}:  # lines that end about there
        near = sorted((y, i) for i, (x, y) in enumerate(shares) if round(x, 1) == column)
        places = [y for y, _ in near]
        chosen = [ends[i] for _, i in near]
        half = [(end[2].count("\n") + 1) * size / 108 / inches for end in chosen]
        for i in range(1, len(places)):  # up, until none covers the one below
            places[i] = max(places[i], places[i - 1] + half[i - 1] + half[i])
        top = 1.0
        for i in reversed(range(len(places))):  # down, until all are below the top
            places[i] = min(places[i], top - half[i])
            top = places[i] - half[i]
        for place, (x, _, name, colour) in zip(places, chosen, strict=True):
            axes.annotate(
                plain(name),
                (x, place),
                xycoords=axes.get_xaxis_transform(),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                fontsize=size,
                color=colour,
                annotation_clip=False,
            )


def to_png(figure: Figure) -> memoryview:
    """Return ``figure`` as the bytes of a PNG file."""
    buffer = io.BytesIO()
    try:
        figure.savefig(buffer, format="png")
    except Exception as error:
        raise ValueError(
            f"Matplotlib cannot draw this picture ({type(error).__name__}: {error}); look at its "
            "settings, in the file matplotlibrc"
        ) from error
    return buffer.getbuffer()


def draw_learning_curve(path: Path, rows: Sequence[Row], algo: str, env: str, took: str) -> None:
    """Write a PNG of the raw episode return over steps, from rows of metrics.

    The line is the mean of the last 100 episodes, the band their 10th to 90th percentile. Atari
    games have lines at the scores of random play and of a human. Rows before the first finished
    episode have no point.
    """
    names = [f"episode_return_raw_{each}" for each in ("mean", "p10", "p90")]
    steps, mean, low, high = (
        np.array([row[name] for row in rows], np.float64) for name in ("steps", *names)
    )
    figure = new_figure(8.0, 4.5)
    axes = figure.add_subplot()
    axes.fill_between(steps, low, high, color=COLOURS[0], alpha=0.2, linewidth=0)
    axes.plot(steps, mean, color=COLOURS[0], linewidth=2, marker="." if len(rows) < 20 else None)
    axes.set_xlim(0, float(steps[-1]) if len(rows) else 1.0)
    axes.set_xlabel("steps")
    axes.set_ylabel("episode return, raw")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    style_axes(axes)
    verb, result = "plays", "no episode has finished yet"
    ends: list[tuple[float, str, str]] = []
    if (finished := np.flatnonzero(np.isfinite(mean))).size:
        first, last = mean[finished[[0, -1]]]
        verb = "learns" if last > first else "plays"
        result = f"{last:.4g} after {steps[-1]:,.0f} steps"
        ends.append((last, f"{last:.4g}", COLOURS[0]))
        random, human = RANDOM_AND_HUMAN.get(env, (np.nan, np.nan))
        for name, score in (("random", random), ("human", human)):
            if score - random <= 4 * max(np.nanmax(high) - random, 0):  # else a flat curve
                axes.axhline(score, color=GREY, linewidth=1, linestyle="--")
                ends.append((score, f"{name} {score:g}", GREY))
    name_ends(axes, [(axes.get_xlim()[1], *end) for end in ends])
    title = f"{_spoken(algo)} {verb} {_spoken(env)}: {result} ({took})"
    entitle(figure, title, f"mean of the last {EPISODE_WINDOW} episodes; band: 10 to 90 % of them")
    write_whole(path, to_png(figure))


def _spoken(name: str) -> str:
    """PPO for ppo, Space Invaders for space_invaders; other than plain names stay as they are."""
    if not re.fullmatch("[a-z0-9_]+", name):
        return name
    return " ".join(w.upper() if w in _ACRONYMS else w.title() for w in name.split("_"))
