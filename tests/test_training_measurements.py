"""Runs that measure their updates, from the command line's words to the pictures."""

import csv
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from saved_runs import quiet, trained

from accel_rl.cli.parse import parse_arguments
from accel_rl.runs.directory import write_config
from accel_rl.tools.measurements import plot_measurements
from accel_rl.tools.plot import PlotOptions
from accel_rl.training.train import train

COMMON = ("env=catch", "serial=true", "decorrelation_steps=0", "log_norms=true")
RUNS = {
    "a2c": ("num_envs=4", "total_steps=200", "log_interval=40", "gradient_cosine_interval=2"),
    "ppo": (
        *("num_envs=4", "horizon=20", "minibatch_size=20", "total_steps=400"),
        *("log_interval=80", "gradient_cosine_interval=5"),
    ),
    "dqn": (
        *("num_envs=4", "total_steps=1200", "log_interval=200", "gradient_cosine_interval=3"),
        *(
            "min_steps=200",
            "replay_size=1000",
            "evaluation_interval=400",
            "evaluation_steps=2",
            "evaluation_envs=2",
        ),
        *("secondary_learner=true", "secondary_batch_size=100", "secondary_lr=1e-3"),
    ),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("accel_rl.training.torch_setup.available_cpus", lambda: [0])
        for algo, options in RUNS.items():
            arguments = [f"algo={algo}", *COMMON, *options, f"run_dir={folder}/{algo}"]
            train(parse_arguments(arguments), quiet())
    return {algo: folder / algo for algo in RUNS}


def read(path: Path) -> dict[str, list[float]]:
    with path.open() as file:
        rows = list(csv.DictReader(file))
    return {name: [float(row[name]) for row in rows] for name in rows[0]}


@pytest.mark.parametrize("algo", RUNS)
def test_metrics_have_norms_and_cosines_of_each_row(algo: str, runs: dict[str, Path]) -> None:
    table = read(runs[algo] / "metrics.csv")
    for prefix in ("", "secondary_") if algo == "dqn" else ("",):
        learned = np.isfinite(table[f"{prefix}gradient_norm"])
        assert learned.sum() >= 4
        for kind in ("parameter_norm", "step_norm", "distance_norm"):
            layers = [table[name] for name in table if name.startswith(f"{prefix}{kind}/")]
            # A root of sums against sums of roots: means over updates keep this order.
            whole = np.array(table[prefix + kind])[learned]
            assert len(layers) == (3 if algo == "dqn" else 6)
            assert (whole <= np.sum(layers, 0)[learned] * (1 + 1e-5)).all()
            assert (whole >= np.max(layers, 0)[learned] * (1 - 1e-5)).all()
        cosines = np.array(table[f"{prefix}gradient_cosine"])[learned]
        assert (cosines[np.isfinite(cosines)] <= 1.00001).all() and np.isfinite(cosines).any()


def test_evaluations_have_scores_of_both_learners(runs: dict[str, Path]) -> None:
    table = read(runs["dqn"] / "evaluation.csv")
    assert table["steps"] == [400, 800, 1200]
    assert table["episodes"] == table["secondary_episodes"] == [2, 2, 2]
    for prefix in ("", "secondary_"):
        assert all(-1 <= x <= 1 for x in table[f"{prefix}episode_return_raw_mean"])


def test_second_learner_is_evaluated_by_its_own_network(tmp_path, monkeypatch) -> None:
    played = []

    def play(self, agent, stop):  # type: ignore[no-untyped-def]
        played.append((agent.model, agent.epsilon.item()))
        score = float(len(played))
        return {"score": score, "episodes": 1, "episode_return_raw_mean": score}

    monkeypatch.setattr("accel_rl.training.evaluation.Evaluator._play", play)
    options = [*RUNS["dqn"], "total_steps=400", "epsilon_evaluation=0.07"]
    options.remove("total_steps=1200")
    train(parse_arguments(["algo=dqn", *COMMON, *options, f"run_dir={tmp_path}/run"]), quiet())
    (first, epsilon), (second, other_epsilon) = played
    assert epsilon == other_epsilon == pytest.approx(0.07)
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    assert all((p != q).any() for p, q in pairs)  # each has learned, from draws of its own
    table = read(tmp_path / "run" / "evaluation.csv")
    assert (table["score"], table["secondary_score"]) == ([1.0], [2.0])


@pytest.mark.parametrize(
    ("what", "algos", "axis", "inches"),
    [
        ("norms", ["a2c", "ppo"], "steps", (7 * 3.0, 4 * 2.3)),
        ("norms", ["dqn"], "minutes", (4 * 3.0, 4 * 2.3)),
        ("cosine", ["a2c", "ppo", "dqn"], "frames", (8.0, 4.8)),
        ("learners", ["dqn"], "minutes", (14.0, 4.8)),
    ],
)
def test_picture_has_a_panel_for_each_thing_measured(
    what: Any, algos: list[str], axis: Any, inches: tuple[float, float], runs, tmp_path
) -> None:
    out = tmp_path / "out.png"
    plot_measurements([runs[algo] for algo in algos], PlotOptions(what=what, x=axis, out=str(out)))
    height, width, _ = cv2.imread(str(out)).shape
    assert (width / 120, height / 120) == pytest.approx(inches, abs=0.02)


def test_lines_are_those_of_the_tables_the_second_learners_dashed(
    runs: dict[str, Path], monkeypatch, tmp_path
) -> None:
    drawn = {}

    def keep(figure):  # type: ignore[no-untyped-def]
        for axes in figure.axes:
            for line in axes.get_lines():
                drawn[axes.get_ylabel().split("\n")[0], line.get_linestyle()] = line.get_data()
        return b""

    monkeypatch.setattr("accel_rl.tools.measurements.to_png", keep)
    plot_measurements([runs["dqn"]], PlotOptions(what="learners", out=str(tmp_path / "out.png")))
    metrics, scores = read(runs["dqn"] / "metrics.csv"), read(runs["dqn"] / "evaluation.csv")
    for style, prefix in (("-", ""), ("--", "secondary_")):
        x, y = drawn["episode return, raw", style]
        np.testing.assert_allclose(x, scores["steps"])
        np.testing.assert_allclose(y, scores[f"{prefix}episode_return_raw_mean"])
        x, y = drawn["loss", style]
        there = np.isfinite(metrics[f"{prefix}loss"])
        np.testing.assert_allclose(x, np.array(metrics["steps"])[there])
        np.testing.assert_allclose(y, np.array(metrics[f"{prefix}loss"])[there])


def test_learners_without_evaluations_have_a_panel_of_losses(
    runs: dict[str, Path], tmp_path
) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    for name in ("metrics.csv", "config.yaml"):
        (run_dir / name).write_bytes((runs["dqn"] / name).read_bytes())
    out = tmp_path / "out.png"
    plot_measurements([run_dir], PlotOptions(what="learners", out=str(out)))
    assert cv2.imread(str(out)).shape[1] == 7 * 120


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("norms", "has no norms in its metrics.csv; .* trained with learner.log_norms=true"),
        ("cosine", "has no gradient cosine in .* with learner.gradient_cosine_interval=100"),
        ("learners", "has no second learner in .* with learner.secondary_learner=true"),
    ],
)
def test_run_that_measured_nothing_is_refused(what: Any, message: str, tmp_path) -> None:
    run_dir = trained(tmp_path / "run", "env=catch")
    out = tmp_path / "out.png"
    with pytest.raises(ValueError, match=message):
        plot_measurements([run_dir], PlotOptions(what=what, out=str(out)))
    assert not out.exists()


def test_run_without_metrics_and_no_run_are_refused(tmp_path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    write_config(parse_arguments(["env=catch"]), run_dir / "config.yaml")
    options = PlotOptions(what="norms", out=str(tmp_path / "out.png"))
    with pytest.raises(ValueError, match=r"has no norms in its metrics\.csv"):
        plot_measurements([run_dir], options)
    with pytest.raises(ValueError, match="no run is named"):
        plot_measurements([], options)
