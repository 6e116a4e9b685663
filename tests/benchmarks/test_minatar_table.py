"""The table on MinAtar: its settings are valid, and its scores are scaled by game."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from accel_rl.envs.minatar import GAMES
from accel_rl.presets import find_preset
from benchmarks.tables import minatar_table
from benchmarks.tables.minatar import ALGORITHMS


@pytest.mark.parametrize("name", ALGORITHMS)
def test_settings_of_each_algorithm_are_a_preset(name: str) -> None:
    config = find_preset(f"benchmarks.tables.minatar:{name}")()
    assert config.model in ("minatar", "pqn") and config.total_steps in (1_000_000, 3_000_000)


def test_finished_runs_become_scores_between_random_and_best(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(minatar_table, "RESULTS", tmp_path)
    for name, total, score in (("a2c", 100, 20.0), ("dqn", 100, 10.0), ("ppo", 101, 99.0)):
        for game in GAMES:
            run = tmp_path / "sweep" / "runs" / f"{game}-{name}-0"
            run.mkdir(parents=True)
            algo = f"algo: benchmarks.tables.minatar:{name}\n"
            text = f"{algo}env: minatar/{game}\nseed: 0\ntotal_steps: {total}\n"
            (run / "config.yaml").write_text(text)
            with (run / "metrics.csv").open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(minatar_table.COLUMNS)
                writer.writerows([[50, 1, 30.0, "nan"], [100, 9, 60.0, score]])
    minatar_table.main([str(tmp_path / "sweep")])
    runs = minatar_table.read(tmp_path / "minatar")
    assert list(runs) == ["a2c", "dqn"]  # ppo has not finished
    scaled = minatar_table.scale(runs)
    np.testing.assert_allclose(scaled["a2c"]["breakout"], 1.0)
    np.testing.assert_allclose(scaled["dqn"]["breakout"], (10 - 0.6) / (20 - 0.6))
    text = (tmp_path / "minatar.md").read_text()
    assert "| a2c | 0 | 20.0 (1) | 20.0 (1) |" in text and "| 1.00 |" in text
    assert (tmp_path / "minatar_curves.png").is_file()
    assert (tmp_path / "minatar_profiles.png").is_file()
