"""Tables on pages, made from what was recorded of runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from accel_rl.envs.minatar import GAMES
from benchmarks.tables import greedy_scores, minatar_table, study_figures
from benchmarks.tables.studies import STUDIES

# ---- tables --------------------------------------------------------------------------------------


@pytest.fixture
def docs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Pages with nothing but the places of their tables."""
    for module in (minatar_table, study_figures):
        monkeypatch.setattr(module, "ROWS", tmp_path / "rows")
        monkeypatch.setattr(module, "DOCS", tmp_path / "docs")
    monkeypatch.setattr(greedy_scores, "SCORES", tmp_path / "greedy.csv")
    (tmp_path / "docs" / "pictures").mkdir(parents=True)
    for name, tables in (("docs/results", ("scores", "greedy")), ("scale", STUDIES)):
        places = "".join(f"Before.\n<!-- {table} -->\nold\n<!-- end -->\n" for table in tables)
        (tmp_path / f"{name}.md").write_text(places)
    return tmp_path / "docs"


def make_run(folder: Path, algo: str, game: str, seed: int, score: float, last: int) -> None:
    """A run of 100,000 steps that has made ``last`` of them, with ``score`` at the end."""
    folder = folder / "sweep" / "runs" / f"{algo}-{game}-{seed}"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(
        f"algo: benchmarks.tables.{algo}\nenv: minatar/{game}\nseed: {seed}\ntotal_steps: 100000\n"
    )
    names = "steps,episodes,training_seconds,episode_return_raw_mean,gradient_cosine"
    rows = [names, "25000,0,10,nan,0.8"]
    rows += [f"{n},9,{n / 2500},{score * n / last},0.8" for n in (50_000, last)]
    (folder / "metrics.csv").write_text("\n".join(rows) + "\n")


@pytest.mark.slow
def test_table_on_minatar_has_means_over_seeds_and_scaled_scores(docs: Path) -> None:
    for game in GAMES:
        low = minatar_table.RANDOM[game]
        for seed, share in enumerate((0.25, 0.75)):
            make_run(docs.parent, "minatar:a2c", game, seed, low + share * 10, 100_000)
        make_run(docs.parent, "minatar:pqn", game, 0, low + 10, 100_000)
    make_run(docs.parent, "minatar:pqn", "freeway", 1, 1e6, 75_000)  # has not ended
    (docs.parent / "greedy.csv").write_text(
        "algorithm,game,seed,games,mean,standard_error,length\n"
        "ppo,asterix,0,9,8,1,50\nppo,asterix,1,9,9,1,50\n"
    )
    minatar_table.main([str(docs.parent / "sweep")])
    page = (docs / "results.md").read_text()
    cells = " | ".join(f"{minatar_table.RANDOM[game] + 5:.1f} (2)" for game in GAMES)
    row = rf"\| a2c \| 0 \| {re.escape(cells)} \| 0\.50 range \[0\.25, 0\.75\] \| 2,500 \| 1 \|"
    assert re.search(row, page) and "| ppo | 8.5 (2) |  |  |  |  |  |" in page
    assert f"{minatar_table.RANDOM['freeway'] + 10:.1f} (1)" in page
    assert page.count("Before.") == 2 and "old" not in page
    assert [path.name for path in (docs / "pictures").iterdir()] == ["minatar_curves.png"]


def test_table_of_a_study_has_intervals_over_seeds(docs: Path) -> None:
    for seed, last in enumerate((4.0, 6.0, 8.0)):
        make_run(docs.parent, "studies:a2c_16", "breakout", seed, last, 100_000)
    study_figures.main([str(docs.parent / "sweep")])
    page = (docs.parent / "scale.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith("| 16 simulators")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:3] == ["3", "80"] and cells[4] == "6.0 (4.0 to 8.0)"
    assert cells[6:] == ["0.80", "103", "2,500"]  # 80 * 0.36 / 0.28
    assert page.count("old") == len(STUDIES) - 1


def test_noise_scale_of_noise_alone_is_infinite() -> None:
    assert study_figures.noise_scale(0.8, 80) == pytest.approx(80 * 0.36 / 0.28)
    assert study_figures.noise_scale(0.7, 64) == float("inf")
