"""What `ga3c` found: a table and a figure for each part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.ga3c.ga3c_speeds import PAPER_FACTORS
from benchmarks.harness.report import Row, find, ratio_cell
from benchmarks.training.learning_speed import SHARES

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


def draw_speeds(report: Report, path: Path) -> None:
    """Predictions a second by network, one line for each engine; dashed: what the parts allow."""
    figure, axes = _axes(report)
    rows = [row for row in report["rows"] if "steps_per_second" in row]
    for number, engine in enumerate(dict.fromkeys(row["engine"] for row in rows)):
        own = find(rows, engine=engine)
        names = [_short(row["network"]) for row in own]
        color = f"C{number}"
        _errorbar(axes, names, [row["steps_per_second"] for row in own], engine, color)
        allowed = [row for row in own if "allowed" in row]
        names = [_short(row["network"]) for row in allowed]
        medians = [row["allowed"]["median"] for row in allowed]
        axes.plot(names, medians, linestyle="--", color=color)
    axes.set_yscale("log")
    axes.set_ylabel("predictions a second; dashed: what the parts allow")
    _save(figure, axes, path)


def draw_grid(report: Report, path: Path) -> None:
    """Trainings a second against agents, a line for each number of predictors and trainers."""
    figure, axes = _axes(report)
    lines: dict[str, list[Row]] = {}
    for row in report["rows"]:
        name = f"{row['predictors']} predictors, {row['trainers']} trainers"
        lines.setdefault(name, []).append(row)
    for number, (name, own) in enumerate(lines.items()):
        agents = [row["agents"] for row in own]
        speeds = [row["trainings_per_second"] for row in own]
        _errorbar(axes, agents, speeds, name, f"C{number % 10}")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("agents")
    axes.set_ylabel("trainings a second")
    _save(figure, axes, path)


def draw_tuner(report: Report, path: Path) -> None:
    """Trainings a second of its windows; dashed: the best of the grid."""
    figure, axes = _axes(report)
    for row in report["rows"]:
        if "error" in row:
            continue
        minutes = [window["seconds"] / 60 for window in row["windows"]]
        speeds = [window["trainings_per_second"] for window in row["windows"]]
        axes.plot(minutes, speeds, marker=".", label="the tuner, each window")
        for style, name, each in zip(
            (":", "--"), ("what it found", "the best of the grid"), row["compared"], strict=True
        ):
            speed = each["trainings_per_second"]["median"]
            axes.axhline(speed, linestyle=style, color="black", label=f"{name}, afterwards")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("minutes")
    axes.set_ylabel("trainings a second")
    _save(figure, axes, path)


def draw_split(report: Report, path: Path) -> None:
    """Shares of time as bars."""
    figure, axes = _axes(report)
    rows = [row for row in report["rows"] if "error" not in row]
    names = [f"{row['network']}\n{row['num_envs']}" for row in rows]
    bottom = [0.0] * len(rows)
    for share in SHARES:
        heights = [row["shares"][share] for row in rows]
        axes.bar(names, heights, bottom=bottom, label=share)
        bottom = [before + height for before, height in zip(bottom, heights, strict=True)]
    axes.set_xlabel("network, environments")
    axes.set_ylabel("share of time")
    _save(figure, axes, path)


def draw_batches(report: Report, path: Path) -> None:
    """Scores over steps, a colour for each least batch and a line for each seed."""
    figure, axes = _axes(report)
    for number, row in enumerate(report["rows"]):
        for k, curve in enumerate(row["curves"]):
            label = f"at least {row['min_training_batch']} samples" if k == 0 else None
            color = f"C{number % 10}"
            axes.plot(curve["steps"], curve["score"], color=color, label=label, linewidth=1)
    axes.set_xlabel("steps")
    axes.set_ylabel("score on Catch, mean of the last 100 episodes")
    _save(figure, axes, path)


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


def _short(network: str) -> str:
    """Its name below an axis."""
    return network.replace("ga3c_large_", "large\n")


def _errorbar(axes: Any, x: list[Any], speeds: list[Any], name: str, color: str) -> None:
    middle = [each["median"] for each in speeds]
    errors = [
        [each["median"] - each["low"] for each in speeds],
        [each["high"] - each["median"] for each in speeds],
    ]
    axes.errorbar(x, middle, yerr=errors, marker="o", capsize=2, color=color, label=name)


def _axes(report: Report) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    machine = report["machine"]
    axes.set_title(f"{len(machine['cores_used'])} cores of {machine['cpu']}")
    return figure, axes


def _save(figure: Any, axes: Any, path: Path) -> None:
    from matplotlib import pyplot

    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
