"""Runs that measure their updates, from the command line's words to the pictures."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from refusals import words
from run_files import numbers_of
from saved_runs import quiet

from accel_rl.cli.parse import parse_arguments
from accel_rl.runs.directory import write_config
from accel_rl.tools.plot import PlotOptions, plot
from accel_rl.training.train import train

COMMON = ("env=catch", "num_workers=0", "decorrelation_steps=0", "log_norms=true")
RUNS = {
    "a2c": "num_envs=4 total_steps=200 log_interval=40 gradient_cosine_interval=2",
    "ppo": (
        "num_envs=4 horizon=20 minibatch_size=20 total_steps=400 log_interval=80 "
        "gradient_cosine_interval=5"
    ),
    "dqn": (
        "num_envs=4 total_steps=1200 log_interval=200 gradient_cosine_interval=3 "
        "learning_starts=200 buffer_size=1000 evaluation_interval=400 evaluation_steps=2"
    ),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("accel_rl.training.torch_setup.available_cpus", lambda: [0])
        for algo, options in RUNS.items():
            arguments = [f"algo={algo}", *COMMON, *options.split(), f"run_dir={folder}/{algo}"]
            train(parse_arguments(arguments), quiet())
    return {algo: folder / algo for algo in RUNS}


def read(run_dir: Path) -> dict[str, np.ndarray]:
    rows = numbers_of(run_dir / "metrics.csv")
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


@pytest.mark.slow
@pytest.mark.parametrize("algo", RUNS)
def test_metrics_have_norms_and_cosines_of_each_row(algo: str, runs: dict[str, Path]) -> None:
    table = read(runs[algo])
    learned = np.isfinite(table["gradient_norm"])
    assert learned.sum() >= 4
    for kind in ("parameter_norm", "step_norm", "distance_norm"):
        layers = [table[name] for name in table if name.startswith(f"{kind}/")]
        # A root of sums against sums of roots: means over updates keep this order.
        whole = table[kind][learned]
        assert len(layers) == (3 if algo == "dqn" else 6)
        assert (whole <= np.sum(layers, 0)[learned] * (1 + 1e-5)).all()
        assert (whole >= np.max(layers, 0)[learned] * (1 - 1e-5)).all()
    cosines = table["gradient_cosine"][learned]
    assert (cosines[np.isfinite(cosines)] <= 1.00001).all() and np.isfinite(cosines).any()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algos", "axis", "columns"), [(["a2c", "ppo"], "steps", 7), (["dqn"], "minutes", 4)]
)
def test_picture_has_a_panel_for_each_norm(
    algos: list[str], axis: Any, columns: int, runs, tmp_path
) -> None:
    out = tmp_path / "out.png"
    plot([runs[algo] for algo in algos], PlotOptions(what="norms", x=axis, out=str(out)))
    height, width, _ = cv2.imread(str(out)).shape
    assert (width / 120, height / 120) == pytest.approx((columns * 3.0, 4 * 2.3), abs=0.02)


@pytest.mark.slow
def test_lines_are_those_of_the_tables_and_numbers_at_axes_are_plain(
    runs, monkeypatch, tmp_path
) -> None:
    figures: list[Any] = []
    monkeypatch.setattr("accel_rl.tools.plot.to_png", lambda each: figures.append(each) or b"")
    plot([runs["dqn"]], PlotOptions(what="norms", out=str(tmp_path / "norms.png")))
    (norms,) = figures
    x, y = norms.axes[0].get_lines()[0].get_data()
    metrics = read(runs["dqn"])
    there = np.isfinite(metrics["parameter_norm"])
    np.testing.assert_allclose(x, metrics["steps"][there])
    np.testing.assert_allclose(y, metrics["parameter_norm"][there])
    norms.canvas.draw()
    ticks = [axes.get_yticklabels(which="both") for axes in norms.axes]
    labels = [tick.get_text() for each in ticks for tick in each]
    assert any(labels) and not [label for label in labels if "10^" in label]


def test_run_that_measured_nothing_is_refused(tmp_path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    write_config(parse_arguments(["env=catch"]), run_dir / "config.yaml")
    out = tmp_path / "out.png"
    for text in (None, "steps,loss\n80,1\n"):
        if text is not None:
            (run_dir / "metrics.csv").write_text(text)
        with pytest.raises(ValueError, match=words("norms metrics.csv learner.log_norms=true")):
            plot([run_dir], PlotOptions(what="norms", out=str(out)))
    assert not out.exists()
