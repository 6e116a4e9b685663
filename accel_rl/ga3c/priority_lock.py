"""A lock that some take before others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class PriorityLock:
    """Who wants it `urgently` gets it before all that want it `in_turn`.

    Locks of the standard library know no order: threads that take one again as soon as they have
    released it may keep another one out for long. Who has it may take it again, `urgently`.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._changes = threading.Condition()
        self._num_urgent = 0  # that wait for it

    @contextmanager
    def urgently(self) -> Iterator[None]:
        """Within, the caller has the lock."""
        self._count(1)
        try:
            self._lock.acquire()
        finally:
            self._count(-1)
        try:
            yield
        finally:
            self._lock.release()

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Likewise."""
        while True:
            with self._changes:
                self._changes.wait_for(lambda: not self._num_urgent)
            with self._lock:
                if not self._num_urgent:  # none came while this one stood in line
                    yield
                    return

    def _count(self, change: int) -> None:
        with self._changes:
            self._num_urgent += change
            self._changes.notify_all()
