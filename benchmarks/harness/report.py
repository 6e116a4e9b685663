"""From rates to a report: ratios, intervals, what the parts allow; as a table and as JSON.

A report is one JSON object: ``machine``, ``options`` and ``rows`` (one for each case: what it is,
its settings, its rates in steps a second for each round, their spread, its ratios). A ratio is
taken in each round, so that what slows the whole machine for a while cancels out; a spread is the
median of the rounds, the lowest and the highest.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.harness.interleave import OTHER, Result

Row = dict[str, Any]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, lowest and highest."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def ratio(rates: Sequence[float], reference: Sequence[float]) -> dict[str, float]:
    """The spread of the quotients round by round; rounds that one of them lacks are left out."""
    return spread([rate / other for rate, other in zip(rates, reference, strict=False)])


def interval(
    rates: Sequence[float], reference: Sequence[float], rounds_per_start: int
) -> list[float]:
    """95 % bootstrap interval of the median ratio of ``rates`` to ``reference``.

    The rounds of one start belong together: with several starts, whole starts are drawn (each by
    the median of its ratios), with a single one its rounds.
    """
    known = min(len(rates), len(reference))
    ratios = np.divide(rates[:known], reference[:known])
    whole = known // rounds_per_start * rounds_per_start
    if whole > rounds_per_start:
        ratios = np.median(ratios[:whole].reshape(-1, rounds_per_start), axis=1)
    draws = np.random.default_rng(0).integers(len(ratios), size=(10_000, len(ratios)))
    low, high = np.quantile(np.median(ratios[draws], axis=1), (0.025, 0.975))
    return [float(low), float(high)]


def parts_allow(
    cores: int, simulated: Sequence[float], inferred: Sequence[float], threads: int
) -> list[float]:
    """Steps a second if simulators and network shared the cores and nothing else cost time.

    ``cores / (simulator + inference core-seconds a step)``. ``simulated``: steps a second of
    the simulators alone on all cores, round by round; ``inferred``: of the network alone on
    ``threads`` cores.
    """
    rounds = zip(simulated, inferred, strict=False)
    return [cores / (cores / steps + threads / samples) for steps, samples in rounds]


def make_rows(results: Iterable[Result]) -> tuple[list[Row], list[Row]]:
    """A row for each case, and those of them that have figures: with their steps a second."""
    rows: list[Row] = [
        {"name": result.case.name, **result.case.row}
        | {"settings": result.settings, "rates": result.rates, "error": result.error}
        | {"rounds_per_start": result.rounds_per_start}
        for result in results
    ]
    measured = [row for row in rows if row["rates"] and not row["error"]]
    for row in measured:
        row["steps_per_second"] = spread(row["rates"])
    return rows, measured


def compare(measured: Sequence[Row]) -> None:
    """Put ``of`` into each row: ratios with intervals to the cases that its ``beside`` names.

    The same case in another checkout (see `with_other`) is one of them.
    """
    by_name = {row["name"]: row for row in measured}
    for row in measured:
        named = [*row.get("beside", ()), row["name"] + OTHER]
        row["of"] = {
            name: ratio(row["rates"], by_name[name]["rates"])
            | {"interval": interval(row["rates"], by_name[name]["rates"], row["rounds_per_start"])}
            for name in named
            if name in by_name
        }


def find(rows: Iterable[Row], **values: Any) -> list[Row]:
    """The rows that have all of ``values``."""
    return [row for row in rows if all(row.get(key) == value for key, value in values.items())]


def fastest(rows: Iterable[Row]) -> Row | None:
    """The row with the highest median, if there is one."""
    return max(rows, key=lambda row: float(row["steps_per_second"]["median"]), default=None)


def ratio_cell(value: dict[str, float] | None) -> str:
    """A spread of ratios in words, empty if there is none."""
    if value is None:
        return ""
    return f"{value['median']:.3f} ({value['low']:.2f}-{value['high']:.2f})"


def spread_cells(value: dict[str, float]) -> tuple[str, str]:
    """Median and range."""
    digits = 0 if value["median"] >= 1000 else 1
    median, low, high = (f"{value[key]:,.{digits}f}" for key in ("median", "low", "high"))
    return median, f"{low}-{high}"


def table_for(report: dict[str, Any], title: str, columns: Sequence[str]) -> Table:
    """An empty table, names at the left, that has the machine in its title."""
    machine = report["machine"]
    table = Table(title=f"{title}, {len(machine['cores_used'])} cores of {machine['cpu']}")
    for column in ("", *columns):
        table.add_column(column, justify="right" if column else "left", no_wrap=bool(column))
    return table


def tabulate_ratios(rows: Iterable[Row], console: Console) -> None:
    """Print each ratio of `compare` with its interval."""
    for row in rows:
        for name, each in row.get("of", {}).items():
            low, high = each["interval"]
            of = name.removeprefix(row["name"]).strip()
            text = f"{row['name']} / {of}: {each['median']:.3f}, 95 % {low:.3f} to {high:.3f}"
            console.print(text, markup=False, highlight=False)


def write(
    report: dict[str, Any], out: str, tabulate: Callable[[dict[str, Any], Console], None]
) -> None:
    """Write OUT.json, and print the tables of a report."""
    write_json(report, Path(f"{out}.json"))
    tabulate(report, Console(width=None if sys.stdout.isatty() else 160))
    print(f"wrote {out}.json", flush=True)


def write_json(report: dict[str, Any], path: Path) -> None:
    """The whole report, with lists of numbers in one line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report, indent=1)
    flat = re.sub(r"\[[^\[\]{}\"]*\]", lambda found: " ".join(found[0].split()), text)
    path.write_text(flat + "\n")
