"""Runs that go on: to the bit as if they had never stopped."""

import os
import re
import shutil
import signal
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from documents import ROOT
from launched_runs import launched
from run_files import assert_same, forget_last_checkpoint, last_checkpoint, table
from saved_runs import quiet, trained, undrawn
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiers import processes
from toy_envs import Secretive

from accel_rl.cli.parse import parse_arguments
from accel_rl.runs.checkpoint import list_checkpoints, load_checkpoint
from accel_rl.system.states import encode_state
from accel_rl.training import resume
from accel_rl.training.resume import (
    _refuse_changes,
    describe_resumed,
    load_last,
)
from accel_rl.training.rollouts import RolloutRun
from accel_rl.training.train import TrainResult, train

pytestmark = pytest.mark.usefixtures("one_torch_thread")

SMALL = "num_envs=4 decorrelation_steps=10 log_interval=60 checkpoint_interval=200 total_steps=400"
EVALUATED = "evaluation_interval=100 evaluation_steps=2"
REPLAY = "batch_size=16 learning_starts=120 buffer_size=3000 save_replay=true training_intensity=4"
FEW = "checkpoint_interval=80 total_steps=160"
COUNTING = "counting_env:CountingEnv"
SWING = "env=control_envs:Swing normalize_observation=true normalize_reward=true"
RUNS = {
    "a2c": f"algo=a2c env=catch num_workers=0 {EVALUATED} {FEW}",
    "ppo": f"algo=ppo {SWING} horizon=20 minibatch_size=40 epochs=2 clip_value=true num_workers=2",
    "atari": f"algo=a2c env=pong sticky_actions=0.25 num_workers=2 {FEW}",
    "counting": f"algo=a2c env={COUNTING} memory=gru reset_policy=wait overlap=true num_workers=0",
    "vtrace": f"algo=a2c vtrace=true {SWING} memory=lstm overlap=true num_workers=2",
    "ppo-lstm": (
        f"algo=ppo {SWING} memory=lstm overlap=true horizon=20 minibatch_size=20 num_workers=0"
    ),
    "pqn": "algo=pqn env=catch horizon=10 minibatch_size=20 lr_schedule=linear num_workers=2",
    "pqn-gru": (
        "algo=pqn env=space_envs:masked memory=gru horizon=10 minibatch_size=20 num_workers=0"
    ),
    "dqn": (
        f"algo=dqn env=catch {REPLAY} horizon=4 prioritized=true overlap=true num_workers=0 "
        "target_update_interval=160 epsilon_steps=300 log_norms=true"
    ),
    "rainbow": f"algo=rainbow env=catch {REPLAY} num_workers=2",
    "btr": f"algo=btr env=catch {REPLAY} num_workers=2 {EVALUATED}",
    "sequences": (
        f"algo=double_dqn env=catch {REPLAY} memory=gru previous_action_reward=true num_workers=0 "
        f"sequence_length=8 burn_in=2 prioritized=true value_rescaling=true {EVALUATED}"
    ),
    "sac": f"algo=sac env=control_envs:Swing {REPLAY} num_workers=2",
    "own": "algo=test_own_algorithm:ratio env=catch overlap=true num_workers=0",
    "example": "algo=examples.own_algorithm:make env=catch num_workers=0",
    "td3": f"algo=examples.td3:make env=control_envs:SwingInParts {REPLAY} num_workers=0",
}


def run(*arguments: str) -> TrainResult:
    with undrawn():
        return train(parse_arguments(arguments), quiet())


def cases() -> Iterator[Any]:
    for name, options in RUNS.items():
        marks = [pytest.mark.slow] * (name != "a2c")
        yield pytest.param(name, marks=[*marks, *[pytest.mark.processes] * ("workers" in options)])


@pytest.mark.slow
@pytest.mark.parametrize("name", [*cases()])
def test_resumed_run_equals_one_that_never_stopped(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=":")
    whole, options = tmp_path / "whole", f"{SMALL} {RUNS[name]}".split()
    options = [f"{key}={value}" for key, value in dict(x.split("=") for x in options).items()]
    run(*options, f"run_dir={whole}")
    resumed = forget_last_checkpoint(whole, tmp_path / "resumed")
    changes = ["num_workers=1"] if "num_workers=2" in options else []
    run(f"resume={resumed}", *changes)
    assert_same(last_checkpoint(whole), last_checkpoint(resumed))
    assert table(whole / "metrics.csv") == table(resumed / "metrics.csv")
    if EVALUATED in RUNS[name]:
        assert table(whole / "evaluation.csv") == table(resumed / "evaluation.csv")
    assert "resume: null" in (resumed / "config.yaml").read_text()


@pytest.mark.processes
@pytest.mark.slow
def test_run_stopped_by_a_signal_to_all_its_processes_goes_on_exactly(tmp_path) -> None:
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    options = ["env=catch", "num_envs=4", "num_workers=2", "decorrelation_steps=10"]
    options.append("log_interval=300")
    with launched(stopped, *options, "learners=1", "total_steps=1e9") as program:
        program.wait_for_rows()
        os.killpg(program.process.pid, signal.SIGTERM)
        program.ends(128 + signal.SIGTERM)
    total = int(load_checkpoint(list_checkpoints(stopped)[-1])["counts"]["steps"]) + 1_000
    run(f"resume={stopped}", f"total_steps={total}")
    run(*options, f"total_steps={total}", f"run_dir={whole}")
    expected, found = last_checkpoint(whole), last_checkpoint(stopped)
    assert_same(expected["learner"], found["learner"])
    assert_same(expected["sampler"], found["sampler"])


def checkpoint(num_learners: int = 1, is_new: tuple[bool, ...] = (), **more: Any) -> dict[str, Any]:
    """What is read of a checkpoint after 2,000 steps. ``is_new``: environments without state."""
    saved = {"counts": {"steps": 2_000}, "algorithm": {}, "num_learners": num_learners}
    saved |= {"num_envs": 16, **more}
    states = [None if each else b"" for each in is_new]
    encoded = torch.frombuffer(bytearray(encode_state({"environments": states})), dtype=torch.uint8)
    return saved | {"sampler": encoded if is_new else None}


@pytest.mark.parametrize(
    ("algo", "saved", "words"),
    [
        ("a2c", checkpoint(), ["2,000 steps", "all environments start new", "was not saved"]),
        ("a2c", checkpoint(is_new=(True, False)), ["1 of 2 environments start new", "set_state"]),
        ("a2c", checkpoint(2), ["1 learner in place of 2", "all environments start new"]),
        ("a2c", checkpoint(partless=[1]), ["of learner 1, so all environments start new"]),
        ("a2c", checkpoint(is_new=(False,), partless=[1]), ["learner 1, whose environments start"]),
        ("a2c", checkpoint(is_foreign=True), ["not signed", "trust=true"]),
        ("dqn", checkpoint(is_new=(False,)), ["empty replay", "learning begins again after 2,250"]),
    ],
)
def test_what_starts_anew_is_said(algo: str, saved: dict[str, Any], words: list[str]) -> None:
    more = ["learning_starts=250"] * (algo == "dqn")
    line = describe_resumed(saved, parse_arguments([f"algo={algo}", "env=catch", *more]))
    assert all(each in line for each in words)


@pytest.mark.slow
@pytest.mark.parametrize("env", ["CartPole-v1", "catch"])
def test_run_without_the_state_of_its_simulators_goes_on(env: str, tmp_path, monkeypatch) -> None:
    """They have none, or it was not saved."""
    get_state = RolloutRun.get_state
    with monkeypatch.context() as patch:
        if env == "catch":
            patch.setattr(RolloutRun, "get_state", lambda run: {**get_state(run), "sampler": None})
        run_dir = trained(tmp_path / "run", f"env={env}", "log_interval=60")
    assert run(f"resume={run_dir}", "total_steps=160").status.steps == 160
    steps = [int(row["steps"]) for row in table(run_dir / "metrics.csv")]
    assert steps == sorted(set(steps)) and steps[-1] == 160


@pytest.fixture(scope="module")
def with_replay(tmp_path_factory) -> Path:
    run_dir = tmp_path_factory.mktemp("replay") / "run"
    options = "algo=dqn env=catch num_envs=4 total_steps=160 log_interval=60 horizon=5".split()
    return trained(run_dir, *options, *REPLAY.replace("120", "80").split())


@pytest.mark.slow
def test_options_that_messages_ask_to_raise_may_change(with_replay: Path, tmp_path) -> None:
    run_dir = shutil.copytree(with_replay, tmp_path / "run")
    result = run(f"resume={run_dir}", "total_steps=200")
    assert (result.status.steps, result.updates) == (200, 30)  # (200 - 80) * 4 / 16
    store = parse_arguments(["algo=a3c", "env=catch"])
    changes = ("on_worker_failure=raise", "step_timeout_seconds=50")
    _refuse_changes(store, parse_arguments(["algo=a3c", "env=catch", *changes]))


@pytest.mark.slow
def test_learning_rate_epsilon_and_number_of_environments_may_change(
    with_replay: Path, tmp_path
) -> None:
    run_dir = shutil.copytree(with_replay, tmp_path / "run")
    run(f"resume={run_dir}", "total_steps=400", "lr=0.5", "epsilon_final=1", "num_envs=8")
    row = table(run_dir / "metrics.csv")[-1]
    assert (float(row["learning_rate"]), float(row["epsilon"])) == (0.5, 1.0)
    run(f"resume={run_dir}", "total_steps=480")
    assert (run_dir / "train.log").read_text().count("8 environments in place of 4") == 1


@pytest.mark.slow
def test_whether_checkpoints_hold_the_replay_may_change(with_replay: Path, tmp_path) -> None:
    """Off, the one that was saved is still loaded; on, there is none to load yet."""
    run_dir = shutil.copytree(with_replay, tmp_path / "run")
    assert run(f"resume={run_dir}", "total_steps=200", "save_replay=false").updates == 30
    assert "replay" not in last_checkpoint(run_dir)["algorithm"]
    resumed = run(f"resume={run_dir}", "total_steps=400", "save_replay=true")
    assert resumed.updates == 30 + 30  # learning began again after 200 + 80 steps
    assert "with an empty replay" in (run_dir / "train.log").read_text()
    assert "replay" in last_checkpoint(run_dir)["algorithm"]


@pytest.mark.slow
def test_replay_that_was_loaded_is_not_kept_twice(with_replay: Path, tmp_path, monkeypatch) -> None:
    run_dir = shutil.copytree(with_replay, tmp_path / "run")
    iterate, loaded = RolloutRun.iterate, []

    def load(*args: Any) -> dict[str, Any]:
        saved = load_last(*args)
        loaded.append(weakref.ref(saved["algorithm"]["replay"]["frames"]))
        assert str(run_dir) in Path("/proc/self/maps").read_text()  # not read into memory
        return saved

    def collect(run: RolloutRun) -> None:
        assert loaded[0]() is None
        assert str(run_dir) not in Path("/proc/self/maps").read_text()
        iterate(run)

    monkeypatch.setattr(resume, "load_last", load)
    monkeypatch.setattr(RolloutRun, "iterate", collect)
    assert run(f"resume={run_dir}", "total_steps=200").status.steps == 200


@pytest.mark.slow
def test_tensorboard_forgets_what_was_written_after_the_checkpoint(tmp_path, monkeypatch) -> None:
    options = ("env=catch", "checkpoint_interval=80", "total_steps=160")
    whole = trained(tmp_path / "whole", *options)
    resumed = forget_last_checkpoint(whole, tmp_path / "resumed")
    now = time.time() + 1  # events files are named by the second
    monkeypatch.setattr(time, "time", lambda: now)
    run(f"resume={resumed}")
    events = EventAccumulator(str(resumed)).Reload()
    steps = [event.step for event in events.Scalars("run/updates")]
    assert steps == [int(row["steps"]) for row in table(resumed / "metrics.csv")]


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", ["0", processes("none")])
def test_simulators_that_cannot_be_saved_are_told_once_and_begin_new_episodes(
    num_workers: str, tmp_path
) -> None:
    env = f"env={Secretive.__module__}:Secretive"
    trained(tmp_path, env, f"num_workers={num_workers}", "checkpoint_interval=20")
    log = tmp_path / "train.log"
    said = r"WARNING (\d) of \1 environments cannot be saved, .*: a Generator cannot be saved"
    assert len(re.findall(said, log.read_text())) == 1  # of two checkpoints
    run(f"resume={tmp_path}", "total_steps=80")
    assert "environments start new episodes, they cannot tell" in log.read_text()
