"""What runs measured of their updates, one line for each run: norms and gradient cosines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from accel_rl.algos.norms import KINDS
from accel_rl.algos.update import COSINE
from accel_rl.runs.figures import (
    COLOURS,
    Figure,
    LogLocator,
    NullFormatter,
    StrMethodFormatter,
    new_figure,
    plain,
    to_png,
)
from accel_rl.runs.files import write_whole
from accel_rl.runs.saved import read_config
from accel_rl.runs.tables import read_rows
from accel_rl.tools.compare import COLUMNS, Values, label_runs
from accel_rl.tools.output import check_output
from accel_rl.tools.plot import PlotOptions, check_named, style_panel

NEEDED = {
    "norms": (KINDS[0], "norms", "learner.log_norms=true"),
    "cosine": (COSINE, "gradient cosine", "learner.gradient_cosine_interval=100"),
}
"""by ``what``: a column that it needs, what it is called, and the option that measures it"""
_FEW = 20
"""points; so few are marked"""


@dataclass(frozen=True)
class Measured:
    """One run. ``metrics``: columns ``[n]`` by name, and ``x`` among them."""

    label: str
    colour: str
    metrics: dict[str, Values]


def plot_measurements(run_dirs: Sequence[Path], options: PlotOptions) -> None:
    """Writes the picture that ``options.what`` asks for: norms or cosine.

    Raises:
        ValueError: a run cannot be read or has not measured that, a run is named twice, or ``out``
            is in the way.
        OSError: ``out`` could not be written.
    """
    check_named(run_dirs)
    runs = _read(run_dirs, options)
    check_output(options.path, (".png",), overwrite=options.overwrite)
    draw = {"norms": _draw_norms, "cosine": _draw_cosine}
    write_whole(options.path, to_png(draw[options.what](runs, options)))


def _read(run_dirs: Sequence[Path], options: PlotOptions) -> list[Measured]:
    configs = [read_config(run_dir, trust=options.trust) for run_dir in run_dirs]
    column, unit = COLUMNS[options.x]
    needed, what, option = NEEDED[options.what]
    runs = []
    labels = label_runs(configs, ("run_dir",))
    for number, (run_dir, label) in enumerate(zip(run_dirs, labels, strict=True)):
        metrics = _columns(run_dir / "metrics.csv")
        if not np.isfinite(metrics.get(needed, np.empty(0))).any():
            raise ValueError(
                f"{run_dir} has no {what} in its metrics.csv; what={options.what} needs runs that "
                f"were trained with {option}, and have learned something"
            )
        metrics["x"] = metrics[column] * unit
        runs.append(Measured(label, COLOURS[number % len(COLOURS)], metrics))
    return runs


def _columns(path: Path) -> dict[str, Values]:
    rows = read_rows(path, "steps")
    return {name: np.array([row[name] for row in rows]) for name in rows[0]} if rows else {}


def _figure(columns: int, rows: int, width: float, height: float) -> tuple[Figure, Any]:
    figure = new_figure(width * columns, height * rows)
    return figure, figure.subplots(rows, columns, squeeze=False)


def _draw_norms(runs: Sequence[Measured], options: PlotOptions) -> Figure:
    """A row for each kind of norm, a column for the whole and for each layer."""
    names = dict.fromkeys(name for run in runs for name in run.metrics)
    head = f"{KINDS[0]}/"
    layers = [name.removeprefix(head) for name in names if name.startswith(head)]
    figure, panels = _figure(1 + len(layers), len(KINDS), 3.0, 2.3)
    for row, kind in zip(panels, KINDS, strict=True):
        for axes, layer in zip(row, ("", *layers), strict=True):
            _draw_lines(axes, runs, f"{kind}/{layer}" if layer else kind)
            style_panel(axes, options.x)
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


def _draw_cosine(runs: Sequence[Measured], options: PlotOptions) -> Figure:
    figure, ((axes,),) = _figure(1, 1, 8.0, 4.8)
    _draw_lines(axes, runs, COSINE)
    label = "1 / sqrt(2): orthogonal halves"
    axes.axhline(1 / sqrt(2), color="#555555", linewidth=0.8, linestyle=":", label=label)
    style_panel(axes, options.x)
    axes.set_ylabel("cosine of the gradients of\nhalf the batch and of all of it")
    _add_legend(figure, axes)
    return figure


def _draw_lines(axes: Any, runs: Sequence[Measured], name: str) -> None:
    """The column ``name`` of each run that has it."""
    for run in runs:
        if name not in run.metrics:
            continue
        x, y = run.metrics["x"], run.metrics[name]
        is_there = np.isfinite(y)
        axes.plot(
            x[is_there],
            y[is_there],
            color=run.colour,
            linewidth=1.4,
            marker="." if is_there.sum() < _FEW else None,
            label=plain(run.label),
        )


def _add_legend(figure: Figure, axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", frameon=False, fontsize=8, ncols=2)
