"""Runs that go on: to the bit as if they had never stopped."""

import io
import os
import shutil
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from run_files import assert_same, forget_last_checkpoint, last_checkpoint, table
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from toy_envs import Secretive

from accel_rl.cli.parse import parse_arguments
from accel_rl.runs.checkpoint import list_checkpoints, load_checkpoint
from accel_rl.training import resume
from accel_rl.training.resume import _refuse_changes, load_last
from accel_rl.training.rollouts import RolloutRun
from accel_rl.training.train import RunError, TrainResult, train

pytestmark = pytest.mark.usefixtures("one_torch_thread")

REPOSITORY = Path(__file__).parents[2]
SMALL = (
    "num_envs=4",
    "num_workers=2",
    "decorrelation_steps=10",
    "total_steps=2000",
    "log_interval=300",
    "checkpoint_interval=1000",
    "evaluation_interval=500",
    "evaluation_steps=2",
    "evaluation_envs=2",
)
Q_LEARNING = (
    "learner.batch_size=16",
    "learner.min_steps=250",
    "learner.replay_size=3000",
    "learner.save_replay=true",
)
MEASURED = ("log_norms=true", "gradient_cosine_interval=7")
SMALL_ATARI = (
    "num_envs=4",
    "num_workers=2",
    "decorrelation_steps=10",
    "total_steps=800",
    "log_interval=240",
    "checkpoint_interval=400",
)


SEQUENCES = (
    *("gru=true", "previous_action_reward=true", "sequence_length=8", "burn_in=2"),
    *("prioritized=true", "learner.value_rescaling=true", "training_intensity=1"),
)


def run(*arguments: str) -> TrainResult:
    return train(parse_arguments(arguments), Console(file=io.StringIO()))


def serial(arguments: tuple[str, ...]) -> tuple[str, ...]:
    return (*(each for each in arguments if not each.startswith("num_workers")), "serial=true")


def slow(*values: tuple[str, ...]) -> Any:
    """Arguments of a test that takes too long for `make test`."""
    return pytest.param(*values, marks=pytest.mark.learning)


@pytest.mark.parametrize(
    "arguments, changes",
    [
        (("env=catch", *serial(SMALL)), ()),
        (("env=catch", *SMALL), ("num_workers=1",)),
        (("env=catch", "lstm=true", *serial(SMALL)), ()),
        (
            (
                "algo=ppo",
                "env=catch",
                "horizon=50",
                "minibatch_size=100",
                "final_observation_slots=1",
                *serial(SMALL),
            ),
            ("final_observation_slots=none",),
        ),
        (
            (
                *("algo=pqn", "env=catch", "horizon=10", "minibatch_size=20"),
                *("lr_schedule=linear", *serial(SMALL)),
            ),
            (),
        ),
        slow(
            (
                *("algo=pqn", "env=catch", "lstm=true", "horizon=10", "minibatch_size=20"),
                *serial(SMALL),
            ),
            (),
        ),
        slow(("algo=rainbow", "env=catch", *SMALL, *Q_LEARNING), ()),
        slow(("algo=double_dqn", "env=catch", *serial(SMALL), *Q_LEARNING, *SEQUENCES), ()),
        slow(("algo=dqn", "env=catch", *serial(SMALL), *Q_LEARNING, *MEASURED), ()),
        (("env=counting", "reset_policy=wait", *serial(SMALL)), ()),
        (("env=breakout", *serial(SMALL_ATARI)), ()),
        slow(("env=pong", "sticky_actions=0.25", *SMALL_ATARI), ("num_workers=1",)),
    ],
    ids=[
        "catch-serial",
        "catch-1-worker",
        "lstm",
        "ppo",
        "pqn",
        "pqn-lstm",
        "rainbow",
        "sequences",
        "two-learners-measured",
        "counting-wait",
        "breakout-serial",
        "pong-1-worker",
    ],
)
def test_resumed_run_equals_one_that_never_stopped(
    arguments: tuple[str, ...], changes: tuple[str, ...], tmp_path
) -> None:
    whole = tmp_path / "whole"
    run(*arguments, f"run_dir={whole}")
    resumed = forget_last_checkpoint(whole, tmp_path / "resumed")
    run(f"resume={resumed}", *changes)
    assert_same(last_checkpoint(whole), last_checkpoint(resumed))
    for name in ("metrics.csv", "evaluation.csv"):
        if (whole / name).exists():
            assert table(whole / name) == table(resumed / name)
    config = (resumed / "config.yaml").read_text()
    assert "resume: null" in config


def test_run_stopped_by_a_signal_to_all_its_processes_goes_on_exactly(tmp_path) -> None:
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    command = [sys.executable, "-m", "accel_rl", "env=catch", *SMALL, "total_steps=1e9"]
    command.remove("total_steps=2000")
    process = subprocess.Popen(
        [*command, f"run_dir={stopped}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 60
    while not (stopped / "metrics.csv").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM, err
    steps = int(load_checkpoint(list_checkpoints(stopped)[-1])["counts"]["steps"])
    total = steps + 1_000
    run(f"resume={stopped}", f"total_steps={total}")
    options = [each for each in SMALL if not each.startswith("total_steps")]
    run("env=catch", *options, f"total_steps={total}", f"run_dir={whole}")
    expected, found = last_checkpoint(whole), last_checkpoint(stopped)
    assert_same(expected["learner"], found["learner"])
    assert_same(expected["sampler"], found["sampler"])


def test_resumed_run_of_environments_without_state_says_that_they_start_anew(tmp_path) -> None:
    options = [*serial(SMALL)[:-1], "serial=true"]
    run("env=CartPole-v1", *options, f"run_dir={tmp_path}/run")
    result = run(f"resume={tmp_path}/run", "total_steps=3000")
    assert result.status.steps == 3_000
    log = (tmp_path / "run" / "train.log").read_text()
    assert "goes on after 2,000 steps; 4 of 4 environments start new episodes" in log
    steps = [int(row["steps"]) for row in table(tmp_path / "run" / "metrics.csv")]
    assert steps == sorted(set(steps)) and steps[-1] == 3_000


def test_resumed_q_learning_says_that_its_replay_is_empty(tmp_path) -> None:
    options = [each for each in (*serial(SMALL), *Q_LEARNING) if "save_replay" not in each]
    run("algo=dqn", "env=catch", *options, f"run_dir={tmp_path}/run")
    run(f"resume={tmp_path}/run", "total_steps=2400")
    log = (tmp_path / "run" / "train.log").read_text()
    assert "after 2,000 steps with an empty replay, so learning begins again after" in log
    assert "nothing more will be learned" not in log
    run(f"resume={tmp_path}/run", "total_steps=2600")
    log = (tmp_path / "run" / "train.log").read_text()
    assert "nothing more will be learned: learning begins again after 2,650 steps, and tot" in log


@pytest.fixture(scope="module")
def with_replay(tmp_path_factory) -> Path:
    run_dir = tmp_path_factory.mktemp("replay") / "run"
    options = [each for each in serial(SMALL) if not each.startswith(("total", "evaluation"))]
    options += ["env=catch", "total_steps=800", f"run_dir={run_dir}"]
    run("algo=dqn", *options, *Q_LEARNING)
    return run_dir


def test_options_that_messages_ask_to_raise_may_change(with_replay: Path, tmp_path) -> None:
    run_dir = shutil.copytree(with_replay, tmp_path / "run")
    changes = ("final_observation_slots=2", "replay_device=cpu", "learner_timeout_seconds=60")
    result = run(f"resume={run_dir}", "total_steps=960", *changes)
    assert (result.status.steps, result.updates) == (960, 355)  # (960 - 250) * 8 / 16
    store = parse_arguments(["algo=a3c", "env=catch"])
    changed = parse_arguments(["algo=a3c", "env=catch", "on_learner_failure=continue"])
    _refuse_changes(store, changed)


def test_whether_checkpoints_hold_the_replay_may_change(with_replay: Path, tmp_path) -> None:
    """Off, the one that was saved is still loaded; on, there is none to load yet."""
    run_dir = shutil.copytree(with_replay, tmp_path / "run")
    assert run(f"resume={run_dir}", "total_steps=960", "save_replay=false").updates == 355
    assert "replay" not in last_checkpoint(run_dir)["algorithm"]
    resumed = run(f"resume={run_dir}", "total_steps=1920", "save_replay=true")
    assert resumed.updates == 355 + 355  # learning began again after 960 + 250 steps
    assert "goes on after 960 steps with an empty" in (run_dir / "train.log").read_text()
    assert "replay" in last_checkpoint(run_dir)["algorithm"]


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
    assert run(f"resume={run_dir}", "total_steps=960").status.steps == 960


def test_run_saved_without_its_simulators_starts_them_anew(tmp_path, monkeypatch) -> None:
    run_dir = tmp_path / "run"
    arguments = ("env=catch", *serial(SMALL), f"run_dir={run_dir}")
    with monkeypatch.context() as patch:
        get_state = RolloutRun.get_state
        patch.setattr(RolloutRun, "get_state", lambda parts: {**get_state(parts), "sampler": None})
        run(*arguments)
    run(f"resume={run_dir}", "total_steps=2500")
    assert "all environments start new episodes" in (run_dir / "train.log").read_text()


def test_tensorboard_forgets_what_was_written_after_the_checkpoint(tmp_path) -> None:
    whole = tmp_path / "whole"
    run("env=catch", *serial(SMALL), f"run_dir={whole}")
    time.sleep(1)  # events files are named by the second
    resumed = forget_last_checkpoint(whole, tmp_path / "resumed")
    run(f"resume={resumed}")
    events = EventAccumulator(str(resumed)).Reload()
    steps = [event.step for event in events.Scalars("run/updates")]
    assert steps == [int(row["steps"]) for row in table(resumed / "metrics.csv")]


@pytest.mark.parametrize("options", [serial(SMALL), SMALL], ids=["serial", "parallel"])
def test_what_was_learned_is_kept_though_the_simulators_cannot_be_saved(
    options: tuple[str, ...], tmp_path
) -> None:
    run_dir = tmp_path / "run"
    env = f"env={Secretive.__module__}:Secretive"
    with pytest.raises(RunError, match="failed in get_state: TypeError: a Generator cannot be sav"):
        run(env, *(each for each in options if "evaluation" not in each), f"run_dir={run_dir}")
    saved = load_checkpoint(list_checkpoints(run_dir)[-1])
    assert saved["sampler"] is None and saved["counts"]["steps"] == 1_000
