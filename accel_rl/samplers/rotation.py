"""Where the policy computes when it has no core of its own.

On the CPU the policy takes its time from the simulators. Left to the kernel it tends to wake on the
same core again and again; the worker there falls behind, and every group waits for it. A thread
that moves on by one core after each group takes from all alike: on two cores with A3C-Net and 64
environments that is worth 12 % (figures in benchmarks/results/README.md).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol


class MoveOn(Protocol):
    """Takes the calling thread to the next core."""

    def __call__(self) -> None: ...


@contextmanager
def rotation(cores: Iterable[tuple[int, ...]]) -> Iterator[MoveOn]:
    """Within, each call of what it gives moves this thread to the next of ``cores``.

    ``cores``: CPU ids of each. With fewer than two of them the thread stays where it is. Threads
    that are started within inherit the one core, so nothing within should start any.
    """
    distinct = list(dict.fromkeys(cores))
    if len(distinct) < 2:
        yield lambda: None
        return
    before = os.sched_getaffinity(0)
    following = itertools.cycle(distinct)
    try:
        yield lambda: os.sched_setaffinity(0, next(following))
    finally:
        os.sched_setaffinity(0, before)
