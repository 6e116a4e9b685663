"""What `ga3c` found: a table and a figure for each part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from accel_rl.runs.figures import COLOURS, Axes, EngFormatter, new_figure, style_axes
from benchmarks.ga3c.ga3c_speeds import PAPER_FACTORS
from benchmarks.harness.figures import (
    Bar,
    Curve,
    Panel,
    by_size,
    draw_bars,
    draw_curves,
    save,
    where,
)
from benchmarks.harness.report import Row, find, ratio_cell
from benchmarks.training.learning_speed import SHARE_COLOURS, SHARES

Report = dict[str, Any]
PAPER_SPLIT = "the paper, 32 environments on a GPU: half in the simulators, 37 % in the network"
COLUMNS = {
    "pps": ("predictions/s", "range", "trainings/s", "CPU", "GPU", "of CPU A3C", "of parts"),
    "tps": ("predictors", "trainers", "trainings/s", "range", "predictions/s"),
    "split": ("steps/s", "range", *SHARES),
    "batch": ("final, each seed", "final", "area", "area, max - min", "samples", "lag, updates"),
}


def tabulate_speeds(report: Report, console: Console) -> None:
    """A line for each engine and network, then GA3C beside CPU A3C."""
    table = _table(report, "pps")
    for row in report["rows"]:
        name = f"{row['network']}, {row['engine']}"
        if "steps_per_second" not in row:
            table.add_row(name, "failed")
            continue
        gpu = row["gpu_share"]
        table.add_row(
            name,
            *_spread_cells(row["steps_per_second"]),
            f"{row['trainings_per_second']['median']:,.1f}",
            f"{row['cpu_share']['median']:.0%}",
            "" if gpu is None else f"{gpu['median']:.0%}",
            ratio_cell(row.get("of_a3c")),
            ratio_cell(row.get("of_allowed")),
        )
    console.print(table)
    for row in find(report["rows"], engine="ga3c"):
        network = row["network"]
        if "of_a3c" in row:
            paper = PAPER_FACTORS.get(network)
            predicted = row.get("allowed_of_a3c")
            words = f"{network}: GA3C makes {ratio_cell(row['of_a3c'])} times CPU A3C's predictions"
            words += f"; its parts allow {predicted:.2f} times" if predicted else ""
            words += f"; the paper, with a GPU: {paper:.1f} times" if paper else ""
            console.print(words, highlight=False)
        if "core_us" in row:
            console.print(
                "{}: GA3C's core time of a step, us: agents {agents:,.0f} (simulator alone "
                "{simulator:,.0f}), predictors and trainers {threads:,.0f} (alone "
                "{inference:,.0f} + {update:,.0f}), idle {idle:,.0f}".format(
                    network, **row["core_us"]
                ),
                highlight=False,
            )


def tabulate_grid(report: Report, console: Console) -> None:
    """A line for each setting."""
    table = _table(report, "tps")
    for row in report["rows"]:
        counts = (str(row[name]) for name in ("predictors", "trainers"))
        speeds = _spread_cells(row["trainings_per_second"])
        predictions = f"{row['predictions_per_second']['median']:,.0f}"
        table.add_row(f"{row['agents']} agents", *counts, *speeds, predictions)
    console.print(table)


def tabulate_tuner(report: Report, console: Console) -> None:
    """What it found, beside the best."""
    for row in report["rows"]:
        if "error" in row:
            console.print(f"failed: {row['error']}", highlight=False)
            continue
        for name, each in zip(("tuner", "best of the grid"), row["compared"], strict=True):
            counts = ", ".join(f"{each[key]} {key}" for key in ("predictors", "trainers", "agents"))
            median, span = _spread_cells(each["trainings_per_second"])
            console.print(f"{name}: {counts}: {median} trainings/s ({span})", highlight=False)
        words = f"after {len(row['windows'])} windows the tuner has {ratio_cell(row['of_best'])}"
        words += f" of the best; {row['last_trainings_per_second']:.1f} in its last third"
        console.print(words, highlight=False)


def tabulate_split(report: Report, console: Console) -> None:
    """A line for each network and number of environments."""
    table = _table(report, "split")
    for row in report["rows"]:
        name = f"{row['network']}, {row['num_envs']} environments"
        if "error" in row:
            table.add_row(name, "failed")
            continue
        speed = row["steps_per_second"]
        shown = [f"{speed['mean']:,.0f}", f"{speed['low']:,.0f}-{speed['high']:,.0f}"]
        table.add_row(name, *shown, *(f"{row['shares'][share]:.0%}" for share in SHARES))
    console.print(table)
    console.print(PAPER_SPLIT, highlight=False)


def tabulate_batches(report: Report, console: Console) -> None:
    """A line for each least size."""
    table = _table(report, "batch")
    for row in report["rows"]:
        name = f"min_training_batch={row['min_training_batch']}"
        if "final" not in row:
            table.add_row(name, "failed")
            continue
        finals = " ".join(f"{score:.2f}" for score in row["final"])
        numbers = [row[key] for key in ("final_mean", "area_mean", "area_spread")]
        numbers += [row["training_batch"], row["lag"]]
        table.add_row(name, finals, *(f"{number:.2f}" for number in numbers))
    console.print(table)


ENGINES = {"a3c": "CPU A3C", "ga3c": "GA3C", "paac": "PAAC", "a2c": "A2C, two groups"}
UNIT = "predictions a second; mark: what the parts allow"


def draw_speeds(report: Report, path: Path) -> None:
    """Predictions a second of each engine, a panel for each network."""
    rows = [row for row in report["rows"] if "steps_per_second" in row]
    panels = []
    for network in dict.fromkeys(row["network"] for row in rows):
        bars = [
            Bar(
                ENGINES.get(row["engine"], row["engine"]),
                row["steps_per_second"],
                "ours" if row["engine"] == "ga3c" else "python",
                mark=row["allowed"]["median"] if "allowed" in row else None,
            )
            for row in find(rows, network=network)
        ]
        panels.append(Panel(network.replace("_", " "), by_size(bars)))
    title = "GA3C beside the other engines of accel_rl"
    draw_bars(path, panels, title, UNIT, where(report), legend=False)


def draw_grid(report: Report, path: Path) -> None:
    """Trainings a second against agents, a line for each number of predictors and trainers."""
    lines: dict[str, list[Row]] = {}
    for row in report["rows"]:
        name = f"{row['predictors']} predictors, {row['trainers']} trainers"
        lines.setdefault(name, []).append(row)
    curves = []
    for (name, own), colour in zip(lines.items(), COLOURS * 9, strict=False):
        speeds = [row["trainings_per_second"] for row in own]
        medians, low, high = ([each[key] for each in speeds] for key in ("median", "low", "high"))
        agents = [row["agents"] for row in own]
        curves.append(Curve(name, agents, medians, colour, low=low, high=high))
    axes = _axes()
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("agents")
    axes.set_ylabel("trainings a second")
    draw_curves(axes, curves)
    save(axes.figure, path, "GA3C: numbers of agents, predictors and trainers", where(report))


def draw_tuner(report: Report, path: Path) -> None:
    """Trainings a second of its windows; dashed: what it found and the best of the grid."""
    axes, curves = _axes(), []
    for row in report["rows"]:
        if "error" in row:
            continue
        minutes = [window["seconds"] / 60 for window in row["windows"]]
        speeds = [window["trainings_per_second"] for window in row["windows"]]
        curves.append(Curve("each window", minutes, speeds, COLOURS[0]))
        names = ("what it found", "best of the grid")
        for name, each, colour in zip(names, row["compared"], COLOURS[1:3], strict=True):
            speed = each["trainings_per_second"]["median"]
            curves.append(Curve(name, [0, minutes[-1]], [speed] * 2, colour, "--"))
    axes.set_xlabel("minutes")
    axes.set_ylabel("trainings a second")
    draw_curves(axes, curves)
    save(axes.figure, path, "GA3C's tuner", where(report))


def draw_split(report: Report, path: Path) -> None:
    """Shares of time as bars."""
    rows = [row for row in report["rows"] if "error" not in row]
    axes = _axes()
    names = [f"{row['num_envs']}\n{row['network'].replace('ga3c_', '')}" for row in rows]
    bottom = [0.0] * len(rows)
    for share, colour in zip(SHARES, SHARE_COLOURS, strict=True):
        heights = [row["shares"][share] for row in rows]
        axes.bar(names, heights, bottom=bottom, color=colour)
        middle = bottom[-1] + heights[-1] / 2
        axes.annotate(share, (1.01, middle), xycoords=("axes fraction", "data"), va="center")
        bottom = [before + height for before, height in zip(bottom, heights, strict=True)]
    axes.tick_params(axis="x", labelsize="x-small", length=0)
    axes.set_ylim(0, 1)
    axes.set_xlabel("environments, network")
    axes.set_ylabel("share of time")
    style_axes(axes, grid="y")
    save(axes.figure, path, "PAAC: where the time goes", where(report))


def draw_batches(report: Report, path: Path) -> None:
    """Scores over steps, a panel for each least batch and a line for each seed."""
    rows = report["rows"]
    figure = new_figure(9.0, 2.0 + 1.5 * (len(rows) > 3))
    panels = figure.subplots(-(-len(rows) // 3), 3, sharex=True, sharey=True, squeeze=False)
    for axes, row in zip(panels.flat, rows, strict=False):
        for curve in row["curves"]:
            axes.plot(curve["steps"], curve["score"], color=COLOURS[0], linewidth=1)
        axes.set_title(f"at least {row['min_training_batch']} samples", fontsize="small")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        style_axes(axes)
    figure.supxlabel("steps", fontsize="medium")
    figure.supylabel("score on Catch", fontsize="medium")
    save(figure, path, "GA3C: the least size of a training batch, three seeds", where(report))


def _axes() -> Axes:
    return new_figure(8.0, 4.5).add_subplot()


TABULATE: dict[str, Callable[[Report, Console], None]] = {
    "pps": tabulate_speeds,
    "tps": tabulate_grid,
    "tuner": tabulate_tuner,
    "split": tabulate_split,
    "batch": tabulate_batches,
}
DRAW: dict[str, Callable[[Report, Path], None]] = {
    "pps": draw_speeds,
    "tps": draw_grid,
    "tuner": draw_tuner,
    "split": draw_split,
    "batch": draw_batches,
}


def _table(report: Report, part: str) -> Table:
    machine = report["machine"]
    table = Table(title=f"{part}, {len(machine['cores_used'])} cores of {machine['cpu']}")
    table.add_column("", no_wrap=True)
    for column in COLUMNS[part]:
        table.add_column(column, justify="right")
    return table


def _spread_cells(value: dict[str, float]) -> tuple[str, str]:
    """Median and range."""
    digits = 0 if value["median"] >= 1000 else 1
    median, low, high = (f"{value[key]:,.{digits}f}" for key in ("median", "low", "high"))
    return median, f"{low}-{high}"
