"""A system that allows no more processes or threads: one message with what to do."""

import ctypes
import errno
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from tiers import PROCESSES, SLOW, slow_processes

from accel_rl.__main__ import main
from accel_rl.system.processes import NO_MORE_PROCESSES, check_threads, lacks_processes
from accel_rl.training import torch_setup

PR_CAPBSET_DROP = 24
CAPABILITIES = (21, 24)  # CAP_SYS_ADMIN, CAP_SYS_RESOURCE
OPTIONS = ["env=catch", "serial=true", "total_steps=400", "decorrelation_steps=0"]


def refuse_process(*arguments: Any, **options: Any) -> None:
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def refuse_thread(self: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_learners_that_cannot_be_started_are_one_message(tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.setattr(subprocess, "Popen", refuse_process)
    assert main([*OPTIONS, "learners=2", "gpus=0", f"run_dir={tmp_path / 'run'}"]) == 1
    assert capfd.readouterr().err == f"error: {NO_MORE_PROCESSES}\n"


def test_sweep_that_cannot_start_a_run_is_one_message(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(subprocess, "Popen", refuse_process)
    assert main(["sweep", *OPTIONS, "seed=0", f"sweep_dir={tmp_path / 'sweep'}"]) == 1
    assert f"error: {NO_MORE_PROCESSES}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    "more", [["overlap=true"], slow_processes(["algo=ga3c", "num_envs=2", "num_groups=2"])]
)
def test_threads_of_a_run_that_cannot_be_started_are_one_message(
    more: list[str], tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(threading.Thread, "start", refuse_thread)
    given = [each for each in OPTIONS if more == ["overlap=true"] or "serial" not in each]
    assert main([*given, *more, f"run_dir={tmp_path / 'run'}"]) == 1
    assert capsys.readouterr().err.startswith(f"error: {NO_MORE_PROCESSES}")


def test_other_errors_are_not_taken_for_it() -> None:
    assert "ulimit -u" in NO_MORE_PROCESSES
    assert not lacks_processes(BlockingIOError(errno.EAGAIN, "write could not complete"))
    assert not lacks_processes(RuntimeError("out of memory"))


def test_threads_of_libraries_in_c_are_tried_before_they_end_the_program(monkeypatch):
    monkeypatch.setattr(torch_setup, "available_cpus", lambda: [0, 1, 2])
    monkeypatch.setattr(torch_setup, "cpu_quota", lambda: None)
    monkeypatch.setattr(threading.Thread, "start", refuse_thread)
    with pytest.raises(RuntimeError) as caught:
        torch_setup.num_learning_threads()
    assert lacks_processes(caught.value)


def test_threads_that_were_tried_are_gone_afterwards() -> None:
    before = os.listdir("/proc/self/task")
    check_threads(20)
    assert sorted(os.listdir("/proc/self/task")) == sorted(before)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ImportError])
def test_interrupt_by_openblas_without_threads_is_one_message(error, monkeypatch, capfd) -> None:
    """It raises SIGINT while NumPy loads, which may turn it into an ImportError."""

    def load(*_: object) -> None:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise error

    monkeypatch.setattr("accel_rl.cli.run.run", load)
    monkeypatch.setattr(threading.Thread, "start", refuse_thread)
    assert main(["env=catch"]) == 1
    assert capfd.readouterr().err == f"error: {NO_MORE_PROCESSES}\n"


def run_with_few_processes(
    limit: int, command: Sequence[str], folder: Path, openblas_threads: int = 2
) -> subprocess.CompletedProcess[str]:
    """Run Python as a user who may have ``limit`` processes and threads; none may be left.

    The kernel counts the processes of the real user, and exempts root and two capabilities. So the
    real user is one with no other process, the effective user still owns the files, and these
    capabilities are dropped. Where this is not root, it has too many processes already.
    """
    user = 2**20 + os.getpid()

    def become_limited() -> None:
        if os.getuid():
            resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
            return
        for capability in CAPABILITIES:
            if ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0):
                raise PermissionError
        resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
        os.setresuid(user, 0, 0)

    try:
        ended = subprocess.run(
            [sys.executable, *command],
            cwd=folder,
            env={**os.environ, "OPENBLAS_NUM_THREADS": str(openblas_threads)},
            preexec_fn=become_limited,
            capture_output=True,
            text=True,
            timeout=120,
        )
    except subprocess.SubprocessError as error:
        if isinstance(error, subprocess.TimeoutExpired):
            raise
        pytest.skip("this root may not drop capabilities, so that no limit holds for it")
    left = [each for each in psutil.process_iter(["uids"]) if user in (each.info["uids"] or ())]
    assert not left
    return ended


SAMPLER = """
import os, psutil
from accel_rl.samplers import ParallelSampler, SamplerError
before = os.listdir("/proc/self/fd")
try:
    with ParallelSampler("catch", num_envs=4, num_workers=2) as sampler:
        pass
except SamplerError as error:
    print(error)
assert not psutil.Process().children() and os.listdir("/proc/self/fd") == before
"""


@SLOW
@PROCESSES
def test_sampler_under_a_limit_of_processes_is_one_error_and_leaves_nothing(tmp_path) -> None:
    """The first of two workers starts, or none."""
    ended = run_with_few_processes(2, ["-c", SAMPLER], tmp_path, openblas_threads=1)
    assert ended.stdout.startswith("no more processes can be started")
    assert "2 workers; raise `ulimit -u`" in ended.stdout and "serial=true" in ended.stdout
    assert ended.returncode == 0 and not ended.stderr


PARALLEL = ["env=catch", "num_envs=4", "num_workers=2", "horizon=5", "learners=1"]
COMMANDS = {
    "workers": (2, [*PARALLEL, "total_steps=200"]),
    "threads of OpenBLAS": (1, OPTIONS),
    "threads of GA3C": (4, ["env=catch", "algo=ga3c", "num_envs=2", "num_groups=2"]),
    "store of learners": (2, [*OPTIONS, "learners=2", "gpus=0"]),
    "learners": (6, [*OPTIONS, "learners=2", "gpus=0"]),
    "runs of a sweep": (2, ["sweep", *OPTIONS, "seed=0,1"]),
}


@pytest.mark.nightly
@PROCESSES
@pytest.mark.parametrize("name", COMMANDS)
def test_command_under_a_limit_of_processes_says_so_and_leaves_none(name: str, tmp_path) -> None:
    """Learners and runs that fail each say so."""
    limit, arguments = COMMANDS[name]
    place = "sweep_dir=out" if "sweep" in arguments else "run_dir=out"
    ended = run_with_few_processes(limit, ["-m", "accel_rl", *arguments, place], tmp_path)
    foreign = ("OpenBLAS ", "/", "Matplotlib ")  # Matplotlib asks for rights of the real user
    told = [line for line in ended.stderr.splitlines() if not line.startswith(foreign)]
    assert ended.returncode == 1
    assert any("ulimit -u" in line for line in told)
    assert all(re.match("(error|failed): .*ulimit -u|\\(details: ", line) for line in told), told
