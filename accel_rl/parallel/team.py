"""The learners of one run, as each of them sees the others.

Two ways lead from one to another: collective calls of a process group (`torch.distributed`), for
which all must come, and a key-value store, into which anyone writes at any time. What is written
there is JSON, never a pickle, so reading it executes nothing. Which store that is, says
`accel_rl.parallel.meeting`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from accel_rl.parallel.group import Group, TeamError, TorchGroup, first_line
from accel_rl.parallel.ranks import TIMEOUT_VARIABLE, Ranks
from accel_rl.parallel.shared_group import Address, SharedGroup
from accel_rl.parallel.watcher import Watcher

LOST = "lost"
"""our own launcher sets ``lost/<rank>`` when that learner's process has ended before its time"""

_STOP = 2**48
"""more than any number of steps; added to their sum, it asks all to stop"""


_P = ParamSpec("_P")
_R = TypeVar("_R")


def _touching_store(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Raise errors of the store, which ends with the launcher, as `TeamError`."""

    @functools.wraps(method)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return method(*args, **kwargs)
        except dist.DistError as error:
            raise TeamError(f"lost touch with the launcher: {first_line(error)}") from error

    return call


class Team:
    """Messages and meetings of all learners of a run, as one learner sees them.

    Every wait ends after ``timeout_seconds``, or at once if the learner that is waited for is known
    to have ended. A learner without others waits for nobody.

    Args:
        ranks: the learner's number among all.
        store: torch's key-value store that all learners reach. None: there are no others.
        timeout_seconds: longest wait for others.
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
        self._agreement: Group | None = None  # for what the CPU alone has to know
        self._num_posted = 0
        self._num_read = [0] * ranks.size
        self._processes: dict[int, int] = {}  # descriptors, by rank
        self._watcher: Watcher | None = None

    def share(self, name: str, value: Any = None) -> Any:
        """Return the first learner's value, in all learners.

        Args:
            name: name of the value; use it once.
            value: the value of this learner: None, bool, number, text, or lists and dictionaries
                of these. Only the first learner's counts.
        """
        if self._store is None:
            return value
        if self.ranks.is_first:
            self._write(f"share/{name}", value)
            return value
        return self._read_from(0, f"share/{name}")

    def meet(self, name: str) -> None:
        """Wait until all learners that are not lost have come here.

        Args:
            name: name of the meeting; use it once.

        Raises:
            TeamError: a learner has not come in time; the message names it.
        """
        self.reach(name, 1)
        self.wait_for_all(name, 1)

    def reach(self, name: str, count: int, value: int = 0) -> None:
        """Tell the others how far this learner has come.

        Args:
            name: name of what is counted.
            count: a number that only grows.
            value: sent along with it, for `wait_for_all`.
        """
        if self._store is not None:
            self._write(f"reached/{name}/{self.ranks.rank}", [count, value])

    def wait_for_all(self, name: str, count: int) -> dict[int, int]:
        """Wait until all other learners that are not lost have come as far; see `reach`.

        Args:
            name: name of what is counted.
            count: number that they must have reached.

        Returns:
            The values that they sent along, by rank.

        Raises:
            TeamError: a learner has not come so far in time; the message names it.
        """
        values = {}
        for rank in range(self.ranks.size):
            if rank == self.ranks.rank:
                continue
            if found := self._wait_for(f"reached/{name}/{rank}", rank, count):
                values[rank] = json.loads(found)[1]
        return values

    def find_failed(self, seconds: float = 3.0) -> tuple[list[int], list[int]]:
        """Find the learners that caused a failure.

        Args:
            seconds: how long to wait for the others to notice the failure.

        Returns:
            Learners that have ended, and learners that have not noticed the failure in time. Both
            are empty if nothing is known.
        """
        self.notice()
        with contextlib.suppress(TeamError):
            self.reach("failure", 1)
            deadline = time.monotonic() + seconds
            silent = [rank for rank in range(self.ranks.size) if rank != self.ranks.rank]
            while True:
                silent = [x for x in silent if not self._find(f"reached/failure/{x}")]
                lost = [x for x in silent if self.is_lost(x) or self._has_ended(x)]
                if lost or not silent or time.monotonic() > deadline:
                    return lost, silent
                time.sleep(0.05)
        return [], []

    def notice(self) -> None:
        """Tell the others that this learner knows of a failure or of the end."""
        if self._watcher is not None:
            self._watcher.rest()

    def post(self, message: Any) -> None:
        """Leave a message for the first learner.

        Args:
            message: of the kinds that `share` takes.
        """
        self._write(f"post/{self.ranks.rank}/{self._num_posted}", message)
        self._num_posted += 1

    @_touching_store
    def read(self, *, waits: bool) -> dict[int, list[Any]]:
        """Return the other learners' messages since the last call. Only the first learner calls it.

        Args:
            waits: True: wait for exactly one message of each learner that is not lost. False: take
                what is there.

        Returns:
            Messages by rank.

        Raises:
            TeamError: a message has not come in time.
        """
        messages: dict[int, list[Any]] = {rank: [] for rank in range(1, self.ranks.size)}
        for rank, of_one in messages.items():
            while not (waits and of_one):
                key = f"post/{rank}/{self._num_read[rank]}"
                message = self._wait_for(key, rank) if waits else self._find(key)
                if message is None:
                    break
                assert self._store is not None
                self._store.delete_key(key)
                self._num_read[rank] += 1
                of_one.append(json.loads(message))
        return messages

    @_touching_store
    def add_steps(self, num_steps: int) -> int:
        """Add to the steps that all learners together have taken, and return their sum.

        The same answer tells whether one has asked to stop: ``is_stop_asked``.
        """
        assert self._store is not None
        total = int(self._store.add("steps", num_steps))
        self.is_stop_asked |= total >= _STOP
        return total % _STOP

    def ask_to_stop(self) -> None:
        """Ask all learners to stop. They see it at their next `add_steps`."""
        if not self.is_stop_asked:
            self.add_steps(_STOP)

    def largest(self, value: int) -> int:
        """Return the largest of all learners' numbers. All must call it equally often.

        Args:
            value: the number of this learner.

        Raises:
            TeamError: a learner is gone.
        """
        if self._store is None:
            return value
        group = self._agreement or self.group
        assert group is not None
        tensor = torch.tensor(value)
        group.maximum_(tensor)
        return int(tensor)

    def is_lost(self, rank: int) -> bool:
        """Return True if a learner has ended before its time.

        Args:
            rank: the learner.
        """
        return self._find(f"{LOST}/{rank}") is not None

    def watch(self) -> None:
        """Watch the processes of all learners, which must be on this machine.

        From now on nobody waits for a process that has ended. Without this only our own launcher
        tells who is lost.

        Raises:
            TeamError: another learner has not come here in time.
        """
        self.reach("process", 1, os.getpid())
        for rank, pid in self.wait_for_all("process", 1).items():
            with contextlib.suppress(ProcessLookupError):  # lost before there is anything to save
                self._processes[rank] = os.pidfd_open(pid)

    def open_group(self, *, nccl: bool = False) -> None:
        """Open ``group``, for collective calls.

        Without ``nccl`` tensors travel through shared memory if all learners are on one machine,
        and else through gloo; those of a GPU go by way of the CPU. With NCCL a GPU may wait for a
        learner that has ended. On one machine a watcher thread ends this wait, elsewhere torchrun.

        Args:
            nccl: True: tensors on GPUs travel through NCCL, which needs a GPU for each learner.

        Raises:
            TeamError: the others cannot be reached.
        """
        if self._store is None:
            return
        self.uses_nccl = nccl
        is_one_machine = self.ranks.local_size == self.ranks.size
        if is_one_machine:
            self.watch()  # torchrun does not tell who has ended
            self._agreement = self._open_shared()
            if not nccl:
                self.group = self._agreement
                return
            for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):  # neither knows who connects
                os.environ.setdefault(name, "lo")
        os.environ.setdefault("NCCL_DEBUG", "WARN")  # else it tells nothing of why it fails
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
        if nccl and is_one_machine:
            self._watcher = Watcher(self._processes, self._has_left)

    def _has_left(self, rank: int) -> bool:
        """Whether that learner has come to `close`."""
        return self._find(f"reached/left/{rank}") is not None

    def _open_shared(self) -> SharedGroup:
        group = SharedGroup(self.ranks.rank, self.ranks.size, self.timeout_seconds)
        self._write(f"address/{self.ranks.rank}", group.address)
        ranks = range(self.ranks.size)
        group.connect([Address(*self._read_from(rank, f"address/{rank}")) for rank in ranks])
        return group

    def close(self) -> None:
        """Leave the group, and watch nobody. A second call does nothing.

        With NCCL all learners must leave it, which they may not do after a failure.
        """
        self.notice()
        if self._watcher is not None:
            self.reach("left", 1)
            self._watcher = None
        for group in (self.group, self._agreement):
            if group is not None:
                group.close()
        self.group = self._agreement = self._store = None
        while self._processes:
            os.close(self._processes.popitem()[1])

    def _has_ended(self, rank: int) -> bool:
        process = self._processes.get(rank)
        return process is not None and bool(select.select([process], [], [], 0)[0])

    @_touching_store
    def _write(self, key: str, value: Any) -> None:
        assert self._store is not None
        text = json.dumps(value, separators=(",", ":"), default=np.generic.item)
        self._store.set(key, text)

    @_touching_store
    def _find(self, key: str, count: int = 0) -> bytes | None:
        """Return the value of ``key``; None if missing, or if `reach` wrote less than ``count``."""
        if self._store is None or not self._store.check([key]):
            return None
        found: bytes = self._store.get(key)
        return found if not count or json.loads(found)[0] >= count else None

    def _wait_for(self, key: str, rank: int, count: int = 0) -> bytes | None:
        """Wait for `_find`; return None if the learner that writes the value is lost."""
        deadline = time.monotonic() + self.timeout_seconds
        pause = 0.0005
        while (found := self._find(key, count)) is None:
            if self.is_lost(rank) or self._has_ended(rank):
                return self._find(key, count)  # it may have come so far before its end
            if time.monotonic() > deadline:
                raise TeamError(
                    f"learner {rank} has not answered within {self.timeout_seconds:g} s (it was "
                    f"expected to give {key}); see its part of the log, or raise "
                    f"the environment variable {TIMEOUT_VARIABLE}"
                )
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
        return found

    def _read_from(self, rank: int, key: str) -> Any:
        """Wait for the value that a learner writes under ``key``, and return it."""
        if (found := self._wait_for(key, rank)) is None:
            raise TeamError(f"learner {rank} has ended")
        return json.loads(found)
