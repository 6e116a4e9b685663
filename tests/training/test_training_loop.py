"""The loop with fakes: what happens in which order, how often, and when it ends."""

import contextlib
import csv
import math
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from taped_runs import (
    FakeEvaluator,
    FakeLearner,
    Tape,
    TapedRecords,
    make_config,
    make_records,
    make_run,
)

from accel_rl.algos.a2c import A2CConfig
from accel_rl.cli.parse import parse_arguments
from accel_rl.config import TrainConfig
from accel_rl.runs.checkpoint import list_checkpoints, load_checkpoint
from accel_rl.system.stopping import StopRequest
from accel_rl.training.build import build
from accel_rl.training.metrics import Others
from accel_rl.training.records import Records
from accel_rl.training.run import ALONE
from accel_rl.training.train import _salvage


def run(config: TrainConfig, run_dir: Path, tape: Tape, **changes: Any) -> Records:
    made = make_run(config, run_dir, tape, **changes)
    with contextlib.closing(made.records):
        made.iterate()
    return made.records


def iteration(progress: str) -> list[str]:
    return ["collect", "episodes", "finish", f"update {progress}"]


def test_each_iteration_collects_updates_then_records(tmp_path) -> None:
    tape = Tape()
    records = run(make_config(), tmp_path, tape)
    assert tape == [
        *iteration("0.00"),  # 4 steps
        *iteration("0.20"),  # 8
        *iteration("0.40"),  # 12: past 10
        "row 12",
        "save 12",
        *iteration("0.60"),  # 16
        *iteration("0.80"),  # 20
        "row 20",
        "save 20",
    ]
    assert (records.steps, records.frames, records.updates) == (20, 80, 5)
    assert records.scores.num_episodes == 5


def test_simulators_that_begin_anew_do_not_repeat_what_they_did() -> None:
    config, first = (
        parse_arguments(["env=counting_env:CountingEnv", "num_workers=0", "num_envs=2"]),
        set(),
    )
    for steps in (None, 100, 200):
        saved = None if steps is None else {"sampler": None, "counts": {"steps": steps}}
        with build(config, saved).sampler as sampler:
            first.add(tuple(sampler.rollout.observation[-1, :, 0].tolist()))
    assert len(first) == 3


def test_rows_and_checkpoints_have_their_shares_of_the_time(tmp_path, monkeypatch) -> None:
    now = [0.0]
    for module in ("rollouts", "records"):
        monkeypatch.setattr(f"accel_rl.training.{module}.perf_counter", lambda: now[0])

    def takes(seconds: float, act: Any = lambda *_, **__: None) -> Any:
        def slowly(*arguments: Any, **options: Any) -> None:
            now[0] += seconds
            act(*arguments, **options)

        return slowly

    for name, seconds in (("write_row", 10.0), ("save", 3.0)):
        monkeypatch.setattr(TapedRecords, name, takes(seconds, getattr(TapedRecords, name)))
    learner = FakeLearner(Tape(), on_update=takes(1.0))
    split = run(make_config(), tmp_path, Tape(), learner=learner).whole_run().split
    assert (split.learning, split.logging, split.saving) == pytest.approx((5 / 31, 20 / 31, 6 / 31))


def test_checkpoints_are_written_by_minutes_as_well(tmp_path, monkeypatch) -> None:
    now, tape = [0.0], Tape()
    monkeypatch.setattr("accel_rl.training.records.perf_counter", lambda: now[0])

    def one_minute() -> None:
        now[0] += 60.0

    config = make_config(total_steps=40, checkpoint_interval=28, checkpoint_minutes=2.0)
    run(config, tmp_path, tape, learner=FakeLearner(tape, on_update=one_minute))
    # After 8 steps two minutes are over, and again after 20 and after 36, since 12, 24 and 28.
    assert [each for each in tape if "save" in each] == ["save 12", "save 24", "save 28", "save 40"]


def test_evaluation_takes_no_training_time(tmp_path, monkeypatch) -> None:
    now = [0.0]
    for module in ("rollouts", "records"):
        monkeypatch.setattr(f"accel_rl.training.{module}.perf_counter", lambda: now[0])

    class SlowEvaluator(FakeEvaluator):
        def evaluate(self, steps: int, stop: StopRequest) -> dict[str, float]:
            now[0] += 1_000.0
            return super().evaluate(steps, stop)

    def one_second() -> None:
        now[0] += 1.0

    tape = Tape()
    learner = FakeLearner(tape, on_update=one_second)
    records = run(make_config(), tmp_path, tape, learner=learner, evaluator=SlowEvaluator(tape, 8))
    assert tape.count("evaluate") == 2
    assert (records.seconds, records.learning_seconds) == (5.0, 5.0)


def test_evaluation_comes_after_recording_when_it_is_due(tmp_path) -> None:
    tape = Tape()
    config = make_config(total_steps=12, log_interval=8, checkpoint_interval=100)
    run(config, tmp_path, tape, evaluator=FakeEvaluator(tape, 8))
    assert tape[4:10] == [*iteration("0.33"), "row 8", "evaluate"]
    assert tape.count("evaluate") == 1
    text = (tmp_path / "evaluation.csv").read_text()
    assert text == "steps,frames,episodes,episode_return_raw_mean\n8,32,1,9\n"


def test_stop_request_ends_the_run_after_the_iteration(tmp_path) -> None:
    tape, stop = Tape(), StopRequest()
    stop.hold()

    def ask() -> None:
        if tape.count("finish") == 2:
            stop.received = signal.SIGINT

    learner = FakeLearner(tape, on_update=ask)
    records = run(make_config(), tmp_path, tape, stop=stop, learner=learner)
    assert tape == [*iteration("0.00"), *iteration("0.20")]
    assert records.steps == 8


def test_finish_writes_what_is_not_yet_written(tmp_path) -> None:
    tape = Tape()
    config = make_config(total_steps=16)
    made = make_run(config, tmp_path, tape)
    with contextlib.closing(made.records):
        made.iterate()
        assert tape[-1] == "row 16"  # the last one, since all steps are taken
        made.finish()
    assert tape[-2:] == ["curve 16", "save 16"]
    saved = load_checkpoint(list_checkpoints(tmp_path)[-1])
    assert saved["counts"] == {
        "steps": 16,
        "frames": 64,
        "updates": 4,
        "episodes": 4,
        "training_seconds": saved["counts"]["training_seconds"],
    }


def test_parameters_that_others_made_nan_do_not_replace_a_good_checkpoint(tmp_path) -> None:
    constant = -math.inf  # as in a mask
    weight = torch.tensor([constant, 1.0])
    state = {"learner": {"parameters": {"weight": weight}}, "algorithm": {}}
    records = make_records(make_config(), tmp_path, Tape())
    records._make_state = lambda: dict(state)
    with contextlib.closing(records):
        records.save_last()
        records.steps = 4
        weight[1] = math.nan
        with pytest.raises(FloatingPointError, match="parameters not finite after 4 steps"):
            records.save_last()
    assert [load_checkpoint(path)["counts"]["steps"] for path in list_checkpoints(tmp_path)] == [0]


def test_rows_have_counts_and_scores_under_unmistakable_names(tmp_path) -> None:
    run(make_config(), tmp_path, Tape())
    with (tmp_path / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["steps"] for row in rows] == ["12", "20"]
    last = rows[-1]
    assert (last["frames"], last["updates"], last["episodes"]) == ("80", "5", "5")
    assert (last["episode_return_raw_mean"], last["episode_return_clipped_mean"]) == ("3", "1")
    assert last["episode_length_steps_mean"] == "7"
    assert last["loss"] == "0.5"
    speed = float(last["steps_per_second"])
    assert float(last["frames_per_second"]) == pytest.approx(4 * speed)
    assert float(last["updates_per_second"]) == pytest.approx(speed / 4)


def test_last_curve_takes_no_training_time(tmp_path, monkeypatch) -> None:
    now = [100.0]
    monkeypatch.setattr("accel_rl.training.records.perf_counter", lambda: now[0])
    records = make_records(make_config(), tmp_path, Tape())

    def slow(*, is_last: bool) -> bool:
        now[0] += 40.0
        return True

    monkeypatch.setattr(records, "draw_curve", slow)
    now[0] = 110.0
    records.finish(20)
    assert records.whole_run().seconds == 10.0
    records.close()


def test_evaluation_while_others_go_on_counts_but_for_the_shares(tmp_path, monkeypatch) -> None:
    now = [100.0]
    monkeypatch.setattr("accel_rl.training.records.perf_counter", lambda: now[0])
    monkeypatch.setattr(Others, "are_in_step", False)
    records = make_records(make_config(), tmp_path, Tape())
    records.learning_seconds = 5.0
    now[0] = 150.0
    records.pause(40.0)
    assert records.seconds == 50.0
    assert records.whole_run().split.learning == pytest.approx(0.5)
    records.close()


def test_diverged_learning_ends_the_run_and_names_the_metric(tmp_path) -> None:
    tape = Tape()
    with pytest.raises(FloatingPointError, match=r"diverged: loss not finite after 12 steps"):
        run(make_config(), tmp_path, tape, learner=FakeLearner(tape, loss=math.nan))
    assert tape[-1] == "row 12"
    assert "nan" in (tmp_path / "metrics.csv").read_text()


def salvaged(records: TapedRecords, error: Exception) -> Tape:
    run: Any = SimpleNamespace(records=records, team=ALONE, stop=StopRequest())
    assert not _salvage(run, error)
    records.close()
    return records.tape


def test_diverged_learning_leaves_no_checkpoint_of_it(tmp_path) -> None:
    records = make_records(make_config(), tmp_path, Tape())
    assert salvaged(records, FloatingPointError("diverged")) == []


def test_diverged_learning_is_seen_before_a_checkpoint_takes_the_place_of_good_ones(
    tmp_path,
) -> None:
    tape = Tape()
    learner = FakeLearner(tape)

    def diverge() -> None:
        learner.loss = math.nan if tape.count("collect") > 3 else 0.5

    learner.on_update = diverge
    config = make_config(log_interval=100, checkpoint_interval=4)
    with pytest.raises(FloatingPointError, match=r"diverged: loss not finite after 16 steps"):
        run(config, tmp_path, tape, learner=learner)
    assert list_checkpoints(tmp_path)[-1].stem == "steps_000000000012"


def test_diverged_learning_is_seen_in_the_row_after_another_failure(tmp_path) -> None:
    records = make_records(make_config(), tmp_path, Tape())
    records.steps = 12
    records.add_metrics({"loss": torch.tensor(math.nan)})
    assert salvaged(records, RuntimeError("a worker died")) == ["row 12"]


def test_first_failure_hinders_none_of_what_is_saved_after_it(tmp_path, monkeypatch) -> None:
    records = make_records(make_config(), tmp_path, Tape())

    def broken(*, alone: bool) -> None:
        raise OSError("no space")

    monkeypatch.setattr(records, "write_last_row", broken)
    assert salvaged(records, RuntimeError("a worker died")) == ["save 0"]


def test_last_row_after_a_failure_waits_for_no_other_learner(tmp_path, monkeypatch) -> None:
    records = make_records(make_config(), tmp_path, Tape())
    records.steps = 12
    monkeypatch.setattr(records._others, "merge", None)  # waits for reports that never come
    assert salvaged(records, RuntimeError("a worker died")) == ["row 12", "save 12"]
    assert "\n12," in (tmp_path / "metrics.csv").read_text()


def test_learning_rate_schedule_reaches_the_learner_as_progress(tmp_path) -> None:
    tape = Tape()
    config = make_config(schedule_steps=40, learner=A2CConfig(lr_schedule="linear"))
    run(config, tmp_path, tape)
    assert [x for x in tape if x.startswith("update")] == [f"update 0.{i}0" for i in range(5)]
