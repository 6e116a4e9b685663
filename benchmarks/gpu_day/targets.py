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

    Returns:
        Rows with ``what``, ``figure`` (None where it was not measured), ``sign`` (``>`` or ``<``),
        ``target``, ``unit`` and ``reached`` (None where it was not measured).
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
    sampled, of_emulator = _sampling(reports)
    yield "sampling with A3C-Net / emulator, a worker core", of_emulator, ">", 0.95, ""
    learned = [_speed(reports, preset) for preset in ("a2c", "a2c num_envs=120")]
    a2c = max((speed for speed in learned if speed is not None), default=None)
    yield "A2C", a2c, ">", 25_000, "steps/s"
    share = a2c / sampled if a2c is not None and sampled else None
    yield "A2C / sampling with A3C-Net", share, ">", 0.85, ""
    yield "PPO, 8 environments", _speed(reports, "ppo"), ">", 20_000, "steps/s"
    yield "PPO, 64 environments", _speed(reports, "ppo num_envs=64"), ">", 20_000, "steps/s"
    hours = _hours(reports, "learning_cat_dqn_gpu", "cat_dqn batch_size=2048")
    yield "CatDQN, batch 2,048: 50 M steps", hours, "<", 0.75, "hours"
    hours = _hours(reports, "learning_gpu", "pqn")
    yield "PQN: 50 M steps", None if hours is None else 60 * hours, "<", 45, "minutes"
    yield "Pong: a return of 18", _until(reports, "pong"), "<", 90, "s"
    yield "Breakout: a return of 400", _until(reports, "breakout"), "<", 480, "s"
    for network, target in (("nips", 4), ("ga3c_large_stride1", 45)):
        rows = find(_rows(reports, "ga3c_gpu"), engine="ga3c", network=network)
        times = rows[0].get("of_a3c", {}).get("median") if rows else None
        yield f"GA3C / CPU A3C, {network}", times, ">", target, "times"


def _rows(reports: Reports, name: str) -> list[Row]:
    return list(reports.get(name, {}).get("rows", []))


def _sampling(reports: Reports) -> tuple[float | None, float | None]:
    """Steps a second with A3C-Net, and per worker core of the emulator's per core."""
    rows = [row for row in _rows(reports, "sampling_gpu") if "steps_per_second" in row]
    row = fastest(find(rows, part="sampler", network=True))
    if row is None:
        return None, None
    ratio = row.get("of_emulator_a_worker_core")
    return row["steps_per_second"]["median"], ratio["median"] if ratio else None


def _learned(reports: Reports, name: str, preset: str) -> Row | None:
    rows = find(_rows(reports, name), preset=preset)
    return rows[0] if rows and "steps_per_second" in rows[0] else None


def _speed(reports: Reports, preset: str) -> float | None:
    row = _learned(reports, "learning_gpu", preset)
    return None if row is None else float(row["steps_per_second"]["mean"])


def _hours(reports: Reports, name: str, preset: str) -> float | None:
    row = _learned(reports, name, preset)
    return None if row is None else float(row["hours"])


def _until(reports: Reports, game: str) -> float | None:
    """Seconds until the aim; infinite if it was not reached."""
    for row in _rows(reports, f"until_{game}_gpu"):
        return float(row["seconds"]) if row["reached"] else float("inf")
    return None


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
