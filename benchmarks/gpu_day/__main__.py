"""Measure a GPU machine, in a call of at most nine minutes and one of at most four.

    python -m benchmarks.gpu_day call=first|second out=DIR [dry=true] [leanrl=DIR]

README.md beside this file says what each call does. Every step is a program with a time limit; one
that fails or takes too long does not stop the others. DIR gets one file, gpu_day_CALL.tgz, which is
whole at any time: it has the reports and logs so far. The table of the first figures is printed
after each step.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.gpu_day.steps import CALLS, ROOT, Step, make_steps
from benchmarks.gpu_day.targets import read_rows, tabulate
from benchmarks.harness.options import parse

GRACE_SECONDS = 8.0
"""that a step has to end after its limit, before it is killed"""
PACK_SECONDS = 15.0
"""between two versions of the file while a step runs"""
SHOWN_LINES = 40
"""of each step's output that are shown, its last"""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to run."""

    call: str = "first"
    """first or second"""
    out: str = "/tmp/gpu_day"
    """folder for the one file of results"""
    dry: bool = False
    """tiny sizes, and no GPU needed"""
    leanrl: str | None = None
    """folder of LeanRL's scripts, to measure its PPO, too"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps of one call and show the figures; return 1 if a step failed."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parse(Options, given, __doc__)
    out = Path(options.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    deadline, errors = time.monotonic() + CALLS[options.call], []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)

        def pack() -> None:
            pack_whole(work, out / f"gpu_day_{options.call}.tgz")

        for step in make_steps(options.call, work, is_dry=options.dry, leanrl=options.leanrl):
            error = run(step, work / f"{step.name}.log", deadline, pack)
            errors.append(error)
            print(f"{step.name}: {error or 'done'}", flush=True)
            pack()
            if rows := read_rows(work / "first.jsonl"):
                tabulate(rows, Console(width=160))
    return int(any(errors))


def run(
    step: Step, log: Path, deadline: float, pack: Callable[[], None] = lambda: None
) -> str | None:
    """Run a step within its seconds and until ``deadline``, by `time.monotonic`.

    Returns:
        An error in words, None if it succeeded.
    """
    limit = min(step.seconds, deadline - time.monotonic() - GRACE_SECONDS)
    if limit <= 0:
        return "no time was left"
    print(f"=== {step.name}: at most {limit:.0f} s", flush=True)
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    more = {"PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with log.open("wb") as output:
        process = subprocess.Popen(
            step.command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=os.environ | more,
            process_group=0,  # so that what it started ends with it
        )
        error = _wait(process, limit, pack)
    print("\n".join(log.read_text(errors="replace").splitlines()[-SHOWN_LINES:]))
    return error


def pack_whole(folder: Path, path: Path) -> None:
    """Put all files of ``folder`` into ``path``, which is never seen half written."""
    part = path.with_suffix(".part")
    with tarfile.open(part, "w:gz") as archive:
        archive.add(folder, path.stem)
    part.replace(path)


def _wait(process: subprocess.Popen[bytes], limit: float, pack: Callable[[], None]) -> str | None:
    """Wait until a process ends, and end its group at the limit; return what went wrong."""
    end, error = time.monotonic() + limit, None
    while error is None:
        try:
            code = process.wait(min(PACK_SECONDS, max(0.0, end - time.monotonic())))
            error = "" if code == 0 else f"exit status {code}"
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):  # a report is being written
                pack()
            if time.monotonic() >= end:
                error = f"not done after {limit:.0f} s"
                _signal(process, signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE_SECONDS)
    _signal(process, signal.SIGKILL)
    process.wait()
    return error or None


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


if __name__ == "__main__":
    sys.exit(main())
