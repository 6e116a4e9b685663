"""How busy the CPUs are with a process and those it has started."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int | None = None) -> float:
    """CPU time of process ``pid`` (this one) and all its descendants that live, so far."""
    folder = Path(f"/proc/{pid or os.getpid()}")
    try:
        # Behind the command, which may hold anything, utime and stime are the 12th and 13th.
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        tasks = list((folder / "task").iterdir())
    except OSError:  # it has just ended
        return 0.0
    own = (int(fields[11]) + int(fields[12])) / _TICKS
    return own + sum(cpu_seconds(child) for task in tasks for child in _children(task))


def _children(task: Path) -> list[int]:
    """The processes that this thread has started; none if it has just ended."""
    try:
        return [int(child) for child in (task / "children").read_text().split()]
    except OSError:
        return []
