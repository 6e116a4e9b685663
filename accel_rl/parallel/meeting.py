"""The store through which the learners of a run talk.

On one machine the store is anonymous memory (`MachineStore`), which only processes of the same user
can open. Our own launcher makes it. Under other launchers the first learner makes it, and tells the
others where it is through the store of `torch.distributed`, which reaches over a network. Learners
on several machines use only that one. It authenticates nobody; see docs/safety.md.
"""

from __future__ import annotations

import ctypes
import io
import mmap
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import numpy as np
import torch.distributed as dist
from torch.distributed import FileStore, PrefixStore, Store  # type: ignore[attr-defined]

from accel_rl.parallel.group import TeamError, first_line
from accel_rl.parallel.locks import ChunkLocks
from accel_rl.parallel.ranks import Ranks
from accel_rl.parallel.team import Team
from accel_rl.system import shared_memory

PREFIX = "accel_rl"
"""of all keys in a store that is not ours"""
STORE_VARIABLE = "ACCEL_RL_STORE"
"""environment variable in which our own launcher gives the address of its `MachineStore`"""

_SUM_BYTES = 16
_TRY_SECONDS, _PAUSE_SECONDS = 1.0, 0.1
"""for a connection to the store, and until the next try"""


class MachineStore(FileStore):
    """A store for processes of one user on this machine, in memory without a name.

    It keeps all that was ever written, as torch's `FileStore` does in a file. The sum of `add`,
    which learners call in each iteration, takes no more memory. The memory stays open until the
    process ends.

    All calls take one lock. The lock of the file is of torch's, whose wait for a process that was
    stopped with it has no end.

    Args:
        address: address of the store of another process. None: make a new one.
        timeout_seconds: longest wait for the lock.

    Attributes:
        address: argument of this class in other processes, while this process lives.
        network: the store through which the address went. None: it went another way.

    Raises:
        OSError: there is no such store.
        TeamError: another process keeps the lock. All methods raise it.
        ValueError: the address has another form.
    """

    def __init__(self, address: str | None = None, timeout_seconds: float = 1800.0) -> None:
        if address is None:
            messages = shared_memory.create("accel_rl_messages")
            numbers = shared_memory.create("accel_rl_sum", _SUM_BYTES)
        else:
            pid, *descriptors = map(int, address.split(":"))
            messages, numbers = (shared_memory.open_of(pid, each) for each in descriptors)
        self.network: Store | None = None
        self.address = f"{os.getpid()}:{messages}:{numbers}"
        self._sum = np.frombuffer(mmap.mmap(numbers, _SUM_BYTES), np.int64)  # and the lock's holder
        file = io.FileIO(numbers, "r+b", closefd=False)
        self._locks = ChunkLocks(file, self._sum[1:], timeout_seconds, "the learners' store")
        with self._locked():
            super().__init__(f"/proc/self/fd/{messages}", -1)  # opened anew for each access
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))  # its destructor takes the file's lock

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            for _ in self._locks.visit([None]):
                yield
        except TimeoutError as error:
            raise TeamError(str(error)) from error

    def add(self, key: str, value: int) -> int:
        """Add to the one sum that this store has, and return it.

        Args:
            key: name of the sum; it is not looked at.
            value: what is added.
        """
        with self._locked():
            self._sum[0] += value
            return int(self._sum[0])

    def set(self, key: str, value: str) -> None:
        with self._locked():
            super().set(key, value)

    def get(self, key: str) -> bytes:
        with self._locked():
            return super().get(key)

    def check(self, keys: list[str]) -> bool:
        with self._locked():
            return super().check(keys)

    def delete_key(self, key: str) -> bool:
        with self._locked():
            return super().delete_key(key)


def meet_by_store(ranks: Ranks, timeout_seconds: float = 1800.0) -> Team:
    """Return this learner's team, which it can talk to through the store.

    `Team.open_group` does the rest.

    Raises:
        TeamError: there is no store.
    """
    if ranks.size == 1:
        return Team(ranks)
    try:
        store = _open_store(ranks, timeout_seconds)
    except (OSError, RuntimeError, ValueError) as error:
        raise TeamError(
            f"learner {ranks.rank} finds no store of its launcher: {first_line(error)}"
        ) from error
    return Team(ranks, store, timeout_seconds)


def _open_store(ranks: Ranks, timeout_seconds: float) -> Store:
    if address := os.environ.get(STORE_VARIABLE):
        return MachineStore(address, timeout_seconds)
    deadline = time.monotonic() + timeout_seconds
    has_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # which has the store
    if (has_agent or not ranks.is_first) and {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        _wait_for_listener(
            os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout_seconds
        )
    timeout = timedelta(seconds=timeout_seconds)
    # Public, but without types; the store of torchrun's agent if there is one, else of rank 0.
    meeting = dist.rendezvous("env://", ranks.rank, ranks.size, timeout=timeout)  # type: ignore[attr-defined]
    network: Store = PrefixStore(PREFIX, next(meeting)[0])
    network.set_timeout(timeout)
    if ranks.local_size < ranks.size:
        return network
    if ranks.is_first:
        store = MachineStore(None, timeout_seconds)
        network.set("address", store.address)
    else:
        while not network.check(["address"]):  # `get` would wait where signals do nothing
            if time.monotonic() > deadline:
                raise TimeoutError("learner 0 has not come")
            time.sleep(_PAUSE_SECONDS)
        store = MachineStore(network.get("address").decode(), timeout_seconds)
    store.network = network  # it may be in this process, and the others come later
    return store


def _wait_for_listener(host: str, port: int, timeout_seconds: float) -> None:
    """Return when somebody listens there: while torch itself waits for that, signals do nothing."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            socket.create_connection((host, port), _TRY_SECONDS).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"nobody has listened at {host}:{port} within {timeout_seconds:g} s ({error}); "
                    "see whether the launcher and the first learner run"
                ) from error
        time.sleep(_PAUSE_SECONDS)
