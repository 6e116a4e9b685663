"""Pictures of several saved runs: learning curves, averaged over seeds, and what single runs
measured of their updates, norms and gradient cosines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from textwrap import fill
from typing import Any, Literal, NamedTuple

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from accel_rl.algos.measure import KINDS
from accel_rl.algos.optimizer import COSINE
from accel_rl.runs.figures import (
    COLOURS,
    EngFormatter,
    Figure,
    LogLocator,
    NullFormatter,
    StrMethodFormatter,
    new_figure,
    plain,
    style_axes,
    to_png,
)
from accel_rl.runs.files import write_whole
from accel_rl.runs.saved import read_config
from accel_rl.runs.tables import EPISODE_WINDOW, Row, read_rows
from accel_rl.tools.compare import (
    COLUMNS,
    SCORE,
    Axis,
    Group,
    check_column,
    find_runs,
    format_x,
    label_runs,
    make_groups,
    read_curves,
)
from accel_rl.tools.intervals import FEWEST_RUNS, METHOD
from accel_rl.tools.output import OutputOptions, check_output, make_table

_FILES = {
    "scores": "learning_curves.png",
    "norms": "norms.png",
    "cosine": "gradient_cosine.png",
}
_MEASURED = {
    "norms": (KINDS[0], "norms", "learner.log_norms=true"),
    "cosine": (COSINE, "gradient cosine", "learner.gradient_cosine_interval=100"),
}
"""by ``what``: a column that it needs, its name, and the option that measures it"""
_FEW = 20
"""points of a line up to which each has a mark"""


@dataclass(frozen=True, kw_only=True)
class PlotOptions(OutputOptions):
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

    @property
    def path(self) -> Path:
        file = _FILES.get(self.what, f"{self.what.replace('/', '-')}.png")
        return Path(file if self.out is None else self.out)

    @property
    def column(self) -> str:
        """The column of metrics.csv that is averaged."""
        return SCORE if self.what == "scores" else self.what


class Plotted(NamedTuple):
    """The content of a figure.

    Attributes:
        groups: the curves; none in figures of norms and cosines.
        without_value: runs that have no value to draw yet.
    """

    groups: list[Group]
    without_value: list[Path]


def plot(run_dirs: Sequence[str | Path], options: PlotOptions) -> Plotted:
    """Draw the mean curve of each group of runs that differ only in the seed.

    Of runs with the same seed the newest counts; ``left_out`` of a group has the others. Thin lines
    are single runs. From three runs on, a band shows the 95 % interval of the mean, by a bootstrap
    over the runs. Each environment has its own panel.

    Args:
        run_dirs: directories of runs, or of sweeps, whose runs are meant.
        options: the options.

    Returns:
        The content of the figure.

    Raises:
        ValueError: a run cannot be read or lacks the column, no run has a value yet, a run is named
            twice, or ``out`` exists.
        OSError: ``out`` could not be written.
    """
    runs = find_runs(run_dirs)
    if options.what in _MEASURED:
        figure, plotted = _draw_measured(runs, options), Plotted([], [])
    else:
        if options.what != "scores":
            check_column(runs, options.column, tuple(_FILES))
        curves, without_value = read_curves(runs, options.x, options.column, trust=options.trust)
        plotted = Plotted(make_groups(curves, options.x, options.column), without_value)
        figure = draw_groups(plotted.groups, options.x, options.column)
    check_output(options.path, (".png",), overwrite=options.overwrite)
    write_whole(options.path, to_png(figure))
    return plotted


def scores_table(
    groups: Sequence[Group], axis: Axis, width: int, column: str = SCORE
) -> RenderableType:
    """Return final scores, or values of ``column``: at the end of each curve, which all runs have.

    ``width``: columns of the terminal.
    """
    rows = []
    for group in groups:
        last, end = group.y[:, -1], group.end
        mean, low, high, least, most = (
            _format(each, column) for each in (end.value, end.low, end.high, last.min(), last.max())
        )
        rows.append(
            (
                group.label,
                ", ".join(map(str, group.seeds)),
                format_x(group.x[-1], axis),
                mean,
                f"needs {FEWEST_RUNS} runs" if end.is_range else f"{low} to {high}",
                f"{least} to {most}",
            )
        )
    name = "score" if column == SCORE else column
    table = make_table(("runs", "seeds", axis, name, "interval", "range"), rows, width)
    what = f"raw, mean of the last {EPISODE_WINDOW} games, then " if column == SCORE else ""
    caption = f"{name}: {what}mean over the runs; {METHOD}"
    table.caption = Text(caption, "table.caption")  # a column's name is no markup
    return table


def _format(value: float, column: str) -> str:
    """Other columns than scores may be small, as learning rates are, or large, as speeds are."""
    return f"{value:,.2f}" if column == SCORE or abs(value) >= 1000 else f"{value:.4g}"


def draw_groups(
    groups: Sequence[Group], axis: Axis, column: str = SCORE, width: float = 8.0
) -> Figure:
    """Return a figure with a panel for each environment, each ``width`` inches wide."""
    envs = list(dict.fromkeys(group.env for group in groups))
    num_lines = [sum(_label(g).count("\n") + 1 for g in groups if g.env == env) for env in envs]
    figure = new_figure(width * len(envs), 4.6 + 0.16 * max(num_lines))
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
    if any(len(group.seeds) >= FEWEST_RUNS for group in groups):
        figure.supxlabel(f"bands: {METHOD.partition(';')[0]}", fontsize=8, color="#555555")
    return figure


def style_panel(axes: Any, axis: Axis) -> None:
    """Give ``axes`` the look of all panels; ``axis``: the unit of its horizontal axis."""
    axes.set_xlabel(axis)
    if axis != "minutes":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlim(left=0)
    style_axes(axes)


def _draw_group(axes: Any, group: Group, colour: str) -> None:
    is_point = group.x[0] == group.x[-1]  # lines and bands would show nothing
    if len(group.seeds) > 1:
        marker = "." if is_point else None
        axes.plot(group.x, group.y.T, marker=marker, color=colour, linewidth=0.6, alpha=0.5)
    if len(group.seeds) >= FEWEST_RUNS:
        width = 6 if is_point else 0
        axes.fill_between(group.x, *group.interval, color=colour, alpha=0.2, linewidth=width)
    marker = "o" if is_point else None
    label = plain(_label(group))
    axes.plot(group.x, group.mean, marker=marker, color=colour, linewidth=1.8, label=label)


def _label(group: Group) -> str:
    """Return the text of the legend, in lines that fit below a panel."""
    runs = len(group.seeds)
    label = f"{group.label} ({runs} {'seed' if runs == 1 else 'seeds'})"
    return fill(label, width=75, break_on_hyphens=False)


# ---- what single runs measured -------------------------------------------------------------------


class _Measured(NamedTuple):
    """One run: ``rows`` of its ``metrics.csv``, and where each stands: ``x``."""

    label: str
    colour: str
    x: list[float]
    rows: Sequence[Row]


def _draw_measured(run_dirs: Sequence[Path], options: PlotOptions) -> Figure:
    configs = [read_config(run_dir, trust=options.trust) for run_dir in run_dirs]
    column, unit = COLUMNS[options.x]
    needed, what, option = _MEASURED[options.what]
    runs = []
    labels = label_runs(configs, ("run_dir",))
    for number, (run_dir, label) in enumerate(zip(run_dirs, labels, strict=True)):
        rows = read_rows(run_dir / "metrics.csv", "steps")
        if not any(np.isfinite(row.get(needed, np.nan)) for row in rows):
            raise ValueError(
                f"{run_dir} has no {what} in its metrics.csv; what={options.what} needs runs that "
                f"were trained with {option}, and have learned something"
            )
        x = [row[column] * unit for row in rows]
        runs.append(_Measured(label, COLOURS[number % len(COLOURS)], x, rows))
    return (_draw_norms if options.what == "norms" else _draw_cosine)(runs, options.x)


def _draw_norms(runs: Sequence[_Measured], axis: Axis) -> Figure:
    """A row for each kind of norm, a column for the whole network and for each layer."""
    names = dict.fromkeys(name for run in runs for name in run.rows[0])
    head = f"{KINDS[0]}/"
    layers = [name.removeprefix(head) for name in names if name.startswith(head)]
    figure = new_figure(3.0 * (1 + len(layers)), 2.3 * len(KINDS))
    panels: Any = figure.subplots(len(KINDS), 1 + len(layers), squeeze=False)
    for row, kind in zip(panels, KINDS, strict=True):
        for axes, layer in zip(row, ("", *layers), strict=True):
            _draw_lines(axes, runs, f"{kind}/{layer}" if layer else kind)
            style_panel(axes, axis)
            if kind == "parameter_norm":
                axes.ticklabel_format(axis="y", useOffset=False)
            else:
                axes.set_yscale("log")
                axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
                axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
                axes.yaxis.set_minor_formatter(NullFormatter())
            if kind == KINDS[0]:
                axes.set_title(plain(layer) or "all parameters")
        row[0].set_ylabel(kind.replace("_", " "))
    _add_legend(figure, panels[0][0])
    return figure


def _draw_cosine(runs: Sequence[_Measured], axis: Axis) -> Figure:
    figure = new_figure(8.0, 4.8)
    axes = figure.subplots()
    _draw_lines(axes, runs, COSINE)
    label = "1 / sqrt(2): orthogonal halves"
    axes.axhline(1 / sqrt(2), color="#555555", linewidth=0.8, linestyle=":", label=label)
    style_panel(axes, axis)
    axes.set_ylabel("cosine of the gradients of\nhalf the batch and of all of it")
    _add_legend(figure, axes)
    return figure


def _draw_lines(axes: Any, runs: Sequence[_Measured], name: str) -> None:
    """Draw the column ``name`` of each run that has it."""
    for run in runs:
        y = np.array([row.get(name, np.nan) for row in run.rows])
        known = np.flatnonzero(np.isfinite(y))
        if name in run.rows[0]:
            axes.plot(
                np.array(run.x)[known],
                y[known],
                color=run.colour,
                linewidth=1.4,
                marker="." if len(known) < _FEW else None,
                label=plain(run.label),
            )


def _add_legend(figure: Figure, axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", frameon=False, fontsize=8, ncols=2)
