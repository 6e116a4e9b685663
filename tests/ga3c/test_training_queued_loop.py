"""What GA3C's loop reads of clocks that pause, of agents that change in number, and of a resume."""

import csv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from accel_rl.config import TrainConfig
from accel_rl.ga3c.run import Shares, Tuning
from accel_rl.ga3c.sampler import QueueTimes
from accel_rl.ga3c.threads import Trainings
from accel_rl.presets import PRESETS
from accel_rl.samplers.base import SamplerTimes


def make_fakes(**sampler: Any) -> Any:
    """A sampler, threads and a records, as far as they are read."""
    values = {
        "num_agents": 2,
        "num_starting": 0,
        "max_agents": 8,
        "busy_seconds": 0.0,
        "queue_times": QueueTimes(),
        "times": SamplerTimes(0.0, 0.0, 0.0),
        "set_num_agents": lambda num_agents: None,
    }
    threads = SimpleNamespace(
        num_predictors=1, num_trainers=1, trainings=Trainings(), set_counts=lambda *counts: None
    )
    records = SimpleNamespace(seconds=0.0, steps=0, learning_seconds=0.0)
    return SimpleNamespace(**(values | sampler)), threads, records


def test_simulators_time_is_that_of_the_agents_that_run() -> None:
    # 1,000 s of two agents so far: 500 s each. Then one is added, and in 10 s all three are busy.
    before = SamplerTimes(0.0, 0.0, 500.0)
    sampler, threads, records = make_fakes(busy_seconds=1000.0, times=before)
    shares = Shares(sampler, threads, records)
    sampler.num_agents, sampler.busy_seconds, records.seconds = 3, 1030.0, 10.0
    assert shares.read().simulating == pytest.approx(510.0)


@pytest.mark.parametrize(
    ("left_out", "readings", "expected"),
    [
        # 10 s, in which one of two threads acts for 4 s and waits before the full training queue
        # for 1, and the other one learns for 6 s.
        (0.0, [(10.0, 6.0, QueueTimes(predictor_busy=4.0, predictor_blocked=1.0))], (4.5, 2, 3.5)),
        # Both learn for the first 2 s, which is known when they have; then they wait for 1 s.
        (0.0, [(1.0, 0.0), (2.0, 4.0), (3.0, 4.0)], (1.0, 0.0, 2.0)),
        # Trainers learned for 5 s while the clock stood still, in an evaluation.
        (5.0, [(10.0, 11.0)], (7.0, 0.0, 3.0)),
    ],
    ids=["training", "update between readings", "evaluation"],
)
def test_shares_are_of_training_time(left_out, readings, expected) -> None:
    sampler, threads, records = make_fakes()
    shares = Shares(sampler, threads, records)
    shares.leave_out(left_out)
    for records.seconds, threads.trainings.seconds, *queue_times in readings:
        for sampler.queue_times in queue_times:
            pass
        times = shares.read()
    assert (times.waiting, times.policy, records.learning_seconds) == pytest.approx(expected)


def test_evaluations_within_an_interval_do_not_keep_the_tuner_from_ending_it(tmp_path) -> None:
    sampler, threads, records = make_fakes()
    tuning = Tuning(as_run(sampler, threads, records, tmp_path))
    for second in range(22):
        records.seconds = float(second)
        tuning.look()
        threads.trainings.count += 5 + 100  # the latter in an evaluation
        tuning.leave_out(100)
    with (tmp_path / "tuner.csv").open(newline="") as file:
        assert [row["trainings_per_second"] for row in csv.DictReader(file)] == ["5", "5"]


def as_run(sampler: Any, threads: Any, records: Any, run_dir: Path) -> Any:
    config = make_config()
    learner = SimpleNamespace(config=config.learner)
    return SimpleNamespace(
        config=config,
        learner=learner,
        sampler=sampler,
        threads=threads,
        records=records,
        run_dir=run_dir,
    )


def make_config() -> TrainConfig:
    return PRESETS["ga3c"](num_envs=2)


@pytest.fixture(autouse=True)
def ten_seconds(monkeypatch) -> None:
    monkeypatch.setattr("accel_rl.ga3c.run.TUNER_SECONDS", 10.0)


def play(run_dir: Path, steps: int, seconds: float) -> None:
    """Two intervals, each of 100 steps, from ``steps`` on."""
    sampler, threads, records = make_fakes()
    records.steps, records.seconds = steps, seconds
    tuning = Tuning(as_run(sampler, threads, records, run_dir))
    for _ in range(2):
        tuning.look()
        records.seconds += 9.0
        tuning.look()  # the interval is not over
        records.seconds, records.steps = records.seconds + 1.0, records.steps + 100
        threads.trainings.count += 50
        tuning.look()


def test_time_line_of_the_tuner_goes_on_with_the_run(tmp_path: Path) -> None:
    play(tmp_path, 0, 0.0)
    play(tmp_path, 100, 10.0)  # from a checkpoint after the first interval
    with (tmp_path / "tuner.csv").open(newline="") as file:
        rows = [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]
    assert [row["steps"] for row in rows] == [100, 200, 300]
    assert [row["seconds"] for row in rows] == [10, 20, 30]
    assert {row["trainings_per_second"] for row in rows} == {5.0}
