"""What the first learner reads, waits for and counts of the others."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from accel_rl.config import TrainConfig
from accel_rl.parallel import ParallelConfig, Ranks, Team, TeamError
from accel_rl.parallel.team import first_line
from accel_rl.samplers import Episode
from accel_rl.training import metrics
from accel_rl.training.metrics import SAVED, Others, Recorded, Report, Scores, make_report
from accel_rl.training.records import Records
from accel_rl.training.rollouts import RolloutRun

PARAMETERS = SimpleNamespace(parameter=torch.zeros(1), gradient=torch.zeros(1))
NO_EXCHANGE: Any = SimpleNamespace(
    num_sharing=1, num_updates=0, take_metrics=dict, parameters=PARAMETERS
)


def make_others(num_sharing: int, num_earlier: int = 0) -> tuple[Others, Team]:
    """For the first of two learners, and the team as the second one sees it."""
    store = dist.HashStore()
    exchange: Any = SimpleNamespace(num_sharing=num_sharing)
    first = Team(Ranks(0, 2, 0, 2), store, timeout_seconds=0.05)
    return Others(first, exchange, num_earlier), Team(Ranks(1, 2, 1, 2), store)


def report(num_updates: int) -> Report:
    return Report([], 0, {"loss": 1.0}, {"lag_max": math.nan}, num_updates, None)


def episodes(score: float, number: int) -> list[Episode]:
    return [Episode(0, score, score, 9, False)] * number


@pytest.mark.parametrize("num_sharing", [1, 2], ids=["apart", "in step"])
def test_part_of_a_learner_is_waited_for_and_may_be_of_a_later_step(num_sharing: int) -> None:
    others, second = make_others(num_sharing)
    second.reach(SAVED, 900, 900)
    with pytest.raises(TeamError, match="learner 1 has not answered within"):
        others.await_parts(1000)
    second.reach(SAVED, 2000, 1980)
    assert others.await_parts(1000) == {1: 1980}


def test_updates_that_others_made_before_the_run_went_on_count() -> None:
    others, second = make_others(num_sharing=1, num_earlier=30)
    assert others.num_updates == 30
    second.post(report(num_updates=5))
    assert others.merge(report(num_updates=8), 100).num_updates == 43


def test_message_of_torch_is_told_without_its_source_and_guesses() -> None:
    said = "[/src/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:8599. This is typically a"
    assert first_line(RuntimeError(said)) == "Connection closed by peer [127.0.0.1]:8599"
    assert first_line(RuntimeError()) == "RuntimeError"


@pytest.mark.parametrize("num_messages", [1, 4])
def test_score_of_several_learners_is_that_of_all(num_messages: int) -> None:
    others, second = make_others(num_sharing=1)
    scores, first = Scores(), Scores()
    first.add(episodes(0.0, 300))  # of which a report has the last 100
    own = make_report(Team(Ranks()), NO_EXCHANGE, first, {}, compares=False)
    for _ in range(num_messages):
        theirs = Scores()
        theirs.add(episodes(1.0, 300 // num_messages))
        second.post(make_report(Team(Ranks()), NO_EXCHANGE, theirs, {}, compares=False))
    merged = others.merge(own, 100)
    scores.add(merged.episodes, merged.num_episodes)
    assert scores.num_episodes == 600
    assert scores.summary()["episode_return_raw_mean"] == pytest.approx(0.5, abs=0.02)
    assert first.take() == ([], 0)


def test_parameters_are_compared_in_the_first_row_after_a_checkpoint_and_in_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a learner that is not the first; the others do so in the same rows."""
    team: Any = SimpleNamespace(ranks=Ranks(1, 2, 1, 2), post=lambda each: posted.append(each))
    exchange: Any = SimpleNamespace(
        num_sharing=2, num_updates=0, take_metrics=dict, parameters=PARAMETERS
    )
    posted: list[Report] = []
    monkeypatch.setattr(metrics, "fingerprint", lambda _: 7)
    config = TrainConfig(log_interval=80, total_steps=1_900)
    records = Records(Recorded(config, tmp_path, team, exchange, dict))
    monkeypatch.setattr(records, "_save_part", lambda _: None)
    compared = []
    for steps in range(80, 1_921, 80):
        records.steps = steps
        records.write_row()
        compared += [steps] * (posted[-1].fingerprint == 7)
        if steps in (400, 800):
            records.save_due(steps)
    assert compared == [80, 480, 880, 1_920] and len(posted) == 24


def test_seconds_of_a_learner_that_reported_twice_add_up() -> None:
    others, second = make_others(num_sharing=1)
    own, theirs = (
        report(1)._replace(exchange={"push_seconds": 5.0, "lag_mean": x}) for x in (2, 4)
    )
    second.post(theirs)
    second.post(theirs)
    assert others.merge(own, 100).exchange == {"push_seconds": 7.5, "lag_mean": 3.0}


def test_learner_of_a_store_that_is_done_does_not_wait_for_the_evaluation_of_the_first(
    tmp_path,
) -> None:
    others, second = make_others(num_sharing=1)
    config = TrainConfig(parallel=ParallelConfig(sync="store"))
    run: Any = object.__new__(RolloutRun)
    run.config, run.team, run.exchange = config, second, NO_EXCHANGE
    run.records = Records(Recorded(config, tmp_path, second, NO_EXCHANGE, dict))
    run.records._saved_steps = 0
    run.finish()
    assert others._team.wait_for_all("end", 1) == {1: 0}


def test_part_that_was_saved_serves_a_checkpoint_of_a_later_step() -> None:
    """The first learner took more steps, and wrote its last row before this one's report."""
    others, second = make_others(num_sharing=1)
    second.reach(SAVED, 1000, 1000)
    records: Any = object.__new__(Records)
    records.steps = records._saved_steps = 1000
    records._team, records._rows = second, None
    records.save_after_failure()
    with pytest.raises(TeamError, match="has not answered within"):
        others.await_parts(1010)
    records.save_last()
    assert others.await_parts(1010) == {1: 1000}
