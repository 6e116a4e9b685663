"""The table on MinAtar: its settings are valid, and its page is right for made-up runs."""

import re
from pathlib import Path

import numpy as np
import pytest

from accel_rl.envs.minatar import GAMES
from accel_rl.presets import find_preset
from benchmarks.tables import minatar_table
from benchmarks.tables.minatar import ALGORITHMS


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(minatar_table, "ROWS", tmp_path / "rows")
    monkeypatch.setattr(minatar_table, "DOCS", tmp_path / "docs")
    (tmp_path / "docs" / "pictures").mkdir(parents=True)


def make_run(sweep: Path, algorithm: str, game: str, seed: int, score: float, last: int) -> None:
    """A run of 100,000 steps that has made ``last`` of them, with ``score`` at the end."""
    folder = sweep / "runs" / f"{algorithm}-{game}-{seed}"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(
        f"algo: benchmarks.tables.minatar:{algorithm}\nenv: minatar/{game}\nseed: {seed}\n"
        "total_steps: 100000\n"
    )
    rows = ["steps,episodes,training_seconds,episode_return_raw_mean", "25000,0,10,nan"]
    rows += [f"{steps},9,{steps / 2500},{score * steps / last}" for steps in (50_000, last)]
    (folder / "metrics.csv").write_text("\n".join(rows) + "\n")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_settings_of_each_algorithm_are_a_preset(name: str) -> None:
    config = find_preset(f"benchmarks.tables.minatar:{name}")()
    assert config.model in ("minatar", "pqn") and config.total_steps in (1_000_000, 3_000_000)


def test_page_has_means_over_seeds_and_scaled_scores(tmp_path: Path) -> None:
    for game in GAMES:
        low = minatar_table.RANDOM[game]
        for seed, share in enumerate((0.25, 0.75)):
            make_run(tmp_path, "a2c", game, seed, low + share * 10, 100_000)
        make_run(tmp_path, "pqn", game, 0, low + 10, 100_000)
    make_run(tmp_path, "pqn", "freeway", 1, 1e6, 75_000)  # has not ended
    minatar_table.main([str(tmp_path)])
    page = (tmp_path / "docs" / "results.md").read_text()
    cells = " | ".join(f"{minatar_table.RANDOM[game] + 5:.1f} (2)" for game in GAMES)
    row = (
        rf"\| a2c \| 0 \| {re.escape(cells)} \| 0\.50 \(0\.[234]\d to 0\.[567]\d\) \| 2,500 \| 1 \|"
    )
    assert re.search(row, page)
    assert f"{minatar_table.RANDOM['freeway'] + 10:.1f} (1)" in page
    assert "| PPO of gymnax | 10 | 15 | 28 | 58 |  | 131 |" in page
    pictures = {path.name for path in (tmp_path / "docs" / "pictures").iterdir()}
    assert pictures == {"minatar_curves.png", "minatar_profiles.png"}


def test_rows_of_earlier_sweeps_stay(tmp_path: Path) -> None:
    make_run(tmp_path / "one", "ppo", "asterix", 0, 4.0, 100_000)
    make_run(tmp_path / "two", "ppo", "asterix", 1, 6.0, 100_000)
    for sweep in ("one", "two"):
        minatar_table.main([str(tmp_path / sweep)])
    page = (tmp_path / "docs" / "results.md").read_text()
    assert "| ppo | 0 | 5.0 (2) |  |  |  |  |  |" in page
    assert "Performance profiles" not in page
    runs = minatar_table.read(tmp_path / "rows")
    np.testing.assert_allclose([run.returns for run in runs["ppo"]["asterix"]], [[2, 4], [3, 6]])


def test_sweep_without_a_finished_run_is_told() -> None:
    with pytest.raises(SystemExit, match="no finished run in nowhere"):
        minatar_table.main(["nowhere"])
