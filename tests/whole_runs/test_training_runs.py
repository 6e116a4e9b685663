"""Whole runs: what they leave behind, how they stop, and how they fail."""

import csv
import io
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from omegaconf import OmegaConf
from rich.console import Console
from run_files import parameters_of, rows_of

from accel_rl.__main__ import main
from accel_rl.cli.parse import parse_arguments
from accel_rl.runs.checkpoint import list_checkpoints, load_checkpoint
from accel_rl.stopping import Interrupted, StopRequest
from accel_rl.training.train import RunError, TrainResult, train

pytestmark = pytest.mark.usefixtures("one_torch_thread")

REPOSITORY = Path(__file__).parents[2]
SMALL = {"log_interval": "400", "num_envs": "4", "decorrelation_steps": "10"}


def run(run_dir: Path, *arguments: str) -> TrainResult:
    options = SMALL | dict(each.split("=") for each in arguments) | {"run_dir": str(run_dir)}
    config = parse_arguments([f"{key}={value}" for key, value in options.items()])
    return train(config, Console(file=io.StringIO()))


def saved_steps(run_dir: Path) -> int:
    return int(load_checkpoint(list_checkpoints(run_dir)[-1])["counts"]["steps"])


def start(run_dir: Path, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "accel_rl", *arguments, f"run_dir={run_dir}"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, cwd=REPOSITORY, **(pipes | options))


def wait_for_rows(process: subprocess.Popen[str], run_dir: Path, number: int) -> None:
    deadline = time.monotonic() + 60
    path = run_dir / "metrics.csv"
    while not path.exists() or path.read_text().count("\n") < number + 1:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no metrics after 60 s"
        time.sleep(0.05)


@pytest.mark.parametrize("env", ["catch", "CartPole-v1"])
@pytest.mark.parametrize("serial", ["true", "false"])
def test_short_run_leaves_everything_it_promises(env: str, serial: str, tmp_path) -> None:
    run_dir = tmp_path / "run"
    result = run(run_dir, f"env={env}", "total_steps=2000", f"serial={serial}")
    assert result.run_dir == run_dir
    assert result.stopped_by is None
    assert (result.status.steps, result.updates) == (2000, 100)
    files = {path.name for path in run_dir.iterdir()}
    events = {name for name in files if name.startswith("events.out.tfevents")}
    assert len(events) == 1
    assert files - events == {
        "config.yaml",
        "metrics.csv",
        "learning_curve.png",
        "train.log",
        "checkpoints",
    }
    assert [row["steps"] for row in rows_of(run_dir / "metrics.csv")] == [
        "400",
        "800",
        "1200",
        "1600",
        "2000",
    ]
    assert [path.name for path in list_checkpoints(run_dir)] == ["steps_000000002000.pt"]
    config = OmegaConf.load(run_dir / "config.yaml")
    assert (config.env, config.sampler.num_envs, config.total_steps) == (env, 4, 2000)
    log = (run_dir / "train.log").read_text()
    assert "torch" in log
    assert "finished" in log


def test_short_run_on_atari_counts_frames_and_scores(tmp_path) -> None:
    result = run(
        tmp_path,
        "env=breakout",
        "total_steps=1000",
        "checkpoint_interval=500",
        "num_envs=2",
        "horizon=20",
        "decorrelation_steps=0",
    )
    assert result.status.frame_skip == 4
    last = rows_of(tmp_path / "metrics.csv")[-1]
    assert (last["steps"], last["frames"], last["updates"]) == ("1000", "4000", "25")
    assert int(last["episodes"]) > 0
    assert 0 <= float(last["episode_return_raw_mean"]) < 10
    assert len(list_checkpoints(tmp_path)) == 2


@pytest.mark.parametrize(
    ("precision", "capability", "is_said"),
    [("bfloat16", "AVX2", True), ("bfloat16", "AVX512", False), ("float32", "AVX2", False)],
)
def test_run_says_that_bfloat16_is_slow_on_this_processor(
    precision: str, capability: str, is_said: bool, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    run(tmp_path, "env=catch", "serial=true", "total_steps=400", f"precision={precision}")
    assert ("slower than float32" in (tmp_path / "train.log").read_text()) == is_said


@pytest.mark.parametrize(("total_steps", "is_said"), [(9, True), (15, False)])
def test_rollouts_far_longer_than_the_run_are_told_of(total_steps, is_said, tmp_path) -> None:
    run(tmp_path, "env=catch", "serial=true", f"total_steps={total_steps}", "log_interval=20")
    log = (tmp_path / "train.log").read_text()
    assert f"total_steps={total_steps} is rounded up to 20, whole rollouts" in log
    assert ("a smaller horizon or num_envs takes fewer steps" in log) == is_said


@pytest.mark.parametrize(("num_envs", "is_said"), [(3, True), (4, False)])
def test_run_says_which_num_envs_loads_the_workers_evenly(num_envs, is_said, tmp_path) -> None:
    layout = (f"num_envs={num_envs}", "num_groups=1", "num_workers=2")
    run(tmp_path, "env=catch", "total_steps=60", "decorrelation_steps=0", *layout)
    log = (tmp_path / "train.log").read_text()
    assert ("num_envs=2 or 4 keeps" in log) == is_said


@pytest.mark.parametrize(("num_cores", "is_said"), [(15, True), (7, False)])
def test_run_says_how_many_environments_keep_all_cores_busy(
    num_cores, is_said, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("accel_rl.samplers.sampler.count_workers", lambda *_: num_cores)
    layout = ("num_envs=2", "num_groups=2", "decorrelation_steps=0")
    run(tmp_path, "env=catch", "total_steps=60", *layout)
    log = (tmp_path / "train.log").read_text()
    told = "num_envs=2 keeps at most half of the cores busy; num_envs=30 keeps all busy"
    assert (told in log) == is_said
    assert ("of the cores busy" in log) == is_said


def test_evaluation_plays_on_environments_of_its_own(tmp_path) -> None:
    plain, evaluated = tmp_path / "plain", tmp_path / "evaluated"
    options = ["env=catch", "serial=true", "total_steps=1000"]
    run(plain, *options)
    run(evaluated, *options, "evaluation_interval=500", "evaluation_steps=50", "evaluation_envs=2")
    with (evaluated / "evaluation.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["steps"], row["episodes"]) for row in rows] == [("500", "6"), ("1000", "6")]
    assert [row["evaluation_steps"] for row in rows] == ["54", "54"]  # nine a game
    assert all(-1 <= float(row["episode_return_raw_mean"]) <= 1 for row in rows)
    for name, parameter in parameters_of(plain).items():
        np.testing.assert_array_equal(parameters_of(evaluated)[name], parameter, err_msg=name)


def test_same_seed_gives_the_same_parameters_to_the_bit(tmp_path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run(tmp_path / name, "env=catch", "serial=true", "total_steps=1000", f"seed={seed}")
    a, b, c = (parameters_of(tmp_path / name) for name in "abc")
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)
    assert any((a[name] != c[name]).any() for name in a)


@pytest.mark.parametrize(
    "command",
    [
        [sys.executable, "-m", "accel_rl"],
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


@pytest.mark.parametrize(
    ("number", "serial"),
    [(signal.SIGINT, "false"), (signal.SIGTERM, "true")],
    ids=["ctrl-c-workers", "sigterm-serial"],
)
def test_signal_saves_and_stops_within_seconds(
    number: signal.Signals, serial: str, tmp_path
) -> None:
    run_dir = tmp_path / "run"
    process = start(
        run_dir, "env=catch", "total_steps=1e9", "log_interval=2000", f"serial={serial}"
    )
    wait_for_rows(process, run_dir, 2)
    workers = psutil.Process(process.pid).children()
    assert bool(workers) == (serial == "false")
    sent = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert time.monotonic() - sent < 10
    assert process.returncode == 128 + number
    assert err == ""
    assert f"stopped by {number.name}" in out
    assert not psutil.wait_procs(workers, timeout=5)[1]
    assert saved_steps(run_dir) == int(rows_of(run_dir / "metrics.csv")[-1]["steps"])
    assert (run_dir / "learning_curve.png").stat().st_size > 1_000


def test_run_whose_output_nobody_reads_any_more_saves_all_the_same(tmp_path) -> None:
    run_dir = tmp_path / "run"
    options = ["env=catch", "total_steps=1e9", "log_interval=2000", "serial=true"]
    process = start(run_dir, *options, stderr=subprocess.STDOUT)
    wait_for_rows(process, run_dir, 2)
    assert process.stdout is not None
    process.stdout.close()  # as `| tee` ends by the same Ctrl-C
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert saved_steps(run_dir) == int(rows_of(run_dir / "metrics.csv")[-1]["steps"])


def test_end_of_the_terminal_saves_and_stops(tmp_path) -> None:
    run_dir = tmp_path / "run"
    terminal, descriptor = os.openpty()
    options = ["env=catch", "total_steps=1e9", "log_interval=2000", "learners=1"]
    options.append(f"run_dir={run_dir}")
    # The leader of a session gets the first terminal that it opens.
    opening = ['exec "$@" <"$0" >"$0" 2>&1', os.ttyname(descriptor)]
    process = subprocess.Popen(
        ["sh", "-c", *opening, sys.executable, "-m", "accel_rl", *options],
        text=True,
        cwd=REPOSITORY,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm"},
    )
    wait_for_rows(process, run_dir, 2)
    os.killpg(process.pid, signal.SIGHUP)  # as a shell does; it comes to the workers, too
    os.close(descriptor)
    os.close(terminal)  # as the kernel does then; and nothing can be printed any more
    assert process.wait(30) == 128 + signal.SIGHUP
    assert "stopped by SIGHUP" in (run_dir / "train.log").read_text()
    assert saved_steps(run_dir) == int(rows_of(run_dir / "metrics.csv")[-1]["steps"])
    assert load_checkpoint(list_checkpoints(run_dir)[-1])["sampler"] is not None


def test_end_of_the_terminal_means_nothing_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_second_signal_ends_at_once_by_that_signal() -> None:
    program = (
        "import time\n"
        "from accel_rl.stopping import StopRequest\n"
        "with StopRequest() as stop:\n"
        "    stop.hold()\n"
        "    print('ready', flush=True)\n"
        "    while stop.received is None: time.sleep(0.01)\n"
        "    print(stop.received.name, flush=True)\n"
        "    time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "SIGINT\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=10)
    assert process.returncode == -signal.SIGTERM


def test_signal_before_the_first_iteration_interrupts_and_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Interrupted) as caught, StopRequest():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
    assert caught.value.signal == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_interrupted_start_gives_the_exit_code_of_the_signal(monkeypatch, capfd) -> None:
    def interrupted(*args: Any, **named: Any) -> None:
        raise Interrupted(signal.SIGTERM)

    monkeypatch.setattr("accel_rl.cli.run.train", interrupted)
    assert main(["env=catch", "learners=1"]) == 143
    assert capfd.readouterr().err == "stopped by SIGTERM before training began\n"


@pytest.mark.parametrize("serial", ["true", "false"])
def test_environment_that_raises_ends_the_run_with_one_message(
    serial: str, tmp_path, capfd, monkeypatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY), prepend=":")
    run_dir = tmp_path / "run"
    arguments = ["env=toy_envs:BrokenEnv", f"serial={serial}", f"run_dir={run_dir}"]
    assert main([*arguments, "num_envs=2", "decorrelation_steps=0"]) == 1
    err = capfd.readouterr().err
    assert err.startswith("error: ")
    assert "the simulator broke" in err
    assert f"(details: {run_dir}/train.log)" in err
    assert "Traceback" not in err
    log = (run_dir / "train.log").read_text()
    assert "Traceback" in log
    assert list_checkpoints(run_dir)  # what was learned before is kept


def test_error_in_the_policy_ends_the_run_with_its_kind_and_text(tmp_path, monkeypatch) -> None:
    def broken(*args: Any) -> None:
        raise IndexError("no such action")

    monkeypatch.setattr("accel_rl.agents.PolicyAgent.act", broken)
    with pytest.raises(RunError, match=r"IndexError: no such action .*\n\(details: .*train\.log\)"):
        run(tmp_path, "env=catch", "total_steps=1000")
    assert "Traceback" in (tmp_path / "train.log").read_text()


def test_full_disk_ends_the_run_with_one_message_and_no_half_checkpoint(tmp_path) -> None:
    run_dir = tmp_path / "run"
    limit = 100_000  # bytes a file, which a checkpoint of A3C-Net, 7 MB, exceeds
    process = start(
        run_dir,
        "env=breakout",
        "serial=true",
        "total_steps=160",
        "num_envs=2",
        "decorrelation_steps=0",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    _, err = process.communicate(timeout=100)
    assert process.returncode == 1
    checkpoint = run_dir / "checkpoints" / "steps_000000000160.pt"
    assert err.startswith(f"error: cannot write {checkpoint}: File too large; change that, or")
    assert "Traceback" not in err
    assert list((run_dir / "checkpoints").iterdir()) == []
    assert rows_of(run_dir / "metrics.csv")[-1]["steps"] == "160"
