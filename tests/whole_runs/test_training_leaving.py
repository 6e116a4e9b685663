"""How learners of several leave the others: after a failure, a signal, or several."""

import os
import re
import signal
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import NoReturn

import psutil
import pytest
from launched_runs import ENDLESS, REPOSITORY, SMALL, launched, wait_for

from accel_rl.cli.run import _run_in_team
from accel_rl.parallel import Ranks, Team
from accel_rl.runs.checkpoint import list_checkpoints
from accel_rl.system.lasting_console import LastingConsole
from accel_rl.system.stopping import LAUNCHER_VARIABLE, StopRequest


@pytest.mark.parametrize("uses_nccl", [False, True])
@pytest.mark.parametrize("error", [ValueError("no such thing"), MemoryError("none left")])
def test_failed_learner_does_not_wait_for_the_others_to_leave_nccl(
    error: Exception, uses_nccl: bool, monkeypatch, capsys
) -> None:
    """What it was is printed before: nothing runs after the process has ended."""
    team, said = Team(Ranks(0, 1)), []
    team.uses_nccl = uses_nccl

    def failing(*_: object, **__: object) -> int:
        raise error

    def end(code: int) -> NoReturn:
        said.append((code, capsys.readouterr().err))
        raise SystemExit(code)

    monkeypatch.setattr("accel_rl.cli.run.end_with_parent", lambda: None)
    monkeypatch.setattr("accel_rl.cli.run.meet_by_store", lambda *_: team)
    monkeypatch.setattr("accel_rl.cli.run.train", failing)
    monkeypatch.setattr(os, "_exit", end)
    is_known = isinstance(error, ValueError)
    ends = SystemExit if uses_nccl else None if is_known else MemoryError
    with pytest.raises(ends) if ends else nullcontext():
        assert _run_in_team(["env=catch"], LastingConsole(), team.ranks) == 1
    if uses_nccl:
        ((code, text),) = said
        assert code == 1 and ("error: no such thing" if is_known else "MemoryError: none") in text


@pytest.mark.parametrize("starter", [LAUNCHER_VARIABLE, "TORCHELASTIC_RUN_ID"])
def test_second_signal_to_a_process_that_another_started_does_not_end_it(
    starter: str, monkeypatch
) -> None:
    monkeypatch.setenv(starter, "1")
    with StopRequest() as stop:
        stop.hold()
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
    assert stop.received == signal.SIGTERM


@pytest.mark.processes
@pytest.mark.slow
def test_no_file_of_the_users_hides_one_of_the_standard_library(tmp_path: Path) -> None:
    (tmp_path / "queue.py").write_text("raise RuntimeError('not that one')")
    program = (str(REPOSITORY / "launch" / "train.py"),)
    options = (*SMALL, "total_steps=80")
    with launched(tmp_path / "run", *options, program=program, cwd=tmp_path, is_warm=False) as run:
        assert run.ends(0) == ""


@pytest.mark.processes
@pytest.mark.slow
def test_job_that_is_stopped_whole_is_saved(tmp_path: Path) -> None:
    """Each learner gets the signal of whoever stops all processes, and that of its launcher."""
    with launched(tmp_path, *SMALL, ENDLESS) as run:
        run.wait_for_rows()
        learners = psutil.Process(run.process.pid).children()
        for process in (run.process, *learners, *learners):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGTERM)
        assert run.ends(128 + signal.SIGTERM) == ""
    assert list_checkpoints(tmp_path)


def states_of(pid: int) -> list[str]:
    """What the kernel says of each thread of a process."""
    return [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]


def is_pending(pid: int, number: signal.Signals) -> bool:
    (mask,) = re.findall(r"^ShdPnd:\s*(\w+)", states_of(pid)[0], re.MULTILINE)
    return bool(int(mask, 16) >> (number - 1) & 1)


@pytest.mark.processes
@pytest.mark.slow
def test_learner_that_dies_while_all_are_stopped_keeps_nobody_waiting(tmp_path: Path) -> None:
    with launched(tmp_path, *SMALL[:-1], "sync=store", ENDLESS) as run:
        run.wait_for_rows()
        dying = run.learner(1)
        dying.suspend()
        wait_for(lambda: all("\nState:\tT" in each for each in states_of(dying.pid)))
        run.process.send_signal(signal.SIGTERM)
        wait_for(lambda: is_pending(dying.pid, signal.SIGTERM), run.process)
        dying.kill()
        errors = run.ends(128 + signal.SIGTERM)
    how = "was killed by SIGKILL while it was stopping"
    assert errors == f"error: learner 1 (pid {dying.pid}) {how}\n"
    assert list_checkpoints(tmp_path)


@pytest.mark.processes
@pytest.mark.slow
def test_learners_that_are_stopped_before_they_listen_are_no_failure(tmp_path: Path) -> None:
    with launched(tmp_path, *SMALL, ENDLESS) as run:
        launcher = psutil.Process(run.process.pid)
        wait_for(lambda: len(launcher.children()) == 2, run.process)
        run.process.send_signal(signal.SIGTERM)
        assert run.ends(128 + signal.SIGTERM) == ""
