"""``info_keys`` of a run: columns of metrics and evaluations, over resumes too."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from run_files import numbers_of
from saved_runs import quiet, trained
from telling_envs import KEYS

from accel_rl.cli.parse import parse_arguments
from accel_rl.samplers import Episode
from accel_rl.tools.evaluate import EvaluateOptions, evaluate_run, report_table
from accel_rl.training.metrics import Scores
from accel_rl.training.train import train

TELLING = ("env=telling_envs:TellingEnv", "num_envs=1", "num_groups=1")
ALL = f"info_keys=[{','.join(KEYS)}]"


def successes(first: int, last: int) -> float:
    """Each second game of a `TellingEnv` is a success."""
    return float(np.mean([number % 2 for number in range(first, last + 1)]))


def test_scores_have_the_mean_of_each_key_over_the_window() -> None:
    scores = Scores(["a", "b", "c"])
    scores.add([Episode(0, 1.0, 1.0, 5, False, info={"a": 1_000.0})] * 50)
    told = [
        {"a": float(n), **({"b": 3.0} if n % 4 else {"b": 7.0} if n else {})} for n in range(100)
    ]
    scores.add([Episode(0, 1.0, 1.0, 5, False, info=info) for info in told])
    again = Scores(["a", "b", "c"])
    again.set_state(scores.get_state())
    for each in (scores, again):
        found = each.summary()
        assert found["episode_info_a_mean"] == 49.5
        assert found["episode_info_b_mean"] == pytest.approx((75 * 3 + 24 * 7) / 99)
        assert math.isnan(found["episode_info_c_mean"])


@pytest.mark.slow
def test_run_writes_the_mean_of_what_last_steps_told(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("accel_rl.training.evaluation.EVALUATION_ENVS", 1)
    evaluated = "evaluation_interval=500 evaluation_steps=50"
    options = (*TELLING, ALL, "total_steps=1000", *evaluated.split())
    run_dir = trained(tmp_path / "run", *options)
    rows = numbers_of(run_dir / "metrics.csv")
    assert len(rows) == 25
    for row in rows:
        last = round(row["episodes"])
        first = last - round(row["episodes_in_window"]) + 1
        assert row["episode_info_is_success_mean"] == pytest.approx(successes(first, last))
        assert row["episode_info_place_mean"] > 100 and row["episode_info_even_mean"] >= 2
        assert math.isnan(row["episode_info_never_mean"])
    assert rows[-1]["episodes"] > 200
    assert rows[-1]["episodes_in_window"] == 100 < rows[-1]["episodes"]
    evaluations = numbers_of(run_dir / "evaluation.csv")
    assert len(evaluations) == 2
    for row in evaluations:
        mean = successes(1, round(row["episodes"]))
        assert row["episode_info_is_success_mean"] == pytest.approx(mean)
        assert math.isnan(row["episode_info_never_mean"])
    check_evaluation(run_dir)


def check_evaluation(run_dir: Path) -> None:
    """The score of the saved run."""
    options = EvaluateOptions(num_workers=0, num_steps=50, num_envs=1)
    report = evaluate_run(run_dir, options, quiet())
    assert report.info_means["is_success"] == pytest.approx(successes(1, report.num_games))
    assert report.info_means["never"] is None and set(report.info_means) == set(KEYS)
    assert json.loads((run_dir / "evaluation.json").read_text()) == dataclasses.asdict(report)
    console = quiet()
    console.print(report_table(report))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "mean is_success" in text and "mean never" in text


@pytest.mark.slow
def test_resumed_run_keeps_its_columns_and_may_get_more(tmp_path: Path) -> None:
    run_dir = trained(tmp_path / "run", *TELLING, "total_steps=200", "info_keys=[is_success]")

    def go_on(*arguments: str) -> list[dict[str, float]]:
        train(parse_arguments([f"resume={run_dir}", *arguments]), quiet())
        return numbers_of(run_dir / "metrics.csv")

    before = numbers_of(run_dir / "metrics.csv")
    rows = go_on("total_steps=400")
    assert rows[:5] == [pytest.approx(row, nan_ok=True) for row in before] and len(rows) == 10
    num_episodes = round(rows[5]["episodes"]) - round(rows[4]["episodes"])
    window = [number % 2 for number in range(1, round(rows[4]["episodes"]) + 1)]
    window += [number % 2 for number in range(1, num_episodes + 1)]  # of a new environment
    assert rows[5]["episode_info_is_success_mean"] == pytest.approx(np.mean(window[-100:]))
    rows = go_on("total_steps=600", "info_keys=[is_success,place]")
    assert not any(math.isnan(row["episode_info_is_success_mean"]) for row in rows)
    assert [math.isnan(row["episode_info_place_mean"]) for row in rows] == [True] * 10 + [False] * 5


def test_environment_of_ones_own_gets_columns_without_the_option(tmp_path: Path) -> None:
    run_dir = trained(tmp_path / "run", "env=telling_envs:SteppingEnv")
    assert numbers_of(run_dir / "metrics.csv")[-1]["episode_info_step_mean"] == 4


def test_environment_that_takes_no_keys_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"info_keys=\[lives\] cannot be given with env=breakout"):
        trained(tmp_path / "run", "env=breakout", "info_keys=[lives]")
    assert not (tmp_path / "run").exists()


def test_keys_may_be_quoted() -> None:
    assert parse_arguments(["""info_keys=["x", 'y']"""]).info_keys == ("x", "y")
