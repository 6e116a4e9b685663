"""Curves of any column of ``metrics.csv``, as those of scores are drawn."""

import csv
from pathlib import Path

import cv2
import numpy as np
import pytest
from matplotlib.figure import Figure
from saved_runs import trained

from accel_rl.__main__ import main
from accel_rl.cli.parse import parse_arguments
from accel_rl.runs.directory import write_config
from accel_rl.tools.compare import make_groups, read_curve
from accel_rl.tools.plot import PlotOptions, plot

NAN = float("nan")


def saved(run_dir: Path, *arguments: str, **columns: list[float]) -> Path:
    """A run with a row for each 1,000 steps; the score is unknown in all of them."""
    run_dir.mkdir()
    write_config(parse_arguments(["env=pong", *arguments]), run_dir / "config.yaml")
    with (run_dir / "metrics.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["steps", "training_seconds", "episode_return_raw_mean", *columns])
        for number, row in enumerate(zip(*columns.values(), strict=True)):
            writer.writerow([number * 1000, number * 30, NAN, *row])
    return run_dir


def test_column_is_averaged_over_the_seeds(tmp_path) -> None:
    runs = [
        saved(tmp_path / f"{seed}", f"seed={seed}", entropy=[NAN, 1.0, end])
        for seed, end in enumerate((3.0, 5.0))
    ]
    (group,) = plot(runs, PlotOptions(what="entropy", out=str(tmp_path / "out.png"))).groups
    assert (group.seeds, group.x[0], group.x[-1]) == ((0, 1), 1000, 2000)
    assert (group.mean[0], group.mean[-1]) == (1.0, 4.0)


def test_panel_has_the_name_of_the_column(tmp_path, monkeypatch) -> None:
    figures: list[Figure] = []

    def keep(figure: Figure) -> memoryview:
        figures.append(figure)
        return memoryview(b"")

    monkeypatch.setattr("accel_rl.tools.plot.to_png", keep)
    run_dir = saved(tmp_path / "run", entropy=[1.0, 2.0])
    plot([run_dir], PlotOptions(what="entropy", x="minutes", out=str(tmp_path / "out.png")))
    (axes,) = figures[0].axes
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title()) == (
        "minutes",
        "entropy",
        "pong",
    )
    np.testing.assert_allclose(axes.lines[-1].get_xdata()[[0, -1]], [0, 0.5])


@pytest.mark.parametrize(
    ("column", "num_groups"),
    [("entropy", 1), ("steps_per_second", 2), ("inference_share", 2), ("updates", 1)],
)
def test_runs_of_different_workers_are_apart_where_they_differ_in_speed(
    column: str, num_groups: int, tmp_path
) -> None:
    runs = [
        saved(tmp_path / f"{number}", f"num_workers={number}", **{column: [1.0, 2.0]})
        for number in (1, 2)
    ]
    curves = [read_curve(run_dir, "steps", column) for run_dir in runs]
    assert len(make_groups(curves, "steps", column)) == num_groups


def test_table_that_cannot_be_read_is_named(tmp_path) -> None:
    runs = [saved(tmp_path / name, entropy=[1.0, 2.0]) for name in ("whole", "broken")]
    (tmp_path / "broken" / "metrics.csv").write_bytes(b"\xff\xff")
    with pytest.raises(ValueError, match=r"broken/metrics\.csv cannot be read"):
        plot(runs, PlotOptions(what="entropy"))


def test_unknown_column_is_refused_with_the_nearest_and_how_to_see_all(tmp_path) -> None:
    run_dir = saved(tmp_path / "run", entropy=[1.0], policy_loss=[1.0], value_loss=[1.0])
    for what, near in (
        ("entrpy", "; did you mean entropy?"),
        ("loss", "; did you mean policy_loss or value_loss?"),
        ("score", "; did you mean scores?"),
        ("qqqq", ";"),
    ):
        with pytest.raises(ValueError) as caught:
            plot([run_dir], PlotOptions(what=what, out=str(tmp_path / "out.png")))
        assert str(caught.value) == (
            f"what={what} is no column of these runs{near} "
            f"`head -1 {run_dir}/metrics.csv` shows all"
        )


def test_runs_that_lack_the_column_are_named(tmp_path) -> None:
    runs = [
        saved(tmp_path / "a", entropy=[1.0]),
        saved(tmp_path / "b", loss=[1.0]),
        saved(tmp_path / "c", loss=[1.0]),
    ]
    message = f"other runs have that column .*, and {runs[1]}, {runs[2]} have not; leave them out"
    with pytest.raises(ValueError, match=message):
        plot(runs, PlotOptions(what="entropy", out=str(tmp_path / "out.png")))


@pytest.mark.parametrize("rows", [[], [NAN]], ids=["no row", "no number"])
def test_run_without_a_value_yet_is_refused(rows: list[float], tmp_path) -> None:
    run_dir = saved(tmp_path / "run", entropy=rows)
    if not rows:
        (run_dir / "metrics.csv").write_text("")
    with pytest.raises(ValueError, match=r"run has no value of entropy in its metrics\.csv yet"):
        plot([run_dir], PlotOptions(what="entropy", out=str(tmp_path / "out.png")))


def test_plot_of_a_column_prints_its_values_and_is_named_after_it(
    tmp_path, capsys, monkeypatch
) -> None:
    run_dir = saved(
        tmp_path / "run", **{"step_norm/convs.0": [0.0, 0.000123456], "frames": [0.0, 4000.0]}
    )
    monkeypatch.chdir(tmp_path)
    assert main(["plot", str(run_dir), "what=step_norm/convs.0", "x=frames"]) == 0
    printed = capsys.readouterr().out
    assert "0.0001235" in printed
    assert "step_norm/convs.0: mean over the runs;" in printed
    assert "written: step_norm-convs.0.png" in printed
    assert cv2.imread("step_norm-convs.0.png").shape[1] == 960


def test_each_column_of_a_run_can_be_drawn(tmp_path, monkeypatch) -> None:
    run_dir = trained(tmp_path / "run", "env=catch")
    monkeypatch.setattr("accel_rl.tools.plot.to_png", lambda _: memoryview(b""))
    columns = (run_dir / "metrics.csv").read_text().splitlines()[0].split(",")
    assert len(columns) > 20
    for column in columns:
        options = PlotOptions(what=column, out=str(tmp_path / "out.png"), overwrite=True)
        (group,) = plot([run_dir], options).groups
        assert np.isfinite(group.mean).all()
