"""The console of a run, when whoever read it is gone."""

import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from accel_rl.__main__ import main
from accel_rl.console import LastingConsole
from accel_rl.sweep.display import SweepDisplay
from accel_rl.sweep.plan import plan_runs
from accel_rl.sweep.queue import make_jobs


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


def test_console_that_is_read_prints_as_usual() -> None:
    texts = []
    for kind in (Console, LastingConsole):
        file = io.StringIO()
        kind(file=file, width=40).print("[bold]score[/] 3")
        texts.append(file.getvalue())
    assert texts[0] == texts[1] == "score 3\n"


@pytest.mark.parametrize("name", ["exp[a2c]", "b[/x]"])
def test_summary_shows_a_path_as_it_is(name: str, tmp_path, capsys) -> None:
    options = ["env=catch", "serial=true", "total_steps=80", "num_envs=4", "decorrelation_steps=0"]
    assert main([*options, f"run_dir={tmp_path / name}"]) == 0
    assert name in capsys.readouterr().out.replace("\n", "").replace(" ", "")


def test_output_that_cannot_be_written_ends_no_run(tmp_path, monkeypatch) -> None:
    """A full disk behind it, or an encoding without the bar of the summary."""
    options = ["env=catch", "serial=true", "total_steps=80", "num_envs=4", "decorrelation_steps=0"]
    command = [sys.executable, "-m", "accel_rl", *options]
    with open("/dev/full", "w") as full:
        done = subprocess.run([*command, f"run_dir={tmp_path / '1'}"], stdout=full, timeout=100)
    assert done.returncode == 0
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = subprocess.run(
        [*command, f"run_dir={tmp_path / '2'}"], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0 and "? learning" in done.stdout, done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_help_that_cannot_be_written_is_one_message(arguments: list[str], tmp_path) -> None:
    command = [sys.executable, "-m", "accel_rl", *arguments]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "error: standard output cannot be written: No space left on device\n"


def test_runs_that_lead_nowhere_are_one_message(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs"
    for make in (lambda: runs.symlink_to(tmp_path / "nowhere"), runs.touch):
        make()
        assert main(["env=catch", "serial=true", "total_steps=80", "num_envs=4"]) == 1
        assert "runs/ cannot be made here" in capsys.readouterr().err
        runs.unlink()
