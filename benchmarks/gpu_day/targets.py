"""What a GPU machine is to reach: shares of what its cores simulate in the same call."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.harness.report import Row, find

TARGETS = {
    ("a2c_120", "acting"): 0.88,
    ("a2c_120x20", "acting"): 0.92,
    ("a2c_120", "graphs"): 0.85,
    ("ppo_60", "graphs"): 0.78,
    ("ppo_60", "overlap"): 0.88,
    ("pqn_120", "graphs"): 0.78,
    ("pqn_120", "overlap"): 0.90,
    ("cat_dqn_2048", "graphs"): 0.52,
    ("cat_dqn_2048", "overlap"): 0.80,
    ("rainbow_512", "graphs"): 0.40,
    ("rainbow_512", "overlap"): 0.75,
}
"""shares of the emulator's line on the cores that simulate, by case and way of `first`"""


def read_rows(path: Path) -> list[Row]:
    """The lines of `first`; a last one that was cut off is left out."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def hold(rows: Iterable[Row]) -> list[Row]:
    """The figures of ``rows``, each with its share of the line, and a target if it has one.

    ``share`` is None where the line was not measured.
    """
    rows = list(rows)
    line = max((row.get("steps_per_second", 0) for row in find(rows, case="line")), default=0)
    held = []
    for row in rows:
        if "way" not in row:
            continue
        rate = row.get("steps_per_second")
        share = rate / line if rate and line else None
        target = TARGETS.get((row["case"], row["way"]))
        held.append({**row, "share": share, "target": target})
    return held


def tabulate(rows: Iterable[Row], console: Console) -> None:
    """Print the lines of `first` as a table, so far as there are any."""
    rows = list(rows)
    columns = {
        "steps/s": "steps_per_second",
        "ms an action": "ms_an_action",
        "ms an update": "ms_update_host",
        "on the GPU": "ms_update_device",
        "GB": "gpu_gigabytes",
        "graphs": "graphs",
    }
    table = Table("", "", title="Of the first figures")
    for column in ("share", "target", *columns):
        table.add_column(column, justify="right")
    for row in find(rows, case="line"):
        table.add_row(f"line, {row.get('cores')} cores", "", "", "", _text(row, "steps_per_second"))
    for row in hold(rows):
        share, target = row["share"], row["target"]
        cells = [_text(row, key) for key in columns.values()]
        if "error" in row:
            cells = [row["error"][:60]]
        shown = "" if share is None else f"{share:.2f}"
        aim = "" if target is None else f"{target:.2f}{' missed' * ((share or 0) < target)}"
        table.add_row(row["case"], row["way"], shown, aim, *cells)
    console.print(table)


def _text(row: Row, key: str) -> str:
    value = row.get(key, "")
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
