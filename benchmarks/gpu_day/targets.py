"""The figures that a GPU machine is to reach, and how reports stand to them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness.report import Row, fastest, find

Reports = Mapping[str, Any]


def hold(folder: Path) -> list[Row]:
    """Return a row for each target, from the reports in ``folder`` (NAME_gpu.json).

    ``figure`` and ``reached`` are None if it was not measured.
    """
    reports = {path.stem: json.loads(path.read_text()) for path in folder.glob("*_gpu*.json")}
    rows = []
    for what, figure, sign, target, unit in _figures(reports):
        row: Row = {"what": what, "figure": figure, "sign": sign, "target": target, "unit": unit}
        row["reached"] = None
        if figure is not None:
            row["reached"] = figure >= target if sign == ">" else figure <= target
            row["figure"] = None if math.isinf(figure) else figure  # which JSON has no word for
        rows.append(row)
    return rows


def _figures(reports: Reports) -> Iterator[tuple[str, float | None, str, float, str]]:
    def row(name: str, **values: str) -> Row:
        rows = find(reports.get(name, {}).get("rows", []), **values)
        return rows[0] if rows else {}

    def learned(preset: str, what: str = "steps_per_second", name: str = "learning_gpu") -> Any:
        found = row(name, preset=preset).get(what)
        return found["mean"] if isinstance(found, dict) else found

    rows = reports.get("sampling_gpu", {}).get("rows", [])
    sampled = fastest(r for r in find(rows, part="sampler", network=True) if r.get("rates")) or {}
    per_core = sampled.get("of_emulator_a_worker_core", {}).get("median")
    yield "sampling with A3C-Net / emulator, a worker core", per_core, ">", 0.95, ""
    a2c = max(filter(None, map(learned, ("a2c", "a2c num_envs=120"))), default=None)
    yield "A2C", a2c, ">", 25_000, "steps/s"
    share = a2c / sampled["steps_per_second"]["median"] if a2c and sampled else None
    yield "A2C / sampling with A3C-Net", share, ">", 0.85, ""
    yield "PPO, 8 environments", learned("ppo"), ">", 20_000, "steps/s"
    yield "PPO, 64 environments", learned("ppo num_envs=64"), ">", 20_000, "steps/s"
    hours = learned("cat_dqn batch_size=2048", "hours", "learning_cat_dqn_gpu")
    yield "CatDQN, batch 2,048: 50 M steps", hours, "<", 0.75, "hours"
    hours = learned("pqn", "hours")
    yield "PQN: 50 M steps", hours and 60 * hours, "<", 45, "minutes"
    for game, aim, seconds in (("pong", 18, 90), ("breakout", 400, 480)):
        found = row(f"until_{game}_gpu")
        taken = found.get("seconds") if found.get("reached", True) else math.inf
        yield f"{game}: a return of {aim}", taken, "<", seconds, "s"
    for network, target in (("nips", 4), ("ga3c_large_stride1", 45)):
        times = row("ga3c_gpu", engine="ga3c", network=network).get("of_a3c", {}).get("median")
        yield f"GA3C / CPU A3C, {network}", times, ">", target, "times"


def tabulate(report: dict[str, Any], console: Console) -> None:
    """Print how the steps went, and the figures beside their targets."""
    for row in report["rows"]:
        text = f"{row['name']}: {row['error'] or 'done'}, {row['seconds']:.0f} s"
        console.print(text, highlight=False)
    gpus = ", ".join(report["machine"]["gpus"]) or "no GPU"
    cores = len(report["machine"]["cores_used"])
    title = (
        f"Targets, {gpus}, {cores} cores" + ", DRY: figures say nothing" * report["options"]["dry"]
    )
    table = Table("", title=title)
    for column in ("measured", "target", ""):
        table.add_column(column, justify="right")
    for row in report["targets"]:
        figure, reached = row["figure"], row["reached"]
        verdict = {None: "not measured", True: "reached", False: "missed"}[reached]
        shown = "" if figure is None else _number(figure)
        target = f"{row['sign']} {_number(row['target'])} {row['unit']}"
        table.add_row(row["what"], shown, target, verdict)
    console.print(table)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
