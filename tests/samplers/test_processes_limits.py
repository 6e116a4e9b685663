"""A system that allows no more processes or threads: one message with what to do."""

import errno
import os
import subprocess
import threading
from typing import Any

import pytest

from accel_rl.__main__ import main
from accel_rl.processes import NO_MORE_PROCESSES, lacks_processes

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


@pytest.mark.parametrize("more", [["overlap=true"], ["algo=ga3c", "num_envs=2", "num_groups=2"]])
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
