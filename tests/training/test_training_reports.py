"""What the first learner reads, waits for and counts of the others."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from accel_rl.config import TrainConfig
from accel_rl.parallel import ParallelConfig, Ranks, Team, TeamError
from accel_rl.samplers import Episode
from accel_rl.training import records as recording
from accel_rl.training.metrics import (
    FINGERPRINT,
    SAVED,
    Others,
    Report,
    Scores,
    merge_numbers,
)
from accel_rl.training.records import Records
from accel_rl.training.rollouts import RolloutRun

PARAMETERS = SimpleNamespace(parameter=torch.zeros(1), gradient=torch.zeros(1))
NO_SYNC: Any = SimpleNamespace(
    num_sharing=1, num_updates=0, take_metrics=dict, parameters=PARAMETERS
)


def make_others(num_sharing: int, num_earlier: int = 0) -> tuple[Others, Team]:
    """For the first of two learners, and the team as the second one sees it."""
    store = dist.HashStore()
    sync: Any = SimpleNamespace(num_sharing=num_sharing)
    first = Team(Ranks(0, 2, 0, 2), store, timeout_seconds=0.05)
    return Others(first, sync, num_earlier), Team(Ranks(1, 2, 1, 2), store)


def report(num_updates: int) -> Report:
    return Report([], 0, {"loss": 1.0}, num_updates)


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
    assert others.merge(report(num_updates=8)).num_updates == 43


@pytest.mark.parametrize("num_messages", [1, 4])
def test_score_of_several_learners_is_that_of_all(num_messages: int) -> None:
    others, second = make_others(num_sharing=1)
    scores, first = Scores(), Scores()
    first.add(episodes(0.0, 300))  # of which a report has the last 100
    own = Report(*first.take(), {}, 0)
    for _ in range(num_messages):
        theirs = Scores()
        theirs.add(episodes(1.0, 300 // num_messages))
        second.post(Report(*theirs.take(), {}, 0))
    merged = others.merge(own)
    scores.add(merged.episodes, merged.num_episodes)
    assert scores.num_episodes == 600
    assert scores.summary()["episode_return_raw_mean"] == pytest.approx(0.5, abs=0.02)
    assert first.take() == ([], 0)


@pytest.mark.parametrize("other", [7, 8])
def test_parameters_of_learners_in_step_are_compared_before_a_checkpoint_is_written(
    other: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others, second = make_others(num_sharing=2)
    sync: Any = SimpleNamespace(num_sharing=2, num_updates=0, parameters=PARAMETERS)
    written: list[int] = []
    monkeypatch.setattr(recording, "fingerprint", lambda _: 7)
    monkeypatch.setattr(
        recording, "save_checkpoint", lambda _, steps, *__, **___: written.append(steps)
    )
    records: Any = Records(TrainConfig(), tmp_path, others._team, sync, dict)
    records.steps, records._progress, records._state = 400, True, lambda parts: parts
    second.reach(FINGERPRINT, 400, other)
    second.reach(SAVED, 400, 400)
    different = pytest.raises(TeamError, match=r"parameters of learner 1 .* after 400 steps")
    with contextlib.nullcontext() if other == 7 else different:
        records.save(400)
    assert written == [400] * (other == 7)


def test_numbers_of_several_reports_are_one() -> None:
    reports = [{"loss": 1.0, "lag_min": 3.0, "lag_max": 3.0}, {"loss": 2.0, "lag_max": 5.0}]
    assert merge_numbers(reports) == {"loss": 1.5, "lag_min": 3.0, "lag_max": 5.0}
    assert math.isnan(merge_numbers([{"loss": math.nan}, {"loss": 1.0}])["loss"])


def test_learner_of_a_store_that_is_done_does_not_wait_for_the_evaluation_of_the_first(
    tmp_path,
) -> None:
    others, second = make_others(num_sharing=1)
    config = TrainConfig(parallel=ParallelConfig(sync="store"))
    run: Any = object.__new__(RolloutRun)
    run.config, run.team, run.sync = config, second, NO_SYNC
    run.records = Records(config, tmp_path, second, NO_SYNC, dict)
    run.records._saved_steps = 0
    run.finish()
    assert others._team.wait_for_all("end", 1) == {1: 0}


def test_part_that_was_saved_serves_a_checkpoint_of_a_later_step() -> None:
    """The first learner took more steps, and wrote its last row before this one's report."""
    others, second = make_others(num_sharing=1)
    second.reach(SAVED, 1000, 1000)
    records: Any = object.__new__(Records)
    records.steps = records._saved_steps = 1000
    records._team, records._progress, records._others = second, None, others
    records._has_unsaved_evaluation = False
    records.save_after_failure()
    with pytest.raises(TeamError, match="has not answered within"):
        others.await_parts(1010)
    records.save_last()
    assert others.await_parts(1010) == {1: 1000}
