"""How busy the CPUs and the GPU are with a process and those it has started."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

SAMPLE_SECONDS = 0.25  # between two looks at the GPU, which tells of about as long
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


def wait_for(device: torch.device) -> None:
    """Wait until a GPU has done everything; a CPU has."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


class GpuUse:
    """The mean of what the driver says of the GPU since the last `take`; nothing without one."""

    def __init__(self, device: str) -> None:
        self._is_on = device == "cuda"
        self._looked = 0.0
        self._shares: list[float] = []

    def look(self) -> None:
        """To be called often while it is measured."""
        now = time.perf_counter()
        if not self._is_on or now - self._looked < SAMPLE_SECONDS:
            return
        import torch

        self._looked = now
        try:
            self._shares.append(torch.cuda.utilization() / 100)
        except Exception:  # the driver's library is not there or does not tell: errors of its own
            self._is_on = False

    def take(self) -> dict[str, float]:
        """``gpu_share``, if it is known; starts anew."""
        shares, self._shares = self._shares, []
        return {"gpu_share": sum(shares) / len(shares)} if shares else {}
