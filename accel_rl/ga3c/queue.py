"""A bounded queue between threads that can be closed, and a lock that some take before others."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from threading import Condition, RLock
from typing import Generic, TypeVar

from accel_rl.samplers.base import name_error, of_another_process
from accel_rl.system.processes import disown_in_forks

Item = TypeVar("Item", bound=Sized)

_SLICE_SECONDS = 1.0


class QueueClosed(Exception):
    """The queue takes nothing more, or has nothing more to give.

    The message has the error that closed it, if one did.
    """


class ClosableQueue(Generic[Item]):
    """A first-in, first-out queue of at most ``capacity`` items, for any number of threads.

    Items have a length; `take` returns whole items. No item is lost or returned twice. A closed
    queue accepts no items, still returns those that it holds, and wakes all threads that wait. In a
    fork of the process that made it, the queue is closed and empty.
    """

    def __init__(self, capacity: int) -> None:
        assert capacity > 0
        self._capacity = capacity
        self._items: deque[tuple[int, Item]] = deque()  # each with its length
        self._total = 0  # length of all items
        self._changed = Condition()
        self._is_closed = False
        self._closed_by = ""
        disown_in_forks(self)

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self._items)

    @property
    def is_full(self) -> bool:
        """Whether `put` has to wait."""
        return len(self._items) >= self._capacity

    def put(self, items: Sequence[Item], timeout_seconds: float) -> None:
        """Append ``items`` in their order, each as soon as there is room.

        Raises:
            QueueClosed: it was closed; items for which there was no room before are not in it.
            TimeoutError: there was no room within ``timeout_seconds``. Items for which there was no
                room are not in the queue.
        """
        first = 0
        while first < len(items):
            with self._changed:
                self._wait(
                    lambda: len(self._items) < self._capacity or self._is_closed,
                    "full",
                    timeout_seconds,
                )
                if self._is_closed:
                    raise self._closed("takes nothing more")
                fitting = items[first : first + self._capacity - len(self._items)]
                lengths = list(map(len, fitting))
                self._items.extend(zip(lengths, fitting, strict=True))
                self._total += sum(lengths)
                first += len(fitting)
                self._changed.notify_all()

    def take(self, least: int, timeout_seconds: float) -> list[Item]:
        """Wait for and return the first items, as few as have a length of ``least`` together.

        If the queue is full or closed, all its items suffice.

        Raises:
            QueueClosed: the queue was closed and is empty.
            TimeoutError: there were fewer within ``timeout_seconds``.
        """
        with self._changed:
            self._wait(
                lambda: (
                    self._total >= max(least, 1)
                    or len(self._items) == self._capacity
                    or self._is_closed
                ),
                f"short of {least} samples",
                timeout_seconds,
            )
            if not self._items:
                raise self._closed("is empty")
            length, item = self._items.popleft()
            taken = [item]
            while length < least and self._items:
                own, item = self._items.popleft()
                length += own
                taken.append(item)
            self._total -= length
            self._changed.notify_all()
            return taken

    def close(self, error: str = "") -> None:
        """Accept no more items, and wake all threads that wait. A second call does nothing."""
        with self._changed:
            if not self._is_closed:
                self._closed_by = error
            self._is_closed = True
            self._changed.notify_all()

    def disown(self) -> None:
        """Close and empty this in a fork, where other threads may have had the lock."""
        self._changed = Condition()
        self._items.clear()
        self._total, self._is_closed = 0, True
        self._closed_by = name_error(of_another_process(os.getppid()))

    def _closed(self, state: str) -> QueueClosed:
        why = f", after an error ({self._closed_by})," if self._closed_by else ""
        return QueueClosed(f"this queue is closed{why} and {state}")

    def _wait(self, condition: Callable[[], bool], state: str, timeout_seconds: float) -> None:
        left = timeout_seconds
        # In slices, of which one at most ends while this process is stopped (by Ctrl-Z, say).
        while not self._changed.wait_for(condition, min(left, _SLICE_SECONDS)):
            left -= _SLICE_SECONDS
            if left <= 0:
                raise TimeoutError(
                    f"the training queue has been {state} for {timeout_seconds:g} s "
                    f"({len(self._items)} of {self._capacity} segments)"
                )


class PriorityLock:
    """A lock that threads take `urgently` before all threads that take it `in_turn`.

    Locks of the standard library have no order, so threads that take a lock again at once may keep
    another thread out for long. The thread that has this lock may take it again, `urgently`.
    """

    def __init__(self) -> None:
        self._lock = RLock()
        self._changes = Condition()
        self._num_urgent = 0  # that wait for it

    @contextmanager
    def urgently(self) -> Iterator[None]:
        """Hold the lock within, before those that wait `in_turn`."""
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
        """Hold the lock within, when no thread wants it `urgently`."""
        while True:
            with self._changes:
                while self._num_urgent:
                    self._changes.wait()
            with self._lock:
                if not self._num_urgent:  # none came while this one stood in line
                    yield
                    return

    def _count(self, change: int) -> None:
        with self._changes:
            self._num_urgent += change
            self._changes.notify_all()
