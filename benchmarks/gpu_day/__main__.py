"""Measure a GPU machine, in three calls of at most ten minutes each.

    python -m benchmarks.gpu_day speed|peers|deep [--dry] [--out DIR] [--leanrl DIR]

README.md beside this file says what each call does. Every step is a program with a time limit; its
output is DIR/NAME.log. A step that fails or takes too long does not stop the others. After each
step the figures of all calls so far are shown beside their targets, and written to
DIR/gpu_day_CALL.json.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.gpu_day.steps import CALLS, ROOT, Step, make_steps
from benchmarks.gpu_day.targets import hold, tabulate
from benchmarks.harness.machine import describe_machine, usable_cores
from benchmarks.harness.report import write_json

CALL_SECONDS = 590.0
"""of one call; a step has at most what is left of them"""
GRACE_SECONDS = 8.0
"""that a step has to end after its limit, before it is killed"""
SHOWN_LINES = 40
"""of each step's output that are shown, its last"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps of one call and show the figures; return 1 if a step failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_day",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("call", choices=CALLS)
    parser.add_argument("--dry", action="store_true", help="tiny sizes, and no GPU needed")
    parser.add_argument("--out", type=Path, default=Path("/tmp/gpu_day"), help="where to write")
    parser.add_argument("--leanrl", help="folder of LeanRL's scripts, to measure its PPO, too")
    given = parser.parse_args(arguments)
    out: Path = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    options = {"call": given.call, "dry": given.dry, "leanrl": given.leanrl}
    report = {"machine": describe_machine(usable_cores()), "options": options, "rows": rows}
    deadline = time.monotonic() + CALL_SECONDS
    for step in make_steps(given.call, out, is_dry=given.dry, leanrl=given.leanrl):
        rows.append(run(step, out / f"{step.name}.log", deadline))
        report["targets"] = hold(out)
        write_json(report, out / f"gpu_day_{given.call}.json")
        tabulate(report, Console(width=None if sys.stdout.isatty() else 120))
    return int(any(row["error"] for row in rows))


def run(step: Step, log: Path, deadline: float) -> dict[str, Any]:
    """Run a step within its seconds and until ``deadline``, by `time.monotonic`.

    Returns:
        Its name, seconds, and an error in words, None if it succeeded.
    """
    began = time.monotonic()
    limit = min(step.seconds, deadline - began - GRACE_SECONDS)
    row: dict[str, Any] = {"name": step.name, "command": list(step.command), "seconds": 0.0}
    if limit <= 0:
        return row | {"error": "no time was left"}
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
        error = _wait(process, limit)
    row |= {"seconds": round(time.monotonic() - began, 1), "error": error}
    lines = log.read_text(errors="replace").splitlines()
    print("\n".join(lines[-SHOWN_LINES:]))
    return row


def _wait(process: subprocess.Popen[bytes], limit: float) -> str | None:
    """Wait until a process ends, and end its group at the limit; return what went wrong."""
    try:
        code = process.wait(limit)
        error = None if code == 0 else f"exit status {code}"
    except subprocess.TimeoutExpired:
        error = f"not done after {limit:.0f} s"
        _signal(process, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
    _signal(process, signal.SIGKILL)
    process.wait()
    return error


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


if __name__ == "__main__":
    sys.exit(main())
