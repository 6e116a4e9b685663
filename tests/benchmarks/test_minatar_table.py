"""The table on MinAtar: its settings are valid, and its page is right for made-up runs."""

import importlib.util
import re
from itertools import cycle
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from accel_rl.envs.minatar import GAMES, MinAtarEnv
from accel_rl.presets import find_preset
from benchmarks.tables import greedy_scores, minatar_table, seaquest_ends
from benchmarks.tables.minatar import ALGORITHMS
from tests.helpers.launched_runs import train

UP, DOWN, FIRE = 2, 4, 5
needs_minatar = pytest.mark.skipif(
    importlib.util.find_spec("minatar") is None,
    reason='needs MinAtar: pip install "accel_rl[minatar]"',
)


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(minatar_table, "ROWS", tmp_path / "rows")
    monkeypatch.setattr(minatar_table, "DOCS", tmp_path / "docs")
    monkeypatch.setattr(greedy_scores, "SCORES", tmp_path / "greedy.csv")
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


def test_greedy_scores_have_a_table_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "greedy.csv").write_text(
        "algorithm,game,seed,games,mean,standard_error,length\n"
        "ppo,asterix,0,9,8,1,50\nppo,asterix,1,9,9,1,50\na2c,asterix,0,9,3,1,50\n"
    )
    make_run(tmp_path / "one", "ppo", "asterix", 0, 4.0, 100_000)
    minatar_table.main([str(tmp_path / "one")])
    first, second = (tmp_path / "docs" / "results.md").read_text().split(minatar_table.GREEDY)
    assert "| ppo | 0 | 4.0 (1) |" in first
    rows = [line for line in second.splitlines() if line.startswith("|")]
    assert rows[2:] == ["| a2c | 3.0 (1) |  |  |  |  |  |", "| ppo | 8.5 (2) |  |  |  |  |  |"]


def test_finished_run_is_played_once_without_exploration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train(
        tmp_path / "runs" / "one",
        "algo=benchmarks.tables.minatar:dqn",
        *("env=catch", "model=mlp", "total_steps=200", "seed=3", "learner.min_steps=100"),
    )
    monkeypatch.setattr(greedy_scores, "STEPS", 500)
    greedy_scores.main([str(tmp_path)])
    (score,) = greedy_scores.read(tmp_path / "greedy.csv")
    assert score[:3] == ("dqn", "catch", 3) and score.games >= 40 and score.length == 9
    assert -1 <= score.mean <= 1 and 0 <= score.standard_error < 0.2
    assert "one: " in capsys.readouterr().out
    greedy_scores.main([str(tmp_path)])
    assert "one: " not in capsys.readouterr().out


@needs_minatar
@pytest.mark.parametrize(
    ("actions", "end"),
    [((DOWN, UP), "surfaced without a diver"), ((UP, UP), "not yet"), ((DOWN, FIRE), "no air")],
)
def test_ends_of_games_of_seaquest_are_told_apart(
    actions: tuple[int, int],
    end: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The submarine begins at the surface, where nothing hits it."""
    turns = cycle(actions)
    policy = Mock(env_spec=MinAtarEnv("seaquest").spec)
    policy.side_effect = lambda observation: np.full(len(observation), next(turns))
    monkeypatch.setattr(seaquest_ends, "load_policy", lambda *_, **__: policy)
    monkeypatch.setattr(seaquest_ends, "MAX_STEPS", 300)
    seaquest_ends.main(["some/run"])
    head, _, row, _ = (
        line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()
    )
    assert int(row[head.index(end)]) > 20


def test_runs_with_an_earlier_setting_have_rows_of_their_own_and_no_curve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for sweep, score in (("one", 4.0), ("two", 6.0)):
        make_run(tmp_path / sweep, "a2c", "asterix", 0, score, 100_000)
    minatar_table.main([str(tmp_path / "one")])
    (tmp_path / "rows").rename(tmp_path / "earlier")
    (tmp_path / "rows").mkdir()
    (tmp_path / "earlier").rename(tmp_path / "rows" / minatar_table.EARLIER)
    drawn: list[minatar_table.Runs] = []
    monkeypatch.setattr(minatar_table, "draw_games", drawn.append)
    minatar_table.main([str(tmp_path / "two")])
    page = (tmp_path / "docs" / "results.md").read_text()
    assert "| a2c | 0 | 6.0 (1) |" in page and "| a2c, bonus 0.05 | 0 | 4.0 (1) |" in page
    assert [list(runs) for runs in drawn] == [["a2c"]]
