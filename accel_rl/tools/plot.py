"""Pictures of several saved runs: curves, averaged over seeds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any, Literal, NamedTuple

from rich.console import RenderableType
from rich.text import Text

from accel_rl.runs.figures import (
    COLOURS,
    GREY,
    EngFormatter,
    Figure,
    entitle,
    name_ends,
    new_figure,
    plain,
    style_axes,
    to_png,
)
from accel_rl.runs.files import write_whole
from accel_rl.runs.tables import EPISODE_WINDOW
from accel_rl.tools.compare import (
    SCORE,
    Axis,
    Group,
    by_env,
    find_runs,
    format_x,
    headline,
    make_groups,
    read_curves,
)
from accel_rl.tools.intervals import FEWEST_RUNS, METHOD
from accel_rl.tools.output import OutputOptions, check_output, make_table


@dataclass(frozen=True, kw_only=True)
class PlotOptions(OutputOptions):
    """Options of `plot` and of ``accel_rl plot``."""

    what: str = "scores"
    """What to draw. scores: learning curves, averaged over seeds.
    A column of metrics.csv, such as entropy, is averaged as well; `head -1 RUN/metrics.csv` lists
    the columns."""
    x: Literal["steps", "frames", "minutes"] = "steps"
    """Unit of the horizontal axis. minutes: time of training, without evaluations."""
    out: str | None = None
    """PNG file to write.
    none: learning_curves.png, or the name of the column."""

    @property
    def path(self) -> Path:
        name = "learning_curves" if self.what == "scores" else self.what.replace("/", "-")
        return Path(self.out or f"{name}.png")

    @property
    def column(self) -> str:
        """The column of metrics.csv that is averaged."""
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
    curves, without_value = read_curves(runs, options.x, options.column, trust=options.trust)
    plotted = Plotted(make_groups(curves, options.x, options.column), without_value)
    figure = draw_groups(plotted.groups, options.x, options.column)
    check_output(options.path, (".png",), overwrite=options.overwrite)
    write_whole(options.path, to_png(figure))
    return plotted


def scores_table(
    groups: Sequence[Group], axis: Axis, width: int, column: str = SCORE
) -> RenderableType:
    """Return the values at the end of each curve, for a terminal ``width`` columns wide."""
    rows = []
    for group in groups:
        last, end = group.y[:, -1], group.end
        numbers = (end.value, end.low, end.high, last.min(), last.max())
        mean, low, high, least, most = (_format(each, column) for each in numbers)
        interval = f"needs {FEWEST_RUNS} runs" if end.is_range else f"{low} to {high}"
        seeds = ", ".join(map(str, group.seeds))
        x = format_x(group.x[-1], axis)
        rows.append((f"{group.env}, {group.label}", seeds, x, mean, interval, f"{least} to {most}"))
    name = "score" if column == SCORE else column
    table = make_table(("runs", "seeds", axis, name, "interval", "range"), rows, width)
    what = f"raw, mean of the last {EPISODE_WINDOW} games, then " if column == SCORE else ""
    caption = f"{name}: {what}mean over the runs; {METHOD}"
    table.caption = Text(caption, "table.caption")  # a column's name is no markup
    return table


def _format(value: float, column: str) -> str:
    """Return ``value`` as text; other columns than scores may be small, as learning rates are."""
    return f"{value:,.2f}" if column == SCORE or abs(value) >= 1000 else f"{value:.4g}"


def draw_groups(
    groups: Sequence[Group], axis: Axis, column: str = SCORE, width: float = 8.0
) -> Figure:
    """Return a figure ``width`` inches wide with a panel for each environment.

    A label has one colour in all panels.
    """
    envs = by_env(groups)
    labels = dict.fromkeys(group.label for group in groups)
    colours = dict(zip(labels, COLOURS, strict=False))
    num_columns = min(2, len(envs))
    num_rows = math.ceil(len(envs) / num_columns)
    most = max(map(len, envs))
    figure = new_figure(width, num_rows * max(4.5 if num_columns == 1 else 2.7, 0.5 + 0.32 * most))
    panels = figure.subplots(num_rows, num_columns, squeeze=False).flat
    for axes, of_env in zip(panels, envs, strict=False):
        for group in of_env:
            _draw_group(axes, group, colours.get(group.label, GREY))
        axes.set_xlabel(axis)
        if axis != "minutes":
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set_xlim(left=0)
        style_axes(axes)
        axes.set_xlim(right=max(group.x[-1] for group in of_env))
        name_ends(
            axes,
            [
                (group.x[-1], group.mean[-1], _label(group), colours.get(group.label, GREY))
                for group in of_env
            ],
            8,
        )
        if len(envs) > 1:
            axes.set_title(plain(of_env[0].env), loc="left", fontsize=10)
    for axes in figure.axes[len(envs) :]:
        axes.set_axis_off()
    figure.supylabel("episode return, raw" if column == SCORE else plain(column), fontsize=9)
    notes = [f"mean of the last {EPISODE_WINDOW} games"] if column == SCORE else []
    seeds = max(len(group.seeds) for group in groups)
    notes += ["thin: single seeds"] if seeds > 1 else []
    notes += [f"band: {METHOD.partition(';')[0]}"] if seeds >= FEWEST_RUNS else []
    entitle(figure, _finding(envs, axis, column), "; ".join(notes))
    return figure


def _finding(envs: Sequence[Sequence[Group]], axis: Axis, column: str) -> str:
    """Return a sentence about the groups of each environment."""
    where = envs[0][0].env if len(envs) == 1 else f"{len(envs)} environments"
    if column != SCORE:
        return f"{where}: {column}"
    if len(envs) == 1:
        return headline(envs[0], axis)
    best = Counter(max(of_env, key=lambda group: group.end.value).label for of_env in envs)
    label, wins = best.most_common(1)[0]
    return f"{where}: {label} scores most in {wins} of them"


def _draw_group(axes: Any, group: Group, colour: str) -> None:
    is_point = group.x[0] == group.x[-1]  # lines and bands would show nothing
    if len(group.seeds) > 1:
        marker = "." if is_point else None
        axes.plot(group.x, group.y.T, marker=marker, color=colour, linewidth=0.6, alpha=0.5)
    if len(group.seeds) >= FEWEST_RUNS:
        width = 6 if is_point else 0
        axes.fill_between(group.x, *group.interval, color=colour, alpha=0.2, linewidth=width)
    marker = "o" if is_point else None
    axes.plot(group.x, group.mean, marker=marker, color=colour, linewidth=2)


def _label(group: Group) -> str:
    """Return the name of a line, in lines that fit beside a panel."""
    seeds = f" ({len(group.seeds)} seeds)" if len(group.seeds) > 1 else ""
    return fill(group.label + seeds, width=24, break_on_hyphens=False)
