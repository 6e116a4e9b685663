"""The console of a run, when whoever read it is gone."""

import errno
import io
import os
from pathlib import Path
from typing import Any

import pytest
from launched_runs import started
from rich.console import Console

from accel_rl.__main__ import main
from accel_rl.sweeps.display import SweepDisplay
from accel_rl.sweeps.plan import plan_runs
from accel_rl.sweeps.queue import make_jobs
from accel_rl.system.lasting_console import LastingConsole


def closed_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def closed_terminal() -> int:
    terminal, descriptor = os.openpty()
    os.close(terminal)
    return descriptor


@pytest.mark.parametrize("make", [closed_pipe, closed_terminal])
def test_console_that_nobody_reads_falls_silent(make) -> None:
    with os.fdopen(make(), "w") as file:
        console = LastingConsole(file=file)
        console.print("to nobody")
        console.print("to nobody again")
        print("nor this", file=file, flush=True)
        assert os.fstat(file.fileno()).st_rdev == os.stat(os.devnull).st_rdev


def test_sweep_that_nobody_reads_goes_on(tmp_path: Path) -> None:
    (job,) = make_jobs(plan_runs({"env": "catch"}), tmp_path, tmp_path)
    with os.fdopen(closed_pipe(), "w") as file:
        SweepDisplay(LastingConsole(file=file), [job]).tell(job)


def test_full_disk_behind_the_output_is_told_once_and_ends_nothing(capsys) -> None:
    with open("/dev/full", "w") as file:
        console = LastingConsole(file=file)
        for _ in range(3):
            console.print("a line")
    assert capsys.readouterr().err == "output is cut off here: No space left on device\n"


def test_other_failures_of_printing_are_told(monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr(Console, "__exit__", fail)
    with pytest.raises(OSError, match="Bad file descriptor"):
        LastingConsole(file=io.StringIO()).print("a line")


RUN = (
    "train",
    "env=catch",
    "num_workers=0",
    "total_steps=80",
    "num_envs=4",
    "decorrelation_steps=0",
)


def test_summary_shows_a_path_as_it_is(tmp_path, capsys) -> None:
    (tmp_path / "exp[a2c][").mkdir()
    name = "exp[a2c][/x]"
    assert main([*RUN, f"run_dir={tmp_path / name}"]) == 0
    assert name in capsys.readouterr().out.replace("\n", "").replace(" ", "")


def program(*arguments: str, **options: Any) -> tuple[int, str, str]:
    """Exit code and what it said, of accel_rl with these arguments."""
    with started("-m", "accel_rl", *arguments, **options) as process:
        said, errors = process.communicate(timeout=100)
    return process.returncode, said, errors


@pytest.mark.slow
@pytest.mark.processes
def test_output_that_cannot_be_written_ends_no_run(tmp_path) -> None:
    """A full disk behind it, or an encoding without the bar of the summary."""
    with open("/dev/full", "w") as full:
        assert program(*RUN, f"run_dir={tmp_path / '1'}", stdout=full)[0] == 0
    ascii_alone = os.environ | {"PYTHONIOENCODING": "ascii"}
    command = (*RUN, f"run_dir={tmp_path / '2'}")
    code, said, errors = program(*command, env=ascii_alone, is_warm=False)
    assert code == 0 and "? learning" in said, errors


@pytest.mark.processes
@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_help_that_cannot_be_written_is_one_message(argument: str) -> None:
    with open("/dev/full", "w") as full:
        code, _, errors = program(argument, stdout=full)
    assert code == 1
    assert errors == "error: standard output cannot be written: No space left on device\n"


def test_runs_that_lead_nowhere_are_one_message(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs"
    for make in (lambda: runs.symlink_to(tmp_path / "nowhere"), runs.touch):
        make()
        assert main(["train", "env=catch", "num_workers=0", "total_steps=80", "num_envs=4"]) == 1
        assert "runs/ cannot be made here" in capsys.readouterr().err
        runs.unlink()
