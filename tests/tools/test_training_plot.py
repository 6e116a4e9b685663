"""Learning curves of several saved runs."""

import csv
import os
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from refusals import words
from saved_runs import trained

from accel_rl.__main__ import main
from accel_rl.cli.parse import parse_arguments
from accel_rl.runs.directory import write_config
from accel_rl.tools.compare import Group, find_runs, make_groups, read_curve
from accel_rl.tools.plot import PlotOptions, plot

NAN = float("nan")


def saved(
    run_dir: Path, points: dict[float, float], *arguments: str, env: str = "pong", **columns: Any
) -> Path:
    """A run with the scores ``points``, by thousands of steps; 1,000 steps took 30 seconds.

    Beside them ``columns``, with a value for each of the points.
    """
    run_dir.mkdir()
    write_config(parse_arguments([f"env={env}", *arguments]), run_dir / "config.yaml")
    with (run_dir / "metrics.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["steps", "frames", "training_seconds", "episode_return_raw_mean", *columns]
        )
        for (thousands, score), *row in zip(points.items(), *columns.values(), strict=True):
            writer.writerow([thousands * 1000, thousands * 4000, thousands * 30, score, *row])
    return run_dir


def measured(run_dir: Path, *arguments: str, **columns: list[float]) -> Path:
    """A run with a row for each 1,000 steps; the score is unknown in all of them."""
    num_rows = len(next(iter(columns.values())))
    return saved(run_dir, dict.fromkeys(range(num_rows), NAN), *arguments, **columns)


def groups_of(runs: list[Path], axis: Any = "steps") -> list[Group]:
    return make_groups([read_curve(run_dir, axis) for run_dir in runs], axis)


def three_seeds(folder: Path, *arguments: str, name: str = "run") -> list[Path]:
    return [
        saved(folder / f"{name}{seed}", {0: 0.0, 10: end}, f"seed={seed}", *arguments)
        for seed, end in enumerate((1.0, 2.0, 3.0))
    ]


@pytest.mark.parametrize(
    ("axis", "expected"),
    [("steps", [2000, 4000]), ("frames", [8000, 16000]), ("minutes", [1, 2])],
)
def test_curve_stands_over_the_axis_from_its_first_score_on(
    axis: Any, expected: list[float], tmp_path
) -> None:
    curve = read_curve(saved(tmp_path / "run", {1: NAN, 2: 5.0, 4: 7.0}), axis)
    np.testing.assert_array_equal(curve.x, expected)
    np.testing.assert_array_equal(curve.y, [5.0, 7.0])


def test_row_that_is_being_written_is_left_out(tmp_path) -> None:
    run_dir = saved(tmp_path / "run", {1: 5.0, 2: 6.0})
    with (run_dir / "metrics.csv").open("a") as file:
        file.write("3000,120")
    np.testing.assert_array_equal(read_curve(run_dir, "steps").x, [1000, 2000])


def test_runs_that_differ_in_the_seed_make_one_group(tmp_path) -> None:
    runs = three_seeds(tmp_path)
    (group,) = groups_of(runs)
    assert (group.label, group.seeds) == ("a2c", (0, 1, 2))
    assert (group.x[0], group.x[-1]) == (0, 10_000)
    np.testing.assert_allclose(group.mean, group.x / 10_000 * 2)
    assert str(group.end) == "2.00 [1.00, 3.00]"  # the three scores are a 27th of all draws each


WATCHING = """evaluation_episodes=2 evaluation_interval=1000 log_norms=true gpus=0 learners=1
device=cpu step_timeout_seconds=7"""
WORKERS = ["num_workers=1", "num_workers=2"]
GROUPS: dict[str, tuple[str, list[str], list[str]]] = {
    "watching": ("steps", ["", WATCHING], ["a2c"]),
    "failures": ("steps", ["", "on_worker_failure=raise"], []),
    "info": ("steps", [f"env=CartPole-v1 info_keys={keys}" for keys in ("step", "a,b")], []),
    "learners": ("steps", ["", "learners=2", "gpus=4"], [f"learners={n}" for n in (1, 2, 4)]),
    "workers": ("steps", WORKERS, ["a2c"]),
    "workers over minutes": ("minutes", WORKERS, WORKERS),
    "workers of entropy": ("entropy", WORKERS, ["a2c"]),
    "workers of a speed": ("steps_per_second", WORKERS, WORKERS),
    "workers of a share": ("inference_share", WORKERS, WORKERS),
    "agents": (
        "steps",
        ["algo=ga3c num_groups=4", "algo=ga3c num_groups=8"],
        ["num_groups=4", "num_groups=8"],
    ),
    "last digit": (
        "steps",
        ["lr=0.0012345671 run_dir=one", "lr=0.0012345679 run_dir=two"],
        ["lr=0.0012345671", "lr=0.0012345679"],
    ),
    "two options": (
        "steps",
        ["lr=0.1", "num_envs=32"],
        ["num_envs=16, lr=0.1", "num_envs=32, lr=none"],
    ),
    "algorithms": ("steps", ["algo=a2c", "algo=ppo"], ["a2c", "ppo"]),
    "more than presets": (
        "steps",
        ["algo=a2c", "algo=ppo", "algo=ppo learner.lr=0.1"],
        ["a2c, lr=none", "ppo, lr=0.001", "ppo, lr=0.1"],
    ),
}


@pytest.mark.parametrize("case", GROUPS)
def test_groups_are_labelled_by_the_options_that_tell_them_apart(case: str, tmp_path) -> None:
    what, options, labels = GROUPS[case]
    axis: Any = what if what == "minutes" else "steps"
    column = what if what not in ("steps", "minutes") else "episode_return_raw_mean"
    curves = []
    for seed, given in enumerate(options):
        words_ = given.split() if "env=" in given else ["env=pong", *given.split()]
        env = next(each for each in words_ if each.startswith("env=")).removeprefix("env=")
        rest = [each for each in words_ if not each.startswith("env=")]
        values = {column: [1.0, 2.0]} if column == what else {}
        run = saved(
            tmp_path / f"{seed}", {0: 0.0, 10: 1.0}, f"seed={seed}", *rest, env=env, **values
        )
        curves.append(read_curve(run, axis, column))
    found = [group.label for group in make_groups(curves, axis, column)]
    assert found == labels if labels else len(found) == 1


def test_of_runs_with_the_same_seed_the_newest_alone_counts(tmp_path) -> None:
    runs = [
        saved(tmp_path / name, {0: 0.0, 10: end}, f"seed={seed}")
        for name, end, seed in (("a", 1.0, 0), ("b", 2.0, 0), ("c", 3.0, 0), ("d", 4.0, 1))
    ]
    for run_dir, seconds in zip(runs, (10, 30, 20, 10), strict=True):
        os.utime(run_dir / "config.yaml", (seconds, seconds))
    (group,) = groups_of(runs)
    assert group.seeds == (0, 1)
    np.testing.assert_array_equal(group.y[:, -1], [2.0, 4.0])
    assert group.left_out == (runs[0], runs[2])


def test_copied_runs_are_told_apart_by_the_times_in_names(tmp_path) -> None:
    runs = [saved(tmp_path / f"catch-a2c-0-2026010{day}", {0: 0.0, 10: day}) for day in (2, 1)]
    for run_dir in runs:
        os.utime(run_dir / "config.yaml", (10, 10))
    (group,) = groups_of(runs)
    assert group.left_out == (runs[1],)


def test_curve_of_a_group_covers_what_all_its_runs_have(tmp_path) -> None:
    runs = [
        saved(tmp_path / "a", {1: 0.0, 9: 8.0}, "seed=0"),
        saved(tmp_path / "b", {3: 4.0, 20: 4.0}, "seed=1"),
    ]
    (group,) = groups_of(runs)
    assert (group.x[0], group.x[-1]) == (3000, 9000)
    assert (group.mean[0], group.mean[-1]) == ((2 + 4) / 2, (8 + 4) / 2)


def test_group_without_a_stretch_in_common_is_refused(tmp_path) -> None:
    runs = [
        saved(tmp_path / "a", {1: 0.0, 2: 8.0}, "seed=0"),
        saved(tmp_path / "b", {3: 4.0, 20: 4.0}, "seed=1"),
    ]
    with pytest.raises(ValueError, match=words(f"{runs[0]} 2,000 {runs[1]} 3,000; train on")):
        plot(runs, PlotOptions(out=str(tmp_path / "out.png")))


@pytest.mark.slow
def test_picture_has_a_panel_for_each_environment(tmp_path, monkeypatch) -> None:
    run = saved(tmp_path / "run", {0: 0.0, 10: 1.0})
    other = saved(tmp_path / "other", {1: 3.0, 2: 4.0}, env="breakout")
    figures: list[Any] = []
    monkeypatch.setattr("accel_rl.tools.plot.to_png", lambda each: figures.append(each) or b"")
    plot([run, other], PlotOptions(out=str(tmp_path / "out.png")))
    assert [axes.get_title("left") for axes in figures[0].axes] == ["pong", "breakout"]


BGR = ([139, 111, 31], [231, 226, 210])
"""the first group's line, and its band: the same colour at 20 % over white"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 3])
def test_runs_with_one_row_are_drawn_and_from_three_on_with_their_interval(
    number: int, tmp_path
) -> None:
    runs = [saved(tmp_path / f"run{i}", {5: float(i)}, f"seed={i}") for i in range(number)]
    out = tmp_path / "out.png"
    plot(runs, PlotOptions(out=str(out)))
    panel = cv2.imread(str(out)).astype(int)
    line, band = ((np.abs(panel - bgr).max(2) < 8).sum() for bgr in BGR)
    assert line > 20
    assert (band > 500) == (number == 3)


def test_runs_are_named_once_and_found_in_sweeps(tmp_path) -> None:
    (tmp_path / "sweep" / "runs").mkdir(parents=True)
    runs = [saved(tmp_path / "sweep" / "runs" / name, {1: 2.0}) for name in "ab"]
    assert find_runs([tmp_path / "sweep"]) == runs
    with pytest.raises(ValueError, match="a is named twice"):
        find_runs([tmp_path / "sweep", runs[1] / ".." / "a"])


def test_run_whose_table_has_no_score_is_refused(tmp_path) -> None:
    run_dir = saved(tmp_path / "run", {1: NAN})
    table = run_dir / "metrics.csv"
    name = "steps,episode_return_raw_mean"
    for text in (table.read_text(), "", "steps\n", None):
        table.unlink() if text is None else table.write_text(text)
        with pytest.raises(ValueError, match=r"no finished game in its metrics\.csv"):
            read_curve(run_dir, "steps")
    for text, said in (
        ("steps,score\n1,2\n", "episode_return_raw_mean is no column"),
        (f"{name}\na,b\n", r"metrics\.csv cannot be read"),
        (f"{name}\n1,2,3\n", r"metrics\.csv cannot be read"),
    ):
        table.write_text(text)
        with pytest.raises(ValueError, match=said):
            read_curve(run_dir, "steps")


@pytest.mark.slow
def test_runs_without_a_score_yet_are_left_out_and_named(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [saved(tmp_path / name, {1: NAN}, f"seed={i}") for i, name in enumerate("ab")]
    with pytest.raises(ValueError, match="no finished game"):
        plot(runs, PlotOptions())
    runs.append(saved(tmp_path / "c", {1: 2.0}, "seed=2"))
    (group,), without_value = plot(runs[::-1], PlotOptions())
    assert (group.seeds, {*without_value}) == ((2,), {*runs[:2]})
    assert main(["plot", *map(str, runs), "overwrite=true"]) == 0
    assert capsys.readouterr().err == "left out, since there is no finished game yet: a, b\n"


def test_picture_that_exists_or_is_of_another_kind_is_refused(tmp_path) -> None:
    out = tmp_path / "out.png"
    out.write_bytes(b"before")
    runs = [saved(tmp_path / "run", {1: 2.0, 2: 3.0})]
    with pytest.raises(ValueError, match=r"out\.png exists; .*overwrite=true"):
        plot(runs, PlotOptions(out=str(out)))
    assert out.read_bytes() == b"before"
    plot(runs, PlotOptions(out=str(out), overwrite=True))
    assert out.stat().st_size > 10_000
    with pytest.raises(ValueError, match=r"out=a\.pdf must end in \.png"):
        plot(runs, PlotOptions(out="a.pdf"))


# ---- any other column of the table ---------------------------------------------------------------


def test_column_is_averaged_over_the_seeds(tmp_path) -> None:
    runs = [
        measured(tmp_path / f"{seed}", f"seed={seed}", entropy=[NAN, 1.0, end])
        for seed, end in enumerate((3.0, 5.0))
    ]
    (group,) = plot(runs, PlotOptions(what="entropy", out=str(tmp_path / "out.png"))).groups
    assert (group.seeds, group.x[0], group.x[-1]) == ((0, 1), 1000, 2000)
    assert (group.mean[0], group.mean[-1]) == (1.0, 4.0)


def test_columns_that_cannot_be_drawn_are_refused(tmp_path) -> None:
    run_dir = measured(tmp_path / "run", entropy=[1.0], policy_loss=[1.0], value_loss=[NAN])
    for what, near in (
        ("entrpy", "did you mean entropy?"),
        ("loss", "did you mean policy_loss or value_loss?"),
        ("score", "did you mean scores?"),
        ("qqqq", ""),
    ):
        with pytest.raises(ValueError, match=words(f"what={what} {near} {run_dir}/metrics.csv")):
            plot([run_dir], PlotOptions(what=what))
    with pytest.raises(ValueError, match=words(f"{run_dir.name} no value of value_loss")):
        plot([run_dir], PlotOptions(what="value_loss"))
    (run_dir / "metrics.csv").write_bytes(b"\xff\xff")
    with pytest.raises(ValueError, match=r"run/metrics\.csv cannot be read"):
        plot([run_dir], PlotOptions(what="loss"))


@pytest.mark.slow
def test_each_column_of_a_run_can_be_drawn(tmp_path, monkeypatch) -> None:
    run_dir = trained(tmp_path / "run", "env=catch")
    monkeypatch.setattr("accel_rl.tools.plot.to_png", lambda _: memoryview(b""))
    columns = (run_dir / "metrics.csv").read_text().splitlines()[0].split(",")
    assert len(columns) > 20
    for column in columns:
        options = PlotOptions(what=column, out=str(tmp_path / "out.png"), overwrite=True)
        (group,) = plot([run_dir], options).groups
        assert np.isfinite(group.mean).all()
