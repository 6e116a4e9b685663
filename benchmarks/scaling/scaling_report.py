"""What `scaling` found: speeds beside the model's, shares of time, and the paper's machine."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness.figures import Bar, Panel, draw_bars, plural, where
from benchmarks.harness.interleave import Result
from benchmarks.harness.report import Row, find, make_rows, ratio, ratio_cell, spread
from benchmarks.scaling.speed_model import Costs, Shape, predict
from benchmarks.scaling.speed_parts import Measured

LOCK_WAIT_BAR = 0.05
SHARES = ("learning", "all_reduce", "push", "lock_wait", "agreement")
"""of time; agreement: to stop or go on, which is the barrier where learners go in step"""
PAPER_SAMPLING = {64: (29.6, 31.9), 128: (33.0, 34.7), 256: (35.7, 36.7), 512: (35.8, 38.4)}
"""its Table 3, by simulators: thousands of steps a second in step, and independent"""
PAPER_A2C_STEPS = 23_540
"""its Table 2: steps a second of A2C on 8 GPUs"""
HORIZON = 5


def summarise(
    results: list[Result], machine: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    """One JSON object as `report` has it.

    ``predicted``: by the model, from the parts of the same round; ``of_predicted`` and ``of_one``
    (learner) round by round.
    """
    rows, measured = make_rows(results)
    numbers = {result.case.name: result.numbers for result in results}
    cores = len(machine["cores_used"])
    has_device = options.get("device", "cpu") == "cuda"
    for row in measured:
        row["numbers"] = numbers[row["name"]]
        if row["part"] == "parts":
            continue
        row["shares"] = {
            name: statistics.median(_share(each, f"{name}_seconds") for each in row["numbers"])
            for name in SHARES
        }
        same = {key: row[key] for key in ("algo", "sync")}
        for parts in find(measured, part="parts", learners=row["learners"], **same):
            speeds = [
                predict_row(each[0], row, parts["settings"]["shape"], cores, has_device=has_device)
                for each in numbers[parts["name"]]
            ]
            row["predicted"] = spread(speeds)
            row["of_predicted"] = ratio(row["rates"], speeds)
        for one in find(measured, part=row["part"], learners=1, **same):
            row["of_one"] = ratio(row["rates"], one["rates"])
    return {
        "machine": machine,
        "options": options,
        "rows": rows,
        "paper": predict_paper(options),
    }


def _share(children: list[dict[str, float]], name: str) -> float:
    """Of the time measured, the mean over learners."""
    return statistics.fmean(child.get(name, 0.0) / child["seconds"] for child in children)


def predict_row(
    numbers: dict[str, float],
    row: Row,
    of_one: dict[str, int],
    cores: int,
    *,
    has_device: bool = False,
) -> float:
    """Steps a second of ``row``, from its parts' ``numbers`` and the shape ``of_one`` learner."""
    learners = row["learners"]
    measured = Measured(**{"pair": float("nan"), **numbers})  # type: ignore[arg-type]
    costs = measured.costs(learners, cores)
    shape = Shape(**of_one, cores=cores / learners, has_device=has_device)
    speed = predict(costs, shape, learners)
    return speed.steps_per_second if row["part"] == "train" else speed.sampling_steps_per_second


def predict_paper(options: dict[str, Any]) -> list[dict[str, float]]:
    """What the model says of 8 GPUs and 40 cores, one of five for each server; by simulators."""
    rows = []
    for num_envs, (in_step, independent) in PAPER_SAMPLING.items():
        update = options["gpu_update_ms"] / 1000 * max(1.0, num_envs / 8 / 32)
        costs = Costs(
            simulator=options["simulator_ms"] / 1000,
            inference=options["gpu_inference_ms"] / 1000,
            update=update,
            exchange=options["gpu_all_reduce_ms"] / 1000,
        )
        speed = predict(costs, Shape(num_envs // 8, HORIZON, 2, 4, True), 8)
        rows.append(
            {
                "num_envs": num_envs,
                "sampling": speed.sampling_steps_per_second,
                "paper_in_step": 1000 * in_step,
                "paper_independent": 1000 * independent,
                "training": speed.steps_per_second,
            }
        )
    return rows


def tabulate(report: dict[str, Any], console: Console) -> None:
    """Prints the rows, the bar, and the paper's machine."""
    machine = report["machine"]
    cores = len(machine["cores_used"])
    title = f"{report['options']['num_envs']} environments, {cores} cores of {machine['cpu']}"
    table = Table(title=title)
    table.add_column("", max_width=40, overflow="fold")
    for column in ("steps/s", "range", "of one", "of predicted", *SHARES):
        table.add_column(column, justify="right")
    for row in report["rows"]:
        steps = row.get("steps_per_second")
        if row["part"] == "parts" and steps is not None:
            continue
        if steps is None:
            table.add_row(row["name"], "failed")
            continue
        shown = [
            row["name"],
            f"{steps['median']:,.0f}",
            f"{steps['low']:,.0f}-{steps['high']:,.0f}",
        ]
        shown += [ratio_cell(row.get(key)) for key in ("of_one", "of_predicted")]
        shown += [f"{row['shares'][name]:.1%}" for name in SHARES]
        table.add_row(*shown)
    console.print(table)
    for row in report["rows"]:
        if row.get("sync") == "store" and row["learners"] == 4 and "shares" in row:
            share = row["shares"]["lock_wait"]
            verdict = "reached" if share < LOCK_WAIT_BAR else "missed"
            text = f"{row['name']}: lock waits {share:.1%}, bar {LOCK_WAIT_BAR:.0%} {verdict}"
            console.print(text, highlight=False)
    paper = Table(title="8 GPUs, 40 cores: the model, with assumed costs, beside the paper")
    for column in (
        "simulators",
        "sampling",
        "paper, in step",
        "paper, independent",
        "training A2C",
    ):
        paper.add_column(column, justify="right")
    for each in report["paper"]:
        paper.add_row(*(f"{value:,.0f}" for value in each.values()))
    console.print(paper)
    console.print(f"the paper's A2C on 8 GPUs: {PAPER_A2C_STEPS:,} steps/s", highlight=False)


def draw(report: dict[str, Any], path: Path) -> None:
    """Steps a second for each number of learners; a mark where the model predicts them."""
    names = {"sample": "sampling, independent", "sample_in_step": "sampling, in step"}
    rows = [row for row in report["rows"] if row["part"] != "parts" and "steps_per_second" in row]
    panels: dict[str, list[Bar]] = {}
    for row in rows:
        sync = "with the store" if row["sync"] == "store" else "in step"
        heading = names.get(row["part"], f"training {row['algo']}, {sync}")
        name = plural(row["learners"], "learner")
        mark = row["predicted"]["median"] if "predicted" in row else None
        panels.setdefault(heading, []).append(Bar(name, row["steps_per_second"], mark=mark))
    draw_bars(
        path,
        [Panel(heading, bars) for heading, bars in panels.items()],
        "Several learners",
        "steps a second of all learners; mark: the model's prediction",
        where(report),
    )
