"""GA3C runs from start to end: what they learn, leave behind, and how they end."""

import dataclasses
import io
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from run_files import numbers_of
from tiers import PROCESSES, SLOW, slow

from accel_rl.cli.parse import parse_arguments
from accel_rl.config import TrainConfig
from accel_rl.ga3c.learner import GA3C, GA3CConfig, importance_ratios, segment_vtrace
from accel_rl.runs.checkpoint import list_checkpoints, load_checkpoint, save_checkpoint
from accel_rl.samplers import SamplerConfig
from accel_rl.training.evaluation import Evaluator
from accel_rl.training.train import RunError, TrainResult, train

pytestmark = PROCESSES
LEARNER = GA3CConfig(
    lr=3e-3,
    loss_reduction="mean",
    rmsprop_eps=1e-3,
    rmsprop_initial=0.0,
    num_predictors=1,
    num_trainers=1,
    training_queue_size=8,  # with 100, policy lag makes learning collapse on a fast machine
    tuner=False,
)
CONFIG = TrainConfig(
    algo="ga3c",
    env="catch",
    model="mlp",
    total_steps=2_000,
    device="cpu",
    sampler=SamplerConfig(num_envs=8, horizon=5, num_groups=1),
    learner=LEARNER,
)


def run(config: TrainConfig, run_dir: Path, **more: Any) -> TrainResult:
    config = dataclasses.replace(config, run_dir=str(run_dir))
    return train(config, Console(file=io.StringIO()), **more)


@pytest.mark.parametrize(
    "seed", [slow(0), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))]
)
def test_ga3c_learns_catch(seed: int, tmp_path: Path) -> None:
    sampler = SamplerConfig(num_envs=16, horizon=5, num_groups=2)
    options: Any = {"seed": seed, "total_steps": 70_000, "log_interval": 2_000}
    config = dataclasses.replace(CONFIG, sampler=sampler, **options)
    run(config, tmp_path, on_row=lambda row: row["episode_return_raw_mean"] >= 0.9)
    scores = [row["episode_return_raw_mean"] for row in numbers_of(tmp_path / "metrics.csv")]
    assert scores[0] < 0.5  # what it begins with fails
    assert max(scores) >= 0.9, scores  # 95 % of catches


@SLOW
def test_run_with_tuner_leaves_metrics_time_line_and_lags(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("accel_rl.ga3c.run.TUNER_SECONDS", 0.05)
    learner = dataclasses.replace(LEARNER, tuner=True, num_trainers=2)
    config = dataclasses.replace(CONFIG, learner=learner, total_steps=8_000, log_interval=2_000)
    result = run(config, tmp_path / "run")
    assert result.status is not None and result.status.steps >= 8_000
    rows = numbers_of(tmp_path / "run" / "metrics.csv")
    last = rows[-1]
    assert last["steps"] == result.status.steps
    assert 50 < last["updates"] <= result.updates  # some may end behind the last step
    for row in rows:
        assert row["prediction_latency_ms"] > 0
        assert row["lag_updates_min"] <= row["lag_updates_mean"] <= row["lag_updates_max"]
        assert row["training_batch_mean"] >= 20 or row is last  # which has what is left
        assert 1 <= row["prediction_batch_mean"] <= 32
        assert row["num_predictors"] >= 1  # in the last row, too
    line = numbers_of(tmp_path / "run" / "tuner.csv")
    counts = [tuple(row[f"num_{x}"] for x in ("predictors", "trainers", "agents")) for row in line]
    assert counts[0] == (1, 2, 1) != counts[1]
    lags = numbers_of(tmp_path / "run" / "policy_lag.csv")
    assert sum(row["batches"] for row in lags) == result.updates
    curve = tmp_path / "run" / "learning_curve.png"
    assert curve.read_bytes().startswith(b"\x89PNG")


@SLOW
def test_every_step_is_trained_on_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[int] = []
    update = GA3C.update

    def count(self: GA3C, batch: Any, progress: float) -> Any:
        trained.append(len(batch.action))
        return update(self, batch, progress)

    monkeypatch.setattr(GA3C, "update", count)
    # What is in the queue at the end has more time than threads that have no more to do.
    monkeypatch.setattr("accel_rl.ga3c.threads._JOIN_SECONDS", 0.0)
    learner = dataclasses.replace(LEARNER, num_predictors=2, num_trainers=2)
    result = run(dataclasses.replace(CONFIG, learner=learner, total_steps=600), tmp_path / "run")
    assert result.status is not None
    unfinished = result.status.steps - sum(trained)
    assert 0 <= unfinished <= 8 * 4  # less than a segment of each environment
    assert sorted(trained)[1] >= 20  # one has what is left


def test_policy_that_stays_has_ratios_of_1_and_vtrace_leaves_its_returns_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples keep the probability with which they were chosen."""
    ratios: list[torch.Tensor] = []
    targets: list[torch.Tensor] = []

    def note_ratios(*arguments: Any) -> torch.Tensor:
        ratios.append(torch.stack([arguments[2], importance_ratios(*arguments)]))
        return ratios[-1][1]

    def note_targets(samples: Any, value: Any, *arguments: Any) -> Any:
        found = segment_vtrace(samples, value, *arguments)
        targets.append(torch.stack([samples.return_, found[0], found[1] + value]))
        return found

    monkeypatch.setattr("accel_rl.ga3c.learner.importance_ratios", note_ratios)
    monkeypatch.setattr("accel_rl.ga3c.learner.segment_vtrace", note_targets)
    learner = dataclasses.replace(LEARNER, lr=1e-9, vtrace=True)
    run(dataclasses.replace(CONFIG, learner=learner, total_steps=600), tmp_path / "run")
    probability, ratio = torch.cat(ratios, dim=1)
    assert len(probability) > 500 and probability.std() > 3e-4
    torch.testing.assert_close(ratio, torch.ones_like(ratio), atol=1e-4, rtol=0)
    given, *found = torch.cat(targets, dim=1)
    assert given.std() > 0.01
    for each in found:
        torch.testing.assert_close(each, given, atol=1e-3, rtol=0)


@SLOW
def test_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    learner = dataclasses.replace(LEARNER, log_norms=True)
    config = dataclasses.replace(CONFIG, learner=learner, total_steps=800)
    first = run(config, tmp_path / "run")
    saved = load_checkpoint(list_checkpoints(tmp_path / "run")[-1])
    assert saved["counts"]["updates"] == first.updates
    saved["counts"]["updates"] -= 2  # as in the middle of a run, where trainers go on meanwhile
    save_checkpoint(tmp_path / "run", saved["counts"]["steps"], saved)
    learner = dataclasses.replace(LEARNER, log_norms=True, num_trainers=2)
    total = saved["counts"]["steps"] + 600  # a run ends where it can, some steps late
    config = dataclasses.replace(
        config, total_steps=total, resume=str(tmp_path / "run"), learner=learner
    )
    second = train(config, Console(file=io.StringIO()))
    assert second.updates > first.updates
    saved = load_checkpoint(list_checkpoints(tmp_path / "run")[-1])
    assert second.updates == int(saved["learner"]["counts"]["num_updates"])
    before, after = numbers_of(tmp_path / "run" / "metrics.csv")
    assert after["steps"] >= total and after["updates"] == second.updates
    assert after["distance_norm"] > before["distance_norm"] > 0  # from the initial parameters


@SLOW
def test_evaluation_stops_the_agents_and_plays_with_the_latest_parameters(tmp_path, monkeypatch):
    evaluate, spent = Evaluator.evaluate, []

    def take_long(self: Evaluator, steps: int, stop: Any) -> dict[str, float]:
        began = time.perf_counter()
        time.sleep(1)  # longer than the start takes, which is no training either
        found = evaluate(self, steps, stop)
        spent.append(time.perf_counter() - began)
        return found

    monkeypatch.setattr(Evaluator, "evaluate", take_long)
    evaluations = {"evaluation_interval": 1_000, "evaluation_steps": 100}
    config = dataclasses.replace(CONFIG, **evaluations)  # type: ignore[arg-type]
    began = time.perf_counter()
    run(config, tmp_path)
    elapsed = time.perf_counter() - began
    for row in numbers_of(tmp_path / "metrics.csv"):  # none has evaluations in it
        names = ("waiting_for_simulators", "inference", "learning", "other")
        assert sum(row[f"{name}_share"] for name in names) == pytest.approx(1, abs=0.1)
        assert row["training_seconds"] <= elapsed - sum(spent)
        # All seconds in which agents waited for actions were of training.
        assert row["prediction_latency_ms"] / 1e3 * row["predictions_per_second"] < 8
    rows = numbers_of(tmp_path / "evaluation.csv")
    assert len(rows) >= 2
    assert all(row["episodes"] >= 4 for row in rows)


def test_signal_ends_a_run_with_everything_saved(tmp_path: Path) -> None:
    signals = iter([signal.SIGTERM])

    def stop(row: Any) -> bool:
        for number in signals:  # in the first row; a second one would end this process
            os.kill(os.getpid(), number)
        return False

    config = dataclasses.replace(CONFIG, total_steps=10_000_000, log_interval=200)
    result = run(config, tmp_path / "run", on_row=stop)
    assert result.stopped_by == signal.SIGTERM
    saved = load_checkpoint(list_checkpoints(tmp_path / "run")[-1])
    assert saved["counts"]["updates"] == result.updates


@pytest.mark.parametrize("who", ["trainer", slow("predictor")])
def test_thread_that_fails_ends_the_run_with_its_error(who, tmp_path, monkeypatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("the device is gone")

    if who == "trainer":
        monkeypatch.setattr(GA3C, "update", fail)
    else:
        monkeypatch.setattr("accel_rl.ga3c.predictor.sample_categorical", fail)
    with pytest.raises(RunError, match="the device is gone"):
        run(dataclasses.replace(CONFIG, total_steps=10_000_000), tmp_path / "run")


@SLOW
def test_diverged_learning_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nan = {"policy_loss": torch.tensor(float("nan"))}
    monkeypatch.setattr(GA3C, "update", lambda self, batch, progress: nan)
    config = dataclasses.replace(CONFIG, log_interval=100)
    with pytest.raises(RunError, match="learning has diverged: policy_loss not finite"):
        run(config, tmp_path / "run")
    assert numbers_of(tmp_path / "run" / "policy_lag.csv")


@pytest.mark.parametrize(
    ("arguments", "tokens"),
    [
        ("learners=2", "algo=ga3c has one model"),
        ("num_workers=0", "agents in processes"),
        ("sync=store", "for several learners"),
        ("min_training_batch=501", "training queue"),
        ("num_trainers=0", "num_trainers is 0; .*at least 1"),
        ("num_groups=5", "num_groups=5"),
    ],
)
def test_options_that_ga3c_cannot_have_are_refused(arguments: str, tokens: str) -> None:
    with pytest.raises(ValueError, match=tokens):
        parse_arguments(["algo=ga3c", *arguments.split()])


def test_sampler_that_ga3c_cannot_have_is_refused_before_anything_is_written(tmp_path) -> None:
    sampler = dataclasses.replace(CONFIG.sampler, reset_policy="wait")
    with pytest.raises(ValueError, match="reset_policy is wait"):
        run(dataclasses.replace(CONFIG, sampler=sampler), tmp_path / "run")
    assert not (tmp_path / "run").exists()
