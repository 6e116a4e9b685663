"""Ends a learner that waits on its GPU for another one that is gone.

A kernel of NCCL whose partner has died never ends, and nor does a main thread that waits for it in
CUDA's code, where Python handles no signals. So another thread looks after the partners.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
from collections.abc import Callable, Mapping

PATIENCE_SECONDS = 5.0
"""for the main thread to notice itself that a learner is gone, before its process is ended"""


class Watcher:
    """A thread that ends this process if another learner has ended and nobody here has noticed.

    Args:
        processes: Descriptors of the other learners' processes (pidfds), by rank.
        has_left: Returns whether a rank that has ended had announced its end.
    """

    def __init__(self, processes: Mapping[int, int], has_left: Callable[[int], bool]) -> None:
        self._running = {descriptor: rank for rank, descriptor in processes.items()}
        self._has_left = has_left
        self._rest = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._watch, name="learner watch", daemon=True)
        self._thread.start()

    def rest(self) -> None:
        """Stop watching: the main thread has noticed, or ends the process itself."""
        if self._rest >= 0:
            os.eventfd_write(self._rest, 1)
            self._thread.join()
            os.close(self._rest)
            self._rest = -1

    def _watch(self) -> None:
        while self._running:
            ended = select.select([self._rest, *self._running], [], [])[0]
            if self._rest in ended:
                return
            for descriptor in ended:
                self._look_at(self._running.pop(descriptor))

    def _look_at(self, rank: int) -> None:
        with contextlib.suppress(Exception):  # the store may be gone, too
            if self._has_left(rank):
                return
        if select.select([self._rest], [], [], PATIENCE_SECONDS)[0]:
            return
        print(f"error: learner {rank} has ended, and this one waits for it", file=sys.stderr)
        sys.stderr.flush()
        os._exit(1)
