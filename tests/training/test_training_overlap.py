"""Sampling while the learner works: who acts with which parameters, and how such a run ends."""

import contextlib
import copy
import dataclasses
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from run_files import assert_same, last_checkpoint, table
from saved_runs import quiet, undrawn
from taped_runs import FakeEvaluator, FakeSampler, Tape, make_config, make_run

from accel_rl.agents import RolloutTensors
from accel_rl.algos import PPO
from accel_rl.cli.parse import parse_arguments
from accel_rl.config import TrainConfig
from accel_rl.runs.checkpoint import list_checkpoints, load_checkpoint
from accel_rl.samplers import ActionServer, SamplerError
from accel_rl.system.stopping import StopRequest
from accel_rl.training.build import build
from accel_rl.training.overlap import Overlapped, _prepare_thread
from accel_rl.training.rollouts import RolloutRun
from accel_rl.training.train import RunError, train

pytestmark = pytest.mark.usefixtures("one_torch_thread")

CPU = torch.device("cpu")
ALGORITHMS = {
    name: tuple(options.split())
    for name, options in {
        "a2c": "algo=a2c",
        "vtrace": "algo=a2c learner.vtrace=true",
        "ppo": "algo=ppo horizon=20 minibatch_size=20 epochs=2 clip_value=true",
        "lstm": "algo=ppo memory=lstm horizon=20 minibatch_size=20 epochs=2",
        "dqn": "algo=dqn batch_size=16 learning_starts=160 buffer_size=4000 horizon=4 "
        "prioritized=true target_update_interval=80 epsilon_steps=200",
    }.items()
}
SMALL = ("env=catch", "num_envs=4", "decorrelation_steps=10", "log_interval=80")


def run(run_dir: Path, *arguments: str) -> Path:
    config = parse_arguments([*arguments, f"run_dir={run_dir}"])
    with undrawn():
        train(config, quiet())
    return run_dir


class FakeOverlapped(Overlapped):
    """Its thread makes an update when the result is asked for."""

    def __init__(self, tape: Tape, sampler: Any, server: Any, learner: Any) -> None:
        self.tape = tape
        self._sampler, self.server, self._learner = sampler, server, learner
        self.finish = server.finish
        self._stream = self._acting_stream = self._failure = None
        self._lag, self._device = 0, CPU
        self._thread: Any = self

    def submit(self, update: Any, *arguments: Any) -> Any:
        self.tape.append("begin")
        return SimpleNamespace(result=lambda: update(*arguments))

    def take_over(self, *, is_behind: bool = False) -> None:
        self.tape.append("take over, behind" if is_behind else "take over")


class NumberedServer:
    """Its rollouts are numbers."""

    def __init__(self, tape: Tape) -> None:
        self.tape, self.number = tape, 0

    def finish(self) -> int:
        self.number += 1
        self.tape.append(f"finish {self.number}")
        return self.number


class NumberedLearner:
    def __init__(self, tape: Tape, on_update: Any = lambda: None) -> None:
        self.tape, self.on_update = tape, on_update

    def update(self, batch: int, progress: float, steps: int) -> dict[str, torch.Tensor]:
        self.tape.append(f"update {batch} {progress:.2f}")
        self.on_update()
        return {"loss": torch.tensor(0.5)}


def make_overlapped(config: TrainConfig, run_dir: Path, tape: Tape, **changes: Any) -> RolloutRun:
    parts: dict = {
        "sampler": FakeSampler(tape),
        "server": NumberedServer(tape),
        "learner": NumberedLearner(tape),
    }
    parts |= changes
    overlapped = FakeOverlapped(tape, *(parts[name] for name in ("sampler", "server", "learner")))
    return make_run(config, run_dir, tape, overlapped=overlapped, **parts)


def go_through(config: TrainConfig, run_dir: Path, tape: Tape, **changes: Any) -> Any:
    made = make_overlapped(config, run_dir, tape, **changes)
    with contextlib.closing(made.records):
        made.iterate()
    return made.records


FIRST = ["take over", "collect"]


def test_each_rollout_is_collected_while_the_one_before_is_learned_from(tmp_path) -> None:
    tape = Tape()
    recorder = go_through(make_config(checkpoint_interval=100), tmp_path, tape)
    assert tape == [
        *FIRST,
        *("episodes", "finish 1", "begin", "collect", "update 1 0.00", "take over, behind"),
        *("episodes", "finish 2", "begin", "collect", "update 2 0.20", "take over, behind"),
        *(
            "episodes",
            "finish 3",
            "begin",
            "collect",
            "update 3 0.40",
            "row 12",
            "take over, behind",
        ),
        *("episodes", "finish 4", "begin", "collect", "update 4 0.60", "take over, behind"),
        *("episodes", "finish 5", "begin", "update 5 0.80", "row 20"),
    ]
    assert (recorder.steps, recorder.updates, recorder.scores.num_episodes) == (20, 5, 5)


def test_all_is_learned_from_where_a_checkpoint_is_due(tmp_path) -> None:
    tape = Tape()
    config = make_config(total_steps=12, checkpoint_interval=8)
    go_through(config, tmp_path, tape, evaluator=FakeEvaluator(tape, 8))
    assert tape == [
        *FIRST,
        *("episodes", "finish 1", "begin", "collect", "update 1 0.00", "take over, behind"),
        *("episodes", "finish 2", "begin", "update 2 0.33", "save 8", "evaluate"),
        *("take over", "collect"),
        *("episodes", "finish 3", "begin", "update 3 0.67", "row 12"),
    ]


def test_stop_request_ends_the_run_when_all_is_learned_from(tmp_path) -> None:
    tape, stop = Tape(), StopRequest()
    stop.hold()

    def ask() -> None:
        stop.received = signal.SIGINT

    learner = NumberedLearner(tape, on_update=ask)
    recorder = go_through(make_config(), tmp_path, tape, stop=stop, learner=learner)
    assert tape == [
        *FIRST,
        *("episodes", "finish 1", "begin", "collect", "update 1 0.00", "take over, behind"),
        *("episodes", "finish 2", "begin", "update 2 0.20"),
    ]
    assert recorder.steps == 8


def test_update_counts_where_the_sampler_fails_meanwhile(tmp_path) -> None:
    tape = Tape()

    class FailingSampler(FakeSampler):
        def collect(self, policy: Any) -> None:
            super().collect(policy)
            if tape.count("collect") == 2:
                raise SamplerError("lost")

    made = make_overlapped(make_config(), tmp_path, tape, sampler=FailingSampler(tape))
    recorder = made.records
    with contextlib.closing(recorder), pytest.raises(SamplerError, match="lost"):
        made.iterate()
    assert (recorder.steps, recorder.updates, recorder.is_learning) == (4, 1, False)


def kept(batch: RolloutTensors) -> RolloutTensors:
    return batch.map(torch.clone)


def behind_by_one(config: TrainConfig) -> dict[str, torch.Tensor]:
    """The parameters after a run in which one thing happens after the other."""
    parts: Any = build(config)
    sampler, learner = parts.sampler, parts.learner
    agent, flat = copy.deepcopy(parts.agent), parts.sync.parameters
    server = ActionServer(agent, sampler, CPU)
    count = config.planned_steps // config.steps_per_iteration
    with sampler:
        sampler.collect(server)
        batch = kept(server.finish())
        for number in range(count):
            if number < count - 1:
                sampler.collect(server)
                following = kept(server.finish())
            steps = number * config.steps_per_iteration
            learner.update(batch, config.progress(steps), steps + config.steps_per_iteration)
            agent.model.load_state_dict(parts.agent.model.state_dict())
            if hasattr(agent, "epsilon"):
                agent.epsilon = parts.agent.epsilon
            batch = following
    parts.server.close()
    return flat.to_named(flat.parameter)


@pytest.mark.parametrize(
    "algo", ["vtrace", *(pytest.param(each, marks=pytest.mark.slow) for each in ("lstm", "dqn"))]
)
def test_run_equals_one_that_acts_with_parameters_one_iteration_old(algo: str, tmp_path) -> None:
    arguments = (*SMALL, *ALGORITHMS[algo], "total_steps=320", "num_workers=0")
    run_dir = run(tmp_path / "run", *arguments, "overlap=true")
    torch.set_num_threads(1)
    config = parse_arguments([*arguments, "overlap=true"])
    expected = behind_by_one(dataclasses.replace(config, overlap=False))
    found = last_checkpoint(run_dir)["learner"]["parameters"]
    assert_same(found, expected)
    in_turns = run(tmp_path / "turns", *(each for each in arguments if "vtrace" not in each))
    other = last_checkpoint(in_turns)["learner"]["parameters"]
    assert not all(torch.equal(other[name], found[name]) for name in found)


@pytest.mark.parametrize(
    ("algo", "updates"),
    [("a2c", 1), *(pytest.param(x, 8, marks=pytest.mark.slow) for x in ("ppo", "dqn"))],
)
def test_lag_is_logged(algo: str, updates: int, tmp_path) -> None:
    arguments = (*SMALL, *ALGORITHMS[algo], "total_steps=960", "checkpoint_interval=10000")
    run_dir = run(tmp_path / "run", *arguments, "num_workers=0", "overlap=true")
    lags = [float(row["policy_lag"]) for row in table(run_dir / "metrics.csv")]
    assert all(lag == updates for lag in lags[6:])
    assert lags[0] < updates or algo == "dqn"  # its first rollout is not behind


def test_ppo_measures_ratios_and_values_from_the_parameters_that_acted() -> None:
    arguments = (*SMALL, *ALGORITHMS["ppo"], "num_workers=0")
    parts = build(parse_arguments(arguments))
    learner = parts.learner
    assert isinstance(learner, PPO)
    with parts.sampler as sampler:
        sampler.collect(parts.server)
        batch = parts.server.finish()
        expected = learner.prepare(batch)
        parts.sync.parameters.parameter.mul_(1.5)
        found = learner.prepare(batch)
    assert expected.behaviour_log_prob.std() > 0
    for name in ("behaviour_log_prob", "behaviour_value"):
        assert torch.equal(getattr(found, name), getattr(expected, name))


def test_learning_goes_on_in_a_thread_while_simulators_are_waited_for(
    tmp_path, monkeypatch
) -> None:
    """Neither could end without the other."""
    sampling, learning = threading.Barrier(2, timeout=30), threading.Barrier(2, timeout=30)
    made = build

    def build_meeting(config: TrainConfig, *rest: Any) -> Any:
        parts = made(config, *rest)
        sampler, learner = parts.sampler, parts.learner
        collect, update = sampler.collect, learner.update
        calls: list[str] = []

        def meet_collect(policy: Any) -> Any:
            if calls:
                sampling.wait()
                learning.wait()
            calls.append("collect")
            return collect(policy)

        def meet_update(*arguments: Any) -> Any:
            if len(calls) < 3:
                sampling.wait()
                learning.wait()
            return update(*arguments)

        monkeypatch.setattr(sampler, "collect", meet_collect)
        monkeypatch.setattr(learner, "update", meet_update)
        return parts

    monkeypatch.setattr("accel_rl.training.train.build", build_meeting)
    run(tmp_path / "run", *SMALL, "total_steps=60", "num_workers=0", "overlap=true")


@pytest.mark.processes
@pytest.mark.slow
def test_failing_update_ends_the_run(tmp_path, monkeypatch) -> None:
    def fail(*_: Any) -> None:
        raise FloatingPointError("no number")

    monkeypatch.setattr("accel_rl.algos.a2c.A2C.update", fail)
    with pytest.raises(RunError, match="no number"):
        run(tmp_path / "run", *SMALL, "total_steps=200", "overlap=true")
    assert not list((tmp_path / "run" / "checkpoints").glob("*"))


@pytest.mark.processes
@pytest.mark.slow
def test_simulators_ahead_of_learning_are_not_saved_after_a_failure(tmp_path, monkeypatch) -> None:
    def fail(*_: Any) -> None:
        raise SamplerError("lost in an evaluation")

    monkeypatch.setattr("accel_rl.training.evaluation.Evaluator.evaluate", fail)
    arguments = (*SMALL, "horizon=5", "total_steps=2000", "evaluation_interval=200")
    with pytest.raises(RunError, match="lost in an evaluation"):
        run(tmp_path / "run", *arguments, "overlap=true")
    saved = load_checkpoint(list_checkpoints(tmp_path / "run")[-1])
    assert saved["counts"]["steps"] == 200
    assert saved["sampler"] is None


@pytest.mark.processes
@pytest.mark.slow
def test_evaluations_go_on_between_overlapped_iterations(tmp_path) -> None:
    arguments = (*SMALL, "total_steps=800", "reset_policy=wait", "evaluation_interval=400")
    few = ("evaluation_steps=2", "num_workers=2")
    run_dir = run(tmp_path / "run", *arguments, *few, "overlap=true")
    assert [row["steps"] for row in table(run_dir / "evaluation.csv")] == ["400", "800"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("checkpoint_interval=80 overlap=true", "no effect with checkpoint_interval=80"),
        ("algo=ga3c overlap=true", "algo=ga3c samples and learns at the same time"),
        ("algo=appo overlap=true", "pull_steps=64 changes them within; use pull_steps=none"),
        ("learner.vtrace=true", "learner.vtrace=true has no effect.*overlap.*pull_steps is none"),
    ],
)
def test_what_has_no_effect_or_cannot_overlap_is_refused(arguments: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_arguments(["env=catch", *arguments.split()])


def test_what_appo_and_a3c_need_in_its_place_is_taken() -> None:
    config = parse_arguments(["algo=appo", "env=catch", "overlap=true", "pull_steps=null"])
    assert config.overlap
    assert dataclasses.replace(config, overlap=False).parallel.pull_steps is None
    options = ["algo=a3c", "env=catch", "learner.vtrace=true", "pull_steps=5"]
    assert parse_arguments(options).learner.uses_ratios  # it pulls before it learns


LEARNING = {
    "vtrace": "algo=a2c learner.vtrace=true lr=2e-3 num_envs=16 horizon=10 total_steps=100000",
    "ppo": "algo=ppo num_envs=16 horizon=20 minibatch_size=80 total_steps=100000",
    "dqn": "algo=dqn num_envs=8 horizon=4 lr=1e-3 optimizer=adam adam_eps=1e-5 "
    "training_intensity=4 learning_starts=1000 buffer_size=20000 total_steps=40000 "
    "target_update_interval=1000 epsilon_steps=10000 epsilon_final=0.01",
}


@pytest.mark.nightly
@pytest.mark.parametrize("algo", LEARNING)
def test_catch_is_learned(algo: str, tmp_path) -> None:
    arguments = ("env=catch", "num_workers=0", "log_interval=2000", "decorrelation_steps=0")
    run_dir = run(tmp_path / "run", *arguments, *LEARNING[algo].split(), "overlap=true")
    returns = [float(row["episode_return_raw_mean"]) for row in table(run_dir / "metrics.csv")]
    assert returns[0] < 0
    assert np.mean(returns[-5:]) >= 0.85  # epsilon or the policy's own randomness included


def test_one_gpu_without_a_number_is_the_current_one_of_the_thread() -> None:
    threads = torch.get_num_threads()
    _prepare_thread(torch.device("cuda"), is_small=False)  # wakes no GPU
    torch.set_num_threads(threads)
