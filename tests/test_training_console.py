"""The console of a run, when whoever read it is gone."""

import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from accel_rl.training.console import LastingConsole, discard
from accel_rl.training.sweep.display import SweepDisplay
from accel_rl.training.sweep.plan import plan_runs
from accel_rl.training.sweep.queue import make_jobs


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


def test_other_failures_of_printing_are_told() -> None:
    with open("/dev/full", "w") as file:
        with pytest.raises(OSError, match="No space left on device"):
            LastingConsole(file=file).print("too much")
        discard(file)  # what is left to be written


def test_console_that_is_read_prints_as_usual() -> None:
    texts = []
    for kind in (Console, LastingConsole):
        file = io.StringIO()
        kind(file=file, width=40).print("[bold]score[/] 3")
        texts.append(file.getvalue())
    assert texts[0] == texts[1] == "score 3\n"
