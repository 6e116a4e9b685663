"""Locks on the chunks of a parameter store, between processes and between threads.

Each is a lock on one byte of the store's file, of the open-file-description kind. The kernel drops
it when its holder dies, and closing another descriptor of the file does not. It keeps apart
processes that opened the file themselves; threads of one process share its open file, so a mutex
keeps these apart. A process that is forked without exec while a lock is held shares it: start
children otherwise, or before.
"""

from __future__ import annotations

import errno
import io
import os
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")

ROUND_SECONDS = 1e-4
"""sleep after a round in which no lock came free"""

_FLOCK = struct.Struct("hhqqi4x")  # struct flock: type, whence, start, length, pid


class ChunkLocks:
    """One lock for each chunk, tried without blocking.

    Args:
        file: an open of this process's own.
        holders: ``[num_chunks]``, shared: the process that took each lock last, written under it.
            The kernel does not tell who holds a lock of this kind.
        timeout_seconds: longest wait in which no lock comes free.
        name: what the chunks are of, for messages.
    """

    def __init__(
        self,
        file: io.FileIO,
        holders: NDArray[np.int64],
        timeout_seconds: float,
        name: str = "the parameter store",
    ) -> None:
        assert timeout_seconds >= 0
        self._name = name
        self._file = file
        self._holders = holders
        self._timeout_seconds = timeout_seconds
        self._mutexes = [threading.Lock() for _ in holders]

    def visit(self, chunks: Sequence[T]) -> Iterator[tuple[T, float]]:
        """Yield each of ``chunks`` once, under its lock, as the locks come free.

        Never holds two at once; a loop that is left lets go of its lock. With each chunk come the
        seconds that were waited for it.

        Raises:
            TimeoutError: no lock came free for ``timeout_seconds``; it names a chunk and the
                process that holds it.
        """
        waiting = list(range(len(self._mutexes)))
        waited = 0.0
        while waiting:
            began = time.perf_counter()
            left = []
            for index in waiting:
                if not self._take(index):
                    left.append(index)
                    continue
                try:
                    yield chunks[index], waited
                finally:
                    self._release(index)
                waited = 0.0
            if len(left) == len(waiting):
                if waited > self._timeout_seconds:
                    raise TimeoutError(self._describe(left[0]))
                time.sleep(ROUND_SECONDS)
                waited += time.perf_counter() - began
            waiting = left

    def _take(self, chunk: int) -> bool:
        import fcntl  # Windows has none

        mutex = self._mutexes[chunk]
        if not mutex.acquire(blocking=False):
            return False
        wanted = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, chunk, 1, 0)
        try:
            fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, wanted)
        except BaseException as error:
            mutex.release()
            if isinstance(error, OSError) and error.errno in (errno.EAGAIN, errno.EACCES):
                return False  # another process holds it
            raise
        self._holders[chunk] = os.getpid()
        return True

    def _release(self, chunk: int) -> None:
        import fcntl

        lock = _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, chunk, 1, 0)
        try:
            fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, lock)
        finally:
            self._mutexes[chunk].release()

    def _describe(self, chunk: int) -> str:
        pid = int(self._holders[chunk])
        who = "another thread of this process" if pid == os.getpid() else f"process {pid}"
        return (
            f"chunk {chunk} of {self._name} stayed locked for {self._timeout_seconds:g} "
            f"seconds; {who} holds it: see whether it hangs or is stopped, and end it"
        )
