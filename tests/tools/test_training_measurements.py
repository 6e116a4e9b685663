"""Runs that measure their updates, from the command line's words to the pictures."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import words
from run_files import numbers_of
from saved_runs import trained

from accel_rl.cli.parse import parse_arguments
from accel_rl.runs.directory import write_config
from accel_rl.tools.plot import PlotOptions, plot

COMMON = ("env=catch", "num_workers=0", "decorrelation_steps=0", "log_norms=true")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = "algo=dqn num_envs=4 total_steps=1200 log_interval=200"
    small = "learning_starts=200 buffer_size=1000"
    return trained(tmp_path_factory.mktemp("runs") / "run", *COMMON, *f"{options} {small}".split())


def read(run_dir: Path) -> dict[str, np.ndarray]:
    rows = numbers_of(run_dir / "metrics.csv")
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


@pytest.mark.slow
def test_lines_are_those_of_the_tables_and_numbers_at_axes_are_plain(
    run_dir, monkeypatch, tmp_path
) -> None:
    figures: list[Any] = []
    monkeypatch.setattr("accel_rl.tools.plot.to_png", lambda each: figures.append(each) or b"")
    plot([run_dir], PlotOptions(what="norms", out=str(tmp_path / "norms.png")))
    (norms,) = figures
    metrics = read(run_dir)
    assert np.isfinite(metrics["gradient_cosine"]).any()
    assert len(norms.axes) >= 4 * 4
    x, y = norms.axes[0].get_lines()[0].get_data()
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
