"""The score of a saved run."""

import dataclasses
import json
import math
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from refusals import words
from rich.console import Console
from saved_runs import prefer_action, quiet, trained

from accel_rl.__main__ import main
from accel_rl.envs.atari_games import atari_games
from accel_rl.runs.checkpoint import list_checkpoints
from accel_rl.runs.human_scores import human_normalized
from accel_rl.tools.evaluate import (
    EvaluateOptions,
    EvaluationReport,
    evaluate_run,
    report_table,
)


def evaluate(run_dir: Path, **options: Any) -> EvaluationReport:
    given: dict[str, Any] = {"num_workers": 0, "num_steps": 200, "overwrite": True, **options}
    return evaluate_run(run_dir, EvaluateOptions(**given), quiet())


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(
        tmp_path_factory.mktemp("counting") / "run", "env=counting_env:CountingEnv", "seed=3"
    )


@pytest.fixture(scope="module")
def breakout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(
        tmp_path_factory.mktemp("breakout") / "run", "env=breakout", "max_episode_steps=20"
    )


def test_every_game_that_began_within_its_share_of_the_steps_counts(counting) -> None:
    report = evaluate(counting, num_steps=200, num_envs=4)
    assert report.scores == [length * (length + 1) / 2 for length in report.lengths]  # 1 + ... + n
    assert 200 <= report.num_steps == sum(report.lengths) <= 200 + 4 * 7  # of 7 steps at most
    assert report.num_games == len(report.scores)
    assert (report.num_unfinished, report.num_lost) == (0, 0)


def test_games_that_have_begun_are_played_to_their_end(tmp_path) -> None:
    run_dir = trained(tmp_path / "run", "env=catch")  # nine steps a game
    for num_steps, games in ((36, 4), (38, 6)):
        assert evaluate(run_dir, num_steps=num_steps, num_envs=2).lengths == [9] * games
    by_games = evaluate(run_dir, num_steps=EvaluateOptions.num_steps, num_episodes=3)
    assert by_games.lengths == [9] * 3


def test_statistics_of_the_report_are_those_of_its_scores(counting) -> None:
    report = evaluate(counting)
    scores = sorted(report.scores)
    n = len(scores)
    mean = sum(scores) / n
    assert report.mean == pytest.approx(mean)
    assert report.median == (scores[(n - 1) // 2] + scores[n // 2]) / 2
    assert report.std == pytest.approx(math.sqrt(sum((s - mean) ** 2 for s in scores) / n))
    assert (report.min, report.max) == (scores[0], scores[-1])


def test_file_holds_the_report_and_is_replaced_if_asked_alone(
    counting, tmp_path, monkeypatch
) -> None:
    out = tmp_path / "scores.json"
    report = evaluate(counting, out=str(out))
    assert json.loads(out.read_text()) == dataclasses.asdict(report)
    assert [path.name for path in tmp_path.iterdir()] == ["scores.json"]
    evaluate(counting)
    assert (
        json.loads((counting / "evaluation.json").read_text())["env"] == "counting_env:CountingEnv"
    )
    monkeypatch.setattr("accel_rl.tools.evaluate.play_games", None)
    with pytest.raises(ValueError, match=r"evaluation\.json exists; .*overwrite=true"):
        evaluate(counting, overwrite=False)


@pytest.mark.slow
@pytest.mark.processes
def test_workers_play_the_same_games_as_this_process(counting) -> None:
    assert evaluate(counting, num_workers=None) == evaluate(counting, num_workers=0)


def test_seed_of_the_evaluation_chooses_the_games(counting) -> None:
    a, b, c = (evaluate(counting, seed=seed).lengths for seed in (1, 1, 2))
    assert a == b != c


def test_saved_parameters_are_what_acts_and_the_raw_score_counts(tmp_path) -> None:
    run_dir = trained(tmp_path / "run", "env=saved_runs:Pay")
    for action in (1, 2):
        prefer_action(run_dir, action)
        assert set(evaluate(run_dir, num_steps=30).scores) == {3.0 * action}


def test_greedy_evaluation_takes_the_most_probable_action_and_says_so(tmp_path) -> None:
    run_dir = trained(tmp_path / "run", "env=saved_runs:Pay")
    prefer_action(run_dir, 1, logit=0.5)
    drawn, greedy = (evaluate(run_dir, greedy=greedy) for greedy in (False, True))
    assert len(set(drawn.scores)) > 1
    assert set(greedy.scores) == {3.0}
    assert (drawn.greedy, greedy.greedy) == (False, True)
    assert "greedy" not in shown(drawn) and ", greedy" in shown(greedy)


def test_checkpoint_that_is_named_is_the_one_that_plays(tmp_path) -> None:
    run_dir = trained(tmp_path / "run", "env=catch", "checkpoint_interval=20")
    steps = [int(path.stem.removeprefix("steps_")) for path in list_checkpoints(run_dir)]
    assert len(steps) > 1
    assert evaluate(run_dir, checkpoint=steps[0]).checkpoint_steps == steps[0]
    assert evaluate(run_dir).checkpoint_steps == steps[-1]


@pytest.mark.slow
def test_whole_games_of_atari_are_counted_not_lives(breakout) -> None:
    report = evaluate(breakout, num_steps=800, num_envs=2)
    assert report.num_games >= 2
    assert min(report.lengths) > 60  # a life of random play takes some 25 steps, a game has five
    assert report.mean is not None
    assert report.human_normalized_mean == pytest.approx((report.mean - 1.7) / (30.5 - 1.7))
    assert (report.max_episode_steps, report.max_noops) == (27_000, 30)


@pytest.mark.slow
def test_games_are_cut_off_at_the_limit_that_is_given_and_not_at_that_of_training(breakout) -> None:
    report = evaluate(breakout, num_steps=200, num_envs=2, max_episode_steps=25, max_noops=0)
    assert report.lengths == [25] * 8
    assert (report.max_episode_steps, report.max_noops) == (25, 0)
    report = evaluate(breakout, num_steps=20, num_envs=1)  # 20 in training
    assert report.max_episode_steps == 27_000
    assert report.lengths[0] > 20


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("max_noops", 3, "max_noops=3 no effect env=counting_env:CountingEnv is no Atari game"),
        ("checkpoint", 7, "no checkpoint of step 7; there are"),
        ("out", "scores.txt", "out=scores.txt must end in .json"),
        ("out", "absent/scores.json", "there is no directory absent; make it first"),
        ("num_steps", 0, "num_steps is 0; at least 1"),
        ("num_envs", 0, "num_envs is 0; at least 1"),
        ("num_episodes", 0, "num_episodes is 0; at least 1"),
        ("num_episodes", 3, "num_episodes=3 takes the place of num_steps=200"),
        ("seed", -1, "seed is -1; at least 0"),
    ],
)
def test_option_that_does_not_fit_is_refused(option: str, value: Any, said: str, counting) -> None:
    with pytest.raises(ValueError, match=words(said)):
        evaluate(counting, **{option: value})


def test_checkpoint_of_another_environment_is_refused(counting, tmp_path) -> None:
    run_dir = trained(tmp_path / "run", "env=catch")
    path = list_checkpoints(run_dir)[-1]
    path.write_bytes(list_checkpoints(counting)[-1].read_bytes())
    with pytest.raises(ValueError, match=rf"{path}: the saved parameters are not those of this"):
        evaluate(run_dir)


def shown(report: EvaluationReport) -> str:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(report_table(report))
    return capture.get()


def test_human_normalised_score_is_0_for_random_play_and_1_for_a_human() -> None:
    scores = (("breakout", 1.7), ("breakout", 30.5), ("pong", 14.6 + 35.3))
    assert [human_normalized(*each) for each in scores] == pytest.approx([0.0, 1.0, 2.0])
    assert human_normalized("catch", 1.0) is None
    assert sum(human_normalized(game, 0.0) is not None for game in atari_games()) == 57


@pytest.mark.processes
def test_ctrl_c_ends_an_evaluation_and_its_workers_quietly_and_writes_nothing(
    counting, tmp_path, monkeypatch, capfd
) -> None:
    @contextmanager
    def interrupting(*_: object) -> Iterator[Callable[[int], None]]:
        yield lambda steps: signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("accel_rl.tools.evaluate.show_progress", interrupting)
    given = ["num_steps=1e9", "num_envs=2", f"out={tmp_path / 'scores.json'}"]
    assert main(["evaluate", str(counting), *given]) == 130
    assert capfd.readouterr().err == "stopped by SIGINT; nothing was written\n"
    assert os.listdir(tmp_path) == []
