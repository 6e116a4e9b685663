"""Numbered orders in shared memory, by which a server and its workers take turns: both sides.

One step of one group, whose workers are those with environments in it::

    server                                        workers of the group
    1 writes actions into the rollout
    2 writes command, row, countdown, sequence
    3 wakes those that are not awake   ---------> 4 see that sequence is not done
                                                  5 carry the order out, write done
    7 reads ready, compares done       <--------- 6 count down; the last one writes ready

1. The columns of the group belong to the server.
2. `Orders.release` writes ``command`` and ``row``, adds the number of workers less one to the
   group's ``countdown`` (an eventfd), and then writes ``sequence``. From now on the columns belong
   to the workers.
3. `Orders.wake` writes the ``wake`` eventfd of each worker that is not awake. Once too often does
   no harm.
4. `Waiter.wait` returns the groups whose ``sequence`` differs from what the worker has ``done``.
5. The worker steps its environments, then writes ``done``.
6. `count_down` takes one from ``countdown``. The worker that finds none left writes the ``ready``
   eventfd of the group, so that the server wakes once for a group and not once for each worker.
7. The server reads ``ready`` first and compares ``done`` with the number of the order after it. The
   columns belong to the server again.

Orders are numbered, so a signal too many or too few cannot put the two sides out of step: the
server looks at ``done`` a few times a second, too.

The kernel's lock of an eventfd orders what was written before it and what is read after it, also on
processors that reorder stores (ARM). There a worker is never ``is_awake``, and takes an order only
after it has read its eventfd.
"""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from accel_rl.samplers.block import BlockArrays

STEP = 1
RESET = 2
CLOSE = 3
GET_STATE = 4
CALL = 5

WAIT_FOR_RESET = -1

TIMEOUTS = dict.fromkeys((STEP, GET_STATE), "step_timeout_seconds") | dict.fromkeys(
    (RESET, CLOSE, CALL), "reset_timeout_seconds"
)
"""the member of a `SamplerConfig` that limits the time for each order"""

ORDERS_STORES = platform.machine().lower() in ("x86_64", "amd64", "i686")
"""whether other threads see what a thread writes in the order of its writing"""

AWAKE_SECONDS = 50e-6
"""time for which a worker with a core of its own waits for the next order before it sleeps; to wake
one up takes as long"""


class SharedArrays(NamedTuple):
    """Views of the shared memory, of ``W`` workers and ``G`` groups."""

    block: BlockArrays  # rollout and carry, written by the owner of the columns
    # Written by the server, read by workers.
    command: NDArray[np.int64]  # [G], what to do
    row: NDArray[np.int64]  # [G], at which row to do it
    sequence: NDArray[np.int64]  # [G], number of the last order
    # Written by the worker, read by the server. The pool answers for a worker that starts.
    done: NDArray[np.int64]  # [W, G], the ``sequence`` that was carried out
    has_started: NDArray[np.bool_]  # [W], its environments are reset
    first_steps: NDArray[np.int64]  # [W], random first steps taken
    busy_seconds: NDArray[np.float64]  # [W], time in simulators
    longest_seconds: NDArray[np.float64]  # [W], of the longest order so far
    done_at: NDArray[np.float64]  # [W], end of its last order, by `time.perf_counter`
    is_awake: NDArray[np.uint8]  # [W], it looks at ``sequence`` by itself and needs no signal


class Orders:
    """The server's side: gives orders to groups, and sees which of them were carried out.

    ``members`` are the workers of each group, ``countdown`` its eventfd, a semaphore (None with one
    worker), ``wake`` the eventfds of workers, and ``numbers`` those of the groups' last orders, or
    of the ones that they are about to get.
    """

    def __init__(
        self,
        arrays: SharedArrays,
        members: list[list[int]],
        countdown: Sequence[int | None],
        wake: Sequence[int],
    ) -> None:
        self.members = members
        self.numbers = [0] * len(members)
        self._arrays = arrays
        self._countdown, self._wake = countdown, wake
        # `tolist` and `count` take 0.4 us for 64 workers, `all` of NumPy's 1.6 us.
        self._done = [arrays.done[_as_slice(own), g].data for g, own in enumerate(members)]
        self._is_awake = [arrays.is_awake[_as_slice(own)].data for own in members]
        # Single numbers are read and written in views several times as quickly as in arrays.
        self._command: Any = arrays.command.data
        self._row: Any = arrays.row.data
        self._sequence: Any = arrays.sequence.data

    def release(self, group: int, row: int, command: int) -> None:
        """Order the workers of a group to do ``command`` at ``row``."""
        self._command[group] = command
        self._row[group] = row
        self.number_order(group)
        self.wake(group)

    def wake(self, group: int) -> None:
        """Wake those workers of a group that sleep; once too often does no harm."""
        if ORDERS_STORES:
            fence()
        # One copy of a few bytes: the number of workers that are awake costs nothing.
        awake = self._is_awake[group].tobytes()
        if 0 in awake:
            for worker, is_awake in zip(self.members[group], awake, strict=True):
                if not is_awake:
                    os.eventfd_write(self._wake[worker], 1)

    def number_order(self, group: int) -> None:
        """Begin a group's order by its number, for which all its workers are to count down."""
        countdown = self._countdown[group]
        if countdown is not None:
            os.eventfd_write(countdown, len(self.members[group]) - 1)
        self._sequence[group] = self.numbers[group]

    def owes(self, worker: int, group: int) -> bool:
        """Whether a worker has an order of this group that it has not carried out."""
        arrays, is_member = self._arrays, worker in self.members[group]
        return is_member and bool(arrays.done[worker, group] != arrays.sequence[group])

    def is_ordered(self, group: int) -> bool:
        """Whether its workers can see the last order of a group."""
        return bool(self._sequence[group] == self.numbers[group])

    def is_done(self, group: int) -> bool:
        done: list[int] = self._done[group].tolist()
        return done.count(self.numbers[group]) == len(done)


def awake_seconds(has_cores: bool) -> float | None:
    """Return how long a worker looks for the next order before it sleeps, for a `Waiter`."""
    return (AWAKE_SECONDS if has_cores else 0.0) if ORDERS_STORES else None


class Waiter:
    """The worker's side: waits for orders to its groups, on any processor."""

    def __init__(self, arrays: SharedArrays, worker: int, groups: Sequence[int], wake: int) -> None:
        self._groups, self._wake = groups, wake
        self._sequence: Any = arrays.sequence.data
        self._done: Any = arrays.done[worker].data
        self._num_woken = 0  # orders whose signals were read and that were not taken yet, or more

    def wait(self) -> list[int]:
        """Return the groups that have orders, at least one.

        An order that is seen before its signal is read may be seen without its row and its actions.
        Signals too many, as of orders that a lost worker took, are forgotten.
        """
        while True:
            released = self._find()
            self._num_woken = min(self._num_woken, len(released))
            if self._num_woken >= max(1, len(released)):
                self._num_woken -= len(released)
                return released
            self._num_woken += self._await_signals()

    def _find(self) -> list[int]:
        sequence, done = self._sequence, self._done
        return [group for group in self._groups if sequence[group] != done[group]]

    def _await_signals(self) -> int:
        """Return how many have come; 0 after a signal that an environment handles."""
        try:
            return os.eventfd_read(self._wake)
        except InterruptedError:
            return 0


class SpinningWaiter(Waiter):
    """A `Waiter` that looks at ``sequence`` by itself for a while (with `ORDERS_STORES`).

    Args:
        awake_seconds: how long it looks before it sleeps. Other arguments are those of `Waiter`.
    """

    def __init__(
        self,
        arrays: SharedArrays,
        worker: int,
        groups: Sequence[int],
        wake: int,
        awake_seconds: float,
    ) -> None:
        super().__init__(arrays, worker, groups, wake)
        self._worker, self._awake_seconds = worker, awake_seconds
        self._is_awake: Any = arrays.is_awake.data

    def wait(self) -> list[int]:
        while not (released := self._find()):
            sleeps_at = perf_counter() + self._awake_seconds
            while not released and perf_counter() < sleeps_at:
                released = self._find()
            if released:
                break
            self._is_awake[self._worker] = False
            fence()
            if not self._find():
                self._await_signals()
            self._is_awake[self._worker] = True
        return released


def count_down(countdown: int | None, ready: int) -> None:
    """Take one from ``countdown``; the worker that finds none left says that the group is ready.

    So the server wakes once for a group and not once for each of its workers. Both are eventfds.
    The only worker of a group has no ``countdown``.
    """
    if countdown is None or not take(countdown):
        os.eventfd_write(ready, 1)


def fence() -> None:
    """Let others see what this thread has written before it reads on (with `ORDERS_STORES`)."""
    threading.Lock().acquire()  # an atomic exchange; of one that no other thread can hold


def take(eventfd: int) -> bool:
    """Take what a non-blocking eventfd holds (one, of a semaphore); False if it is empty."""
    try:
        os.eventfd_read(eventfd)
    except BlockingIOError:
        return False
    return True


def _as_slice(workers: list[int]) -> slice:
    """The slice that ``workers``, which are evenly spaced, are."""
    step = workers[1] - workers[0] if len(workers) > 1 else 1
    assert workers == list(range(workers[0], workers[-1] + 1, step))
    return slice(workers[0], workers[-1] + 1, step)
