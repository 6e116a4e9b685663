"""Whole runs: what they leave behind, how they stop, and how they fail."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from launched_runs import launched, started
from omegaconf import OmegaConf
from run_files import parameters_of, rows_of
from saved_runs import quiet, undrawn

from accel_rl.__main__ import main
from accel_rl.cli.parse import parse_arguments
from accel_rl.runs.checkpoint import list_checkpoints, load_checkpoint
from accel_rl.system.stopping import Interrupted, StopRequest
from accel_rl.training.train import TrainResult, train

pytestmark = pytest.mark.usefixtures("one_torch_thread")

REPOSITORY = Path(__file__).parents[2]
SMALL = {"log_interval": "400", "num_envs": "4", "decorrelation_steps": "10"}


def run(run_dir: Path, *arguments: str) -> TrainResult:
    options = SMALL | dict(each.split("=") for each in arguments) | {"run_dir": str(run_dir)}
    config = parse_arguments([f"{key}={value}" for key, value in options.items()])
    with undrawn():
        return train(config, quiet())


def saved_steps(run_dir: Path) -> int:
    return int(load_checkpoint(list_checkpoints(run_dir)[-1])["counts"]["steps"])


@pytest.mark.parametrize(
    ("env", "num_workers"),
    [
        ("catch", "0"),
        pytest.param("CartPole-v1", "none", marks=[pytest.mark.slow, pytest.mark.processes]),
    ],
)
def test_short_run_leaves_everything_it_promises(env: str, num_workers: str, tmp_path) -> None:
    run_dir = tmp_path / "run"
    result = run(
        run_dir, f"env={env}", "total_steps=1200", "horizon=5", f"num_workers={num_workers}"
    )
    assert (result.run_dir, result.stopped_by) == (run_dir, None)
    assert (result.status.steps, result.updates) == (1200, 60)
    assert 0 < result.status.split.core < 1.1
    files = {path.name.partition(".1")[0] for path in run_dir.iterdir()}
    expected = "config.yaml metrics.csv learning_curve.png train.log checkpoints"
    assert files == {*expected.split(), "events.out.tfevents"}
    steps = [row["steps"] for row in rows_of(run_dir / "metrics.csv")]
    assert steps == ["400", "800", "1200"]
    assert [path.name for path in list_checkpoints(run_dir)] == ["steps_000000001200.pt"]
    config = OmegaConf.load(run_dir / "config.yaml")
    assert (config.env, config.sampler.num_envs, config.total_steps) == (env, 4, 1200)
    log = (run_dir / "train.log").read_text()
    assert re.search(r"accel_rl [\d.]+.* CPUs, load [\d.]+; command: \S*python", log)
    assert "torch" in log and "finished" in log


@pytest.mark.slow
def test_evaluation_plays_on_environments_of_its_own(tmp_path) -> None:
    plain, evaluated = tmp_path / "plain", tmp_path / "evaluated"
    options = ["env=catch", "num_workers=0", "total_steps=200"]
    run(plain, *options)
    run(evaluated, *options, "evaluation_interval=100", "evaluation_steps=50")
    rows = rows_of(evaluated / "evaluation.csv")
    assert [(row["steps"], row["episodes"]) for row in rows] == [("100", "16"), ("200", "16")]
    assert [row["evaluation_steps"] for row in rows] == ["144", "144"]  # nine a game
    assert all(-1 <= float(row["episode_return_raw_mean"]) <= 1 for row in rows)
    for name, parameter in parameters_of(plain).items():
        np.testing.assert_array_equal(parameters_of(evaluated)[name], parameter, err_msg=name)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        [sys.executable, "-m", "accel_rl", "train"],
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "launch/train.py"],
    ],
    ids=["module", "torchrun"],
)
def test_every_way_to_start_trains_and_prints_no_escape_codes(command: list[str], tmp_path) -> None:
    options = ["env=catch", "total_steps=1000", "num_envs=4", "decorrelation_steps=0"]
    options.append(f"run_dir={tmp_path / 'run'}")
    result = subprocess.run(
        [*command, *options], cwd=REPOSITORY, capture_output=True, text=True, timeout=100
    )
    assert result.returncode == 0, result.stderr
    assert "\x1b" not in result.stdout and "this process was forked" not in result.stdout
    assert "100%  1,000 steps" in result.stdout
    assert re.search(r"run +finished", result.stdout)
    assert rows_of(tmp_path / "run" / "metrics.csv")[-1]["steps"] == "1000"


CATCH = ("env=catch", "log_interval=2000", "total_steps=1e9")


def assert_saved_at_the_end(run_dir: Path) -> None:
    assert saved_steps(run_dir) == int(rows_of(run_dir / "metrics.csv")[-1]["steps"])


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "num_workers"),
    [(signal.SIGINT, "none"), (signal.SIGTERM, "0")],
    ids=["ctrl-c-workers", "sigterm-serial"],
)
def test_signal_saves_and_stops(number: signal.Signals, num_workers: str, tmp_path) -> None:
    with launched(tmp_path, *CATCH, f"num_workers={num_workers}", "learners=1") as started:
        started.wait_for_rows(2)
        process = started.process
        workers = psutil.Process(process.pid).children()
        assert bool(workers) == (num_workers == "none")
        process.send_signal(number)
        out, err = process.communicate(timeout=100)
    assert process.returncode == 128 + number
    assert err == ""
    assert f"stopped by {number.name}" in out
    assert not psutil.wait_procs(workers, timeout=60)[1]
    assert_saved_at_the_end(tmp_path)
    assert (tmp_path / "learning_curve.png").stat().st_size > 1_000


@pytest.mark.processes
@pytest.mark.slow
def test_end_of_the_terminal_saves_and_stops(tmp_path) -> None:
    terminal, descriptor = os.openpty()
    # The leader of a session gets the first terminal that it opens.
    options = {"stdin": descriptor, "stdout": descriptor, "stderr": descriptor}
    options["env"] = {**os.environ, "TERM": "xterm"}
    opening = "import fcntl, runpy, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    program = ("-c", f"{opening}runpy.run_module('accel_rl', run_name='__main__')", "train")
    with launched(tmp_path, *CATCH, "learners=1", program=program, **options) as started:
        started.wait_for_rows(2)
        # As a shell does, to the workers, too.
        os.killpg(started.process.pid, signal.SIGHUP)
        os.close(descriptor)
        os.close(terminal)  # as the kernel does then; and nothing can be printed any more
        assert started.process.wait(100) == 128 + signal.SIGHUP
    assert "stopped by SIGHUP" in (tmp_path / "train.log").read_text()
    assert_saved_at_the_end(tmp_path)
    assert load_checkpoint(list_checkpoints(tmp_path)[-1])["sampler"] is not None


def test_end_of_the_terminal_means_nothing_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.processes
def test_second_signal_ends_at_once_by_that_signal() -> None:
    program = (
        "import time\n"
        "from accel_rl.system.stopping import StopRequest\n"
        "with StopRequest() as stop:\n"
        "    stop.hold()\n"
        "    print('ready', flush=True)\n"
        "    while stop.received is None: time.sleep(0.01)\n"
        "    print(stop.received.name, flush=True)\n"
        "    time.sleep(60)\n"
    )
    with started("-c", program) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "SIGINT\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(100) == -signal.SIGTERM


def test_signal_before_the_first_iteration_interrupts_and_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted) as caught, StopRequest():
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    assert caught.value.signal == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_interrupted_start_gives_the_exit_code_of_the_signal(monkeypatch, capfd) -> None:
    def interrupted(*args: Any, **named: Any) -> None:
        raise Interrupted(signal.SIGTERM)

    monkeypatch.setattr("accel_rl.cli.run.train", interrupted)
    assert main(["train", "env=catch", "learners=1"]) == 143
    assert capfd.readouterr().err == "stopped by SIGTERM before training began\n"


@pytest.mark.parametrize(
    "num_workers", ["0", pytest.param("none", marks=[pytest.mark.processes, pytest.mark.slow])]
)
def test_environment_that_raises_ends_the_run_with_one_message(
    num_workers: str, tmp_path, capfd, monkeypatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY), prepend=":")
    run_dir = tmp_path / "run"
    arguments = ["env=toy_envs:BrokenEnv", f"num_workers={num_workers}", f"run_dir={run_dir}"]
    assert main(["train", *arguments, "num_envs=2", "decorrelation_steps=0"]) == 1
    err = capfd.readouterr().err
    assert err.startswith("error: ") and "the simulator broke" in err
    assert f"(details: {run_dir}/train.log)" in err
    assert "Traceback" not in err
    log = (run_dir / "train.log").read_text()
    assert "Traceback" in log
    assert list_checkpoints(run_dir)  # what was learned before is kept
