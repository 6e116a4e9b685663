"""What is kept of a run for a table, some rows of its metrics, and the place of a table."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from accel_rl.runs.tables import read_rows
from accel_rl.runs.yaml_file import read_yaml

MOST_ROWS = 60


def finished(sweep: str) -> Iterator[tuple[Path, Any]]:
    """Directory and options of each run of ``sweep`` that has made all its steps."""
    for metrics in sorted(Path(sweep).glob("runs/*/metrics.csv")):
        config, rows = (
            read_yaml(metrics.with_name("config.yaml"), trust=True),
            read_rows(metrics, "steps"),
        )
        if rows and rows[-1]["steps"] >= config["total_steps"]:
            yield metrics.parent, config


def keep(
    sweep: str, folder: Path, columns: Sequence[str], name_of: Callable[[Any], str | None]
) -> None:
    """Write ``columns`` of some rows of each finished run of ``sweep``, the last row included.

    The file in ``folder`` has the name ``NAME_SEED.csv``. ``name_of``: gives NAME for the options
    of a run, or None for a run that is no part of the table. Columns that a run lacks are NaN.
    """
    for run, config in finished(sweep):
        name = name_of(config)
        if name is None:
            continue
        rows = read_rows(run / "metrics.csv")
        every = -(-len(rows) // MOST_ROWS)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{name}_{config['seed']}.csv").open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            for row in rows[::-1][::every][::-1]:
                writer.writerow(f"{row.get(column, float('nan')):.7g}" for column in columns)


def put(page: Path, name: str, table: str) -> None:
    """Write ``table`` into a page, between the lines ``<!-- NAME -->`` and ``<!-- end -->``."""
    text = page.read_text()
    before, mark, rest = text.partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition("<!-- end -->\n")
    if not (mark and end):
        raise ValueError(f"{page} has no lines <!-- {name} --> and <!-- end -->")
    page.write_text(f"{before}{mark}\n{table.rstrip()}\n\n{end}{after}")
