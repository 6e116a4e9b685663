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
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")

ROUND_SECONDS = 1e-4
"""sleep after a round in which no lock came free"""

_FLOCK = struct.Struct("hhqqi4x")  # struct flock: type, whence, start, length, pid


class ChunkLocks:
    """One lock for each chunk, tried without blocking.

    ``file``: an open of this process's own. ``holders`` ``[num_chunks]``: shared; the process that
    took each lock last, written under it. The kernel does not tell who holds a lock of this kind.
    """

    def __init__(self, file: io.FileIO, holders: NDArray[np.int64], timeout_seconds: float) -> None:
        assert timeout_seconds >= 0
        self._file = file
        self._holders = holders
        self._timeout_seconds = timeout_seconds
        self._mutexes = [threading.Lock() for _ in holders]

    def visit(self, chunks: Sequence[T]) -> Generator[T, None, float]:
        """Yield each of ``chunks`` once, under its lock, as the locks come free.

        Never holds two at once; a loop that is left lets go of its lock. Returns the seconds spent
        waiting.

        Raises:
            TimeoutError: no lock came free for ``timeout_seconds``; it names a chunk and the
                process that holds it.
        """
        waiting = list(range(len(self._mutexes)))
        waited = idle = 0.0
        while True:
            began = time.perf_counter()
            left = []
            for index in waiting:
                if not self._take(index):
                    left.append(index)
                    continue
                try:
                    yield chunks[index]
                finally:
                    self._release(index)
            if not left:
                return waited
            if len(left) < len(waiting):
                waiting, idle = left, 0.0
                continue
            if idle > self._timeout_seconds:
                raise TimeoutError(self._describe(left[0]))
            time.sleep(ROUND_SECONDS)
            idle += time.perf_counter() - began
            waited += time.perf_counter() - began

    def visit_ahead(
        self, chunks: Sequence[T]
    ) -> Generator[tuple[T, Callable[[], None]] | None, None, float]:
        """As `visit`, where the next chunk may be taken before the caller is done with the last.

        Yields each chunk under its lock, and what lets go of that lock. None comes before each wait
        and at the end: before the caller goes on, it is to let go of all that it holds. So nobody
        waits for a lock while holding another.
        """
        waiting, held = list(range(len(self._mutexes))), set[int]()
        waited = idle = 0.0

        def let_go(index: int) -> None:
            held.remove(index)
            self._release(index)

        try:
            while waiting:
                began = time.perf_counter()
                index = next((each for each in waiting if self._take(each)), None)
                if index is not None:
                    waiting.remove(index)
                    held.add(index)
                    idle = 0.0
                    yield chunks[index], partial(let_go, index)
                    continue
                yield None
                assert not held
                if idle > self._timeout_seconds:
                    raise TimeoutError(self._describe(waiting[0]))
                time.sleep(ROUND_SECONDS)
                idle += time.perf_counter() - began
                waited += time.perf_counter() - began
            yield None
        finally:
            for index in list(held):
                let_go(index)
        return waited

    def _take(self, chunk: int) -> bool:
        """Take a chunk's lock, unless somebody holds it."""
        mutex = self._mutexes[chunk]
        if not mutex.acquire(blocking=False):
            return False
        try:
            self._set(chunk, locked=True)
        except BaseException as error:
            mutex.release()
            if isinstance(error, OSError) and error.errno in (errno.EAGAIN, errno.EACCES):
                return False  # another process holds it
            raise
        self._holders[chunk] = os.getpid()
        return True

    def _release(self, chunk: int) -> None:
        try:
            self._set(chunk, locked=False)
        finally:
            self._mutexes[chunk].release()

    def _set(self, chunk: int, *, locked: bool) -> None:
        import fcntl  # Windows has none

        kind = fcntl.F_WRLCK if locked else fcntl.F_UNLCK
        fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, chunk, 1, 0))

    def _describe(self, chunk: int) -> str:
        pid = int(self._holders[chunk])
        who = "another thread of this process" if pid == os.getpid() else f"process {pid}"
        return (
            f"chunk {chunk} of the parameter store stayed locked for {self._timeout_seconds:g} "
            f"seconds; {who} holds it: see whether it hangs or is stopped, and end it"
        )
