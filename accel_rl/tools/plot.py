"""Curves of several saved runs in one picture, of scores or of another column of ``metrics.csv``,
and the values at their ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any, Literal, NamedTuple

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from accel_rl.options import check_settings
from accel_rl.runs.figures import COLOURS, EngFormatter, new_figure, plain, style_axes, to_png
from accel_rl.runs.files import write_whole
from accel_rl.runs.tables import EPISODE_WINDOW
from accel_rl.tools.compare import (
    SCORE,
    Axis,
    Group,
    NoValueError,
    check_column,
    format_x,
    make_groups,
    read_curve,
)
from accel_rl.tools.output import check_output, make_table

_FEWEST_FOR_BAND = 3
"""runs; the interval of two is six times as wide as that of three, and hides everything"""


_FILES = {
    "scores": "learning_curves.png",
    "norms": "norms.png",
    "cosine": "gradient_cosine.png",
}


@dataclass(frozen=True, kw_only=True)
class PlotOptions:
    """Options of `plot` and of ``accel_rl plot``."""

    what: str = "scores"
    """What to draw. scores: learning curves, averaged over seeds.
    A column of metrics.csv, such as entropy, is averaged as well; `head -1 RUN/metrics.csv` lists
    the columns. norms and cosine: measurements of single runs that were trained with
    learner.log_norms or learner.gradient_cosine_interval."""
    x: Literal["steps", "frames", "minutes"] = "steps"
    """Unit of the horizontal axis. minutes: time of training, without evaluations."""
    out: str | None = None
    """PNG file to write.
    none: learning_curves.png, norms.png, gradient_cosine.png, or the name of the column."""
    overwrite: bool = False
    """Replace the file if it exists."""
    trust: bool = False
    """Import presets that the runs name as algo=module:function, even if another person made the
    runs. Your own runs need no trust."""

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def path(self) -> Path:
        file = _FILES.get(self.what, f"{self.what.replace('/', '-')}.png")
        return Path(file if self.out is None else self.out)

    @property
    def column(self) -> str:
        """Of metrics.csv, where ``what`` is none of what single runs have measured."""
        return SCORE if self.what == "scores" else self.what


class Plotted(NamedTuple):
    """The content of a figure.

    Attributes:
        groups: the curves.
        without_value: runs that have no value to draw yet.
    """

    groups: list[Group]
    without_value: list[Path]


def plot(run_dirs: Sequence[str | Path], options: PlotOptions) -> Plotted:
    """Draw the mean curve of each group of runs that differ only in the seed.

    Of runs with the same seed the newest counts; ``left_out`` of a group has the others. Thin lines
    are single runs. From three runs on, a band shows the 95 % interval of the mean (Student's t).
    Each environment has its own panel.

    Args:
        run_dirs: directories of the runs.
        options: the options.

    Returns:
        The content of the figure.

    Raises:
        ValueError: a run cannot be read or lacks the column, no run has a value yet, a run is named
            twice, or ``out`` exists.
        OSError: ``out`` could not be written.
    """
    runs = [Path(run_dir) for run_dir in run_dirs]
    check_named(runs)
    column = options.column
    if column != SCORE:
        check_column(runs, column, tuple(_FILES))
    curves, without_value = [], []
    for run in runs:
        try:
            curves.append(read_curve(run, options.x, column, trust=options.trust))
        except NoValueError:
            if run == runs[-1] and not curves:
                raise
            without_value.append(run)
    groups = make_groups(curves, options.x, column)
    check_output(options.path, (".png",), overwrite=options.overwrite)
    write_whole(options.path, _draw(groups, options.x, column))
    return Plotted(groups, without_value)


def check_named(run_dirs: Sequence[Path]) -> None:
    """Raises ValueError where no run is named, or one twice."""
    if not run_dirs:
        raise ValueError("no run is named; name run directories, as in runs/pong-a2c-*")
    resolved = [run_dir.resolve() for run_dir in run_dirs]
    for run_dir in run_dirs:
        if resolved.count(run_dir.resolve()) > 1:
            raise ValueError(f"{run_dir} is named twice")


def scores_table(
    groups: Sequence[Group], axis: Axis, width: int, column: str = SCORE
) -> RenderableType:
    """Final scores, or values of ``column``: at the end of each curve, which all its runs have.

    ``width``: columns of the terminal.
    """
    is_score = column == SCORE
    rows = []
    for group in groups:
        last = group.y[:, -1]
        mean, half = group.mean[-1], group.half_width[-1]
        low, high, least, most = (
            _format(each, is_score) for each in (mean - half, mean + half, last.min(), last.max())
        )
        rows.append(
            (
                group.label,
                ", ".join(map(str, group.seeds)),
                format_x(group.x[-1], axis),
                _format(mean, is_score),
                "needs 2 runs" if np.isnan(half) else f"{low} to {high}",
                f"{least} to {most}",
            )
        )
    name = "score" if is_score else column
    table = make_table(("runs", "seeds", axis, name, "interval", "range"), rows, width)
    what = f"score: raw, mean of the last {EPISODE_WINDOW} games, then" if is_score else f"{name}:"
    caption = f"{what} mean over the runs; interval: 95 %, Student's t over the runs"
    table.caption = Text(caption, "table.caption")  # a column's name is no markup
    return table


def _format(value: float, is_score: bool) -> str:
    """Other columns may be small, as learning rates are, or large, as speeds are."""
    return f"{value:,.2f}" if is_score or abs(value) >= 1000 else f"{value:.4g}"


def _draw(groups: Sequence[Group], axis: Axis, column: str) -> memoryview:
    envs = list(dict.fromkeys(group.env for group in groups))
    num_lines = [sum(_label(g).count("\n") + 1 for g in groups if g.env == env) for env in envs]
    figure = new_figure(8.0 * len(envs), 4.6 + 0.16 * max(num_lines))
    for number, env in enumerate(envs):
        axes = figure.add_subplot(1, len(envs), number + 1)
        for colour, group in enumerate(group for group in groups if group.env == env):
            _draw_group(axes, group, COLOURS[colour % len(COLOURS)])
        axes.set_title(plain(env))
        score = f"episode return, raw\n(mean of the last {EPISODE_WINDOW} games)"
        axes.set_ylabel(score if column == SCORE else plain(column))
        style_panel(axes, axis)
        axes.legend(
            frameon=False,
            fontsize=8,
            loc="upper left",
            bbox_to_anchor=(0.0, -0.14),
            borderaxespad=0,
        )
    return to_png(figure)


def style_panel(axes: Any, axis: Axis) -> None:
    """How each panel looks; ``axis``: what it stands over."""
    axes.set_xlabel(axis)
    if axis != "minutes":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlim(left=0)
    style_axes(axes)


def _draw_group(axes: Any, group: Group, colour: str) -> None:
    runs = len(group.seeds)
    is_point = group.x[0] == group.x[-1]  # of which lines and bands show nothing
    if runs > 1:
        marker = "." if is_point else None
        axes.plot(group.x, group.y.T, marker=marker, color=colour, linewidth=0.6, alpha=0.5)
    if runs >= _FEWEST_FOR_BAND:
        low, high = group.mean - group.half_width, group.mean + group.half_width
        width = 6 if is_point else 0
        axes.fill_between(group.x, low, high, color=colour, alpha=0.2, linewidth=width)
    marker = "o" if is_point else None
    label = plain(_label(group))
    axes.plot(group.x, group.mean, marker=marker, color=colour, linewidth=1.8, label=label)


def _label(group: Group) -> str:
    """What the legend says, in lines that fit below a panel."""
    runs = len(group.seeds)
    label = f"{group.label} ({runs} {'seed' if runs == 1 else 'seeds'})"
    if runs >= _FEWEST_FOR_BAND:
        label += ", 95 % interval of the mean"
    return fill(label, width=110, break_on_hyphens=False)
