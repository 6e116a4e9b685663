"""Tables of ``plot`` and ``sweep`` in narrow terminals and pipes."""

import numpy as np
import pytest
from rich.console import Console

from accel_rl.sweeps.command import results_table
from accel_rl.sweeps.display import Standing, table
from accel_rl.sweeps.plan import plan_runs
from accel_rl.sweeps.queue import make_jobs
from accel_rl.sweeps.report import NAMES, Panel
from accel_rl.tools.compare import Group
from accel_rl.tools.intervals import Estimate
from accel_rl.tools.output import make_table
from accel_rl.tools.plot import scores_table

PAIRS = ("num_envs=128", "lr=0.0007", "entropy_coefficient=0.01")
LABEL = ", ".join(PAIRS)


def shown(renderable: object, width: int) -> list[str]:
    """Its lines on a console of ``width`` columns."""
    console = Console(width=width)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get().splitlines()


def group(scale: float) -> Group:
    scores = np.array([[1.0], [2.0], [3.0]]) * scale
    return Group(LABEL, "pong", (0, 1, 2), np.array([25e6]), scores, runs=(), left_out=())


def test_headers_and_labels_are_no_markup() -> None:
    lines = shown(make_table(["x[/red]y"], [["channels=[red]"]], 80), 80)
    assert "x[/red]y" in lines[1] and "channels=[red]" in lines[3]


@pytest.mark.parametrize("scale", [1.0, 10_000.0])
def test_scores_in_80_columns_keep_pairs_numbers_and_headers_whole(scale: float) -> None:
    lines = shown(scores_table([group(scale)], "steps", 80), 80)
    assert {"runs", "seeds", "steps", "score", "interval", "range"} == set(lines[1].split())
    words = {word.strip(",") for line in lines for word in line.split()}
    assert words >= {*PAIRS, "25,000,000", f"{scale:,.2f}", f"{scale * 3:,.2f}"}


def test_results_of_a_sweep_in_80_columns_keep_pairs_numbers_and_headers_whole() -> None:
    estimates = dict.fromkeys(NAMES, Estimate(-1200.5, -1300.25, -1100.75))
    panel = Panel("score, catch", {LABEL: estimates}, {LABEL: (1, 3)})
    lines = shown(results_table(panel, 80), 80)
    assert lines[0].strip() == "score, catch"
    assert lines[2].split() == ["configuration", "games", "runs", "IQM", "mean", "median"]
    words = {word.strip(",") for line in lines for word in line.split()}
    assert words >= {*PAIRS, "-1,200.50", "[-1,300.25", "-1,100.75]"}


def test_long_names_of_runs_are_folded_and_the_headers_stay(tmp_path) -> None:
    (job, _) = make_jobs(
        plan_runs({"env": "catch", "entropy_coefficient": f"0.01,0.{'0' * 60}1"}),
        tmp_path,
        tmp_path,
    )[::-1]
    job.state = "running"
    lines = shown(table([job], {job.run.name: Standing()}, float("nan"), 80), 80)
    assert lines[2].split() == ["run", "steps", "of", "steps/s", "score", "left"]
    assert job.run.name in "".join(line.split(" ")[1] for line in lines[4:])


def test_table_that_has_room_breaks_nothing() -> None:
    lines = shown(make_table(("runs", "interval"), [(LABEL, "1 to 2")], 120), 120)
    assert f" {LABEL}    1 to 2 " in lines
