"""The learners of one run, as each of them sees the others.

Two ways lead from one to another: collective calls of a process group (`torch.distributed`), for
which all must come, and a key-value store, into which anyone writes at any time. The launcher puts
into the environment where that is.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import select
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from accel_rl.parallel.group import Group, TeamError, TorchGroup, first_line
from accel_rl.parallel.ranks import Ranks
from accel_rl.parallel.shared_group import Address, SharedGroup

LOST = "lost"
"""our own launcher sets ``lost/<rank>`` when that learner's process has ended before its time"""
PREFIX = "accel_rl"
"""of all keys in the store"""
STORE_VARIABLE = "ACCEL_RL_STORE"
"""environment variable in which our own launcher says where its store is: host:port"""

_STOP = 2**48
"""more than any number of steps; added to their sum, it asks all to stop"""


_P = ParamSpec("_P")
_R = TypeVar("_R")


def _touching_store(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """``method``, with errors of the store as a `TeamError`: it ends with the launcher."""

    @functools.wraps(method)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return method(*args, **kwargs)
        except dist.DistError as error:
            raise TeamError(f"lost touch with the launcher: {first_line(error)}") from error

    return call


class Team:
    """This learner's ways to the others. Alone (``Ranks()``) it waits for nobody.

    ``store``: keys of all learners; None alone. ``timeout_seconds``: how long any wait for others
    may take.
    """

    def __init__(
        self, ranks: Ranks, store: Store | None = None, timeout_seconds: float = 1800.0
    ) -> None:
        self.ranks = ranks
        self._store = store
        self.timeout_seconds = timeout_seconds
        self.is_stop_asked = False
        self.uses_nccl = False
        self.group: Group | None = None
        self._num_posted = 0
        self._num_read = [0] * ranks.size
        self._processes: dict[int, int] = {}  # descriptors, by rank

    @_touching_store
    def share(self, name: str, value: Any = None) -> Any:
        """What the first learner gave as ``value``, in all of them. Any object that pickles."""
        if self._store is None:
            return value
        if self.ranks.is_first:
            self._store.set(f"share/{name}", pickle.dumps(value))  # type: ignore[arg-type]
            return value
        if not self._wait_for(f"share/{name}", 0):
            raise TeamError("learner 0 has ended")
        return pickle.loads(self._store.get(f"share/{name}"))

    @_touching_store
    def meet(self, name: str) -> None:
        """Waits until all others that are not lost have come to ``name``, which serves once.

        Raises:
            TeamError: one has not, in time; the message names it.
        """
        self.reach(name, 1)
        self.wait_for_all(name, 1)

    @_touching_store
    def reach(self, name: str, count: int, value: int = 0) -> None:
        """Lets the others know that this learner is at ``count`` of ``name``, which only grows."""
        if self._store is not None:
            self._store.set(f"reached/{name}/{self.ranks.rank}", f"{count} {value}")

    @_touching_store
    def wait_for_all(self, name: str, count: int) -> dict[int, int]:
        """Waits until all others that are not lost are at ``count`` of ``name``, or beyond.

        Returns the ``value`` that each of them gave there.

        Raises:
            TeamError: one has not come so far in time; the message names it.
        """
        values = {}
        for rank in range(self.ranks.size):
            key = f"reached/{name}/{rank}"
            if rank != self.ranks.rank and self._wait_for(key, rank, count):
                assert self._store is not None
                values[rank] = int(self._store.get(key).split()[1])
        return values

    def find_failed(self, seconds: float = 5.0) -> tuple[list[int], list[int]]:
        """After a failure: others that have ended, and others that do not say within ``seconds``
        that they have seen it too. Both empty when there is no telling."""
        with contextlib.suppress(TeamError):
            self.reach("failure", 1)
            deadline = time.monotonic() + seconds
            silent = [rank for rank in range(self.ranks.size) if rank != self.ranks.rank]
            while True:
                lost = [rank for rank in silent if self.is_lost(rank)]
                silent = [rank for rank in silent if not self._is_there(f"reached/failure/{rank}")]
                if lost or not silent or time.monotonic() > deadline:
                    return lost, silent
                time.sleep(0.05)
        return [], []

    @_touching_store
    def post(self, message: Any) -> None:
        """Leaves a message for the first learner."""
        assert self._store is not None
        self._store.set(f"post/{self.ranks.rank}/{self._num_posted}", pickle.dumps(message))  # type: ignore[arg-type]
        self._num_posted += 1

    @_touching_store
    def read(self, *, waits: bool) -> dict[int, list[Any]]:
        """Messages of the others since the last call, by rank; for the first learner alone.

        ``waits``: for exactly one of each that is not lost, so that what is read depends on no
        clock; else whatever there is.

        Raises:
            TeamError: one has not come in time.
        """
        messages: dict[int, list[Any]] = {}
        for rank in range(1, self.ranks.size):
            messages[rank] = []
            while self._has(rank) or (waits and self._wait_for(self._next(rank), rank)):
                assert self._store is not None
                messages[rank].append(pickle.loads(self._store.get(self._next(rank))))
                self._store.delete_key(self._next(rank))
                self._num_read[rank] += 1
                if waits:
                    break
        return messages

    @_touching_store
    def add_steps(self, num_steps: int) -> int:
        """Adds to the steps that all learners together have taken; gives their sum.

        The same answer tells whether one has asked to stop: ``is_stop_asked``.
        """
        assert self._store is not None
        total = int(self._store.add("steps", num_steps))
        self.is_stop_asked |= total >= _STOP
        return total % _STOP

    def ask_to_stop(self) -> None:
        """Lets all learners know with their next `add_steps`."""
        if not self.is_stop_asked:
            self.add_steps(_STOP)

    def largest(self, value: int) -> int:
        """The largest of what all learners gave; each must call it as often as the others.

        Raises:
            TeamError: one is gone.
        """
        if self._store is None:
            return value
        assert self.group is not None
        tensor = torch.tensor(value)
        self.group.maximum_(tensor)
        return int(tensor)

    @_touching_store
    def is_lost(self, rank: int) -> bool:
        """Whether that learner has ended before its time."""
        return self._store is not None and self._store.check([f"{LOST}/{rank}"])

    def watch(self) -> None:
        """From here on waits for nobody whose process has ended; all must be on this machine.

        Of launchers only our own tells who is lost.

        Raises:
            TeamError: another learner has not come here in time.
        """
        self.reach("process", 1, os.getpid())
        for rank, pid in self.wait_for_all("process", 1).items():
            with contextlib.suppress(ProcessLookupError):  # lost before there is anything to save
                self._processes[rank] = os.pidfd_open(pid)

    def open_group(self, *, nccl: bool = False) -> None:
        """Opens ``group``, for collective calls.

        With ``nccl`` tensors on a GPU go through NCCL, which needs a GPU for each learner. Without,
        through memory where all learners are on one machine, and through gloo elsewhere, those on a
        GPU by way of the CPU.

        Raises:
            TeamError: the others cannot be reached.
        """
        if self._store is None:
            return
        self.uses_nccl = nccl
        if not nccl and self.ranks.local_size == self.ranks.size:
            self._open_shared()
            return
        try:
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if nccl else "gloo",
                store=PrefixStore("group", self._store),
                rank=self.ranks.rank,
                world_size=self.ranks.size,
                timeout=timedelta(seconds=self.timeout_seconds),
            )
        except RuntimeError as error:  # of torch.distributed, timeouts included
            raise TeamError(
                f"learner {self.ranks.rank} cannot reach the others: {first_line(error)}"
            ) from error
        self.group = TorchGroup()

    @_touching_store
    def _open_shared(self) -> None:
        assert self._store is not None
        group = self.group = SharedGroup(self.ranks.rank, self.ranks.size, self.timeout_seconds)
        self._store.set(f"address/{self.ranks.rank}", pickle.dumps(group.address))  # type: ignore[arg-type]
        addresses: list[Address] = []
        for rank in range(self.ranks.size):
            if not self._wait_for(f"address/{rank}", rank):
                raise TeamError(f"learner {rank} has ended")
            addresses.append(pickle.loads(self._store.get(f"address/{rank}")))
        group.connect(addresses)

    def close(self) -> None:
        """Leaves the group, and watches nobody. Calling it again does nothing.

        Through NCCL all others must do so, too: after a failure they may not.
        """
        if self.group is not None:
            self.group.close()
        self.group = self._store = None
        while self._processes:
            os.close(self._processes.popitem()[1])

    def _next(self, rank: int) -> str:
        return f"post/{rank}/{self._num_read[rank]}"

    def _has(self, rank: int) -> bool:
        return self._store is not None and self._store.check([self._next(rank)])

    def _has_ended(self, rank: int) -> bool:
        """Whether that learner's process has, if it is watched."""
        process = self._processes.get(rank)
        return process is not None and bool(select.select([process], [], [], 0)[0])

    @_touching_store
    def _is_there(self, key: str, count: int = 0) -> bool:
        """Whether ``key`` is there; with ``count``, whether that has been reached."""
        assert self._store is not None
        if not self._store.check([key]):
            return False
        return count == 0 or int(self._store.get(key).split()[0]) >= count

    @_touching_store
    def _wait_for(self, key: str, rank: int, count: int = 0) -> bool:
        """Whether ``key`` is there, after waiting for it; False if its learner is lost."""
        assert self._store is not None
        deadline = time.monotonic() + self.timeout_seconds
        pause = 0.0005
        while not self._is_there(key, count):
            if self.is_lost(rank) or self._has_ended(rank):
                return self._is_there(key, count)  # it may have come so far before its end
            if time.monotonic() > deadline:
                raise TeamError(
                    f"learner {rank} has not answered within {self.timeout_seconds:g} s (it was "
                    f"expected to give {key}); see its part of the log, or raise "
                    "parallel.learner_timeout_seconds"
                )
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
        return True


def meet_by_store(ranks: Ranks, timeout_seconds: float = 1800.0) -> Team:
    """This learner's team, which it can talk to through the store; `Team.open_group` does the rest.

    Raises:
        TeamError: there is no store.
    """
    if ranks.size == 1:
        return Team(ranks)
    try:
        store = _open_store(timedelta(seconds=timeout_seconds))
    except RuntimeError as error:
        raise TeamError(
            f"learner {ranks.rank} finds no store of its launcher: {first_line(error)}"
        ) from error
    return Team(ranks, PrefixStore(PREFIX, store), timeout_seconds)


def _open_store(timeout: timedelta) -> Store:
    if STORE_VARIABLE in os.environ:
        host, _, port = os.environ[STORE_VARIABLE].rpartition(":")
        return TCPStore(host, int(port), is_master=False, timeout=timeout)
    # Public, but without types; the store of torchrun's agent if there is one, else of rank 0.
    store: Store = next(dist.rendezvous("env://", timeout=timeout))[0]  # type: ignore[attr-defined]
    store.set_timeout(timeout)
    return store
