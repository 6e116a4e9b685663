"""Parameters and optimizer state in memory that all learners of a machine share.

The memory is anonymous (``memfd_create``): it has no name that could be left behind or taken by two
runs, and goes with its last user. Others open it through ``/proc/PID/fd/N`` of a process that has
it. The file:

    header    what the store is of, as JSON, so that a learner of something else is refused
    words     for each chunk one cache line: version, last holder of the lock, updates of each slot
    chunks    for each chunk two slots ``[K, n]``: K arrays (parameters, then the rule's state)

A chunk's valid slot is ``version % 2``. Whoever holds the chunk's lock writes all arrays into the
other slot and then counts the version up, so a writer that is killed anywhere loses its own push of
this chunk and nothing else.

Readers take the same lock as writers. It is held for one copy, and a message about a time-out can
name who holds it. It also orders memory, on x86 and on ARM: the lock and its
release are the kernel's, so whoever takes it sees all that was written before. That holds for a
holder that was killed, for the kernel drops its lock when all its threads have ended; and what such
a holder wrote, it wrote in the order of its program, the slot before the version. Different chunks
may be from different moments; that is by design.
"""

from __future__ import annotations

import io
import json
import mmap
import os
import re
import struct
import sys
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accel_rl.parallel.flat import ALIGNMENT
from accel_rl.parallel.locks import ChunkLocks
from accel_rl.system.registration import register, unregister

_MAGIC = b"accel_rl parameter store 1\n"
_PREFIX = struct.Struct(f"={len(_MAGIC)}sI")  # then that many bytes of JSON
_PAGE = mmap.ALLOCATIONGRANULARITY
_VERSION, _HOLDER, _UPDATES = 0, 1, 2  # the last is one word for each slot
_WORDS = 8  # of int64: a cache line


class Chunk:
    """A chunk in shared memory, to be used under its lock alone.

    ``elements``: where it lies in the flat vectors, ``n`` of them. ``slots``: two, ``[K, n]`` each.
    """

    def __init__(
        self, index: int, elements: slice, words: NDArray[np.int64], slots: Tensor
    ) -> None:
        self.index = index
        self.elements = elements
        self.slots = slots.unbind()
        self._words = words

    def look(self) -> tuple[int, int]:
        """Return which slot holds the chunk, 0 or 1, and how many updates that has had.

        The other slot is to be written whole before `flip`.
        """
        valid = int(self._words[_VERSION]) % 2
        return valid, int(self._words[_UPDATES + valid])

    def flip(self, num_updates: int) -> None:
        """Make the other slot the valid one."""
        version = int(self._words[_VERSION]) + 1
        self._words[_UPDATES + version % 2] = num_updates
        self._words[_VERSION] = version


class ParameterStore:
    """Parameters and optimizer state in shared memory, in chunks with a lock each.

    One process calls `create`, and the others `open`. Threads may share one object. Only the holder
    of a chunk's lock writes into the chunk.

    Attributes:
        arrays: names of the ``K`` arrays.
        chunks: the chunks, at most as many as were asked for.
        address: argument of `open`, on this machine, until this object is closed.
    """

    def __init__(self, file: io.FileIO, header: Mapping[str, Any], timeout_seconds: float) -> None:
        self.arrays: tuple[str, ...] = tuple(header["arrays"])
        self.address = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        self._file = file
        self._size: int = header["size"]
        self._memory = mmap.mmap(file.fileno(), os.fstat(file.fileno()).st_size)
        ranges = _ranges(self._size, header["num_chunks"])
        start: int = header["start"]
        words = np.frombuffer(self._memory, np.int64, len(ranges) * _WORDS, start)
        words = words.reshape(-1, _WORDS)
        start = _round_up(start + words.nbytes, _PAGE)
        self.chunks = []
        for index, elements in enumerate(ranges):
            shape = (2, len(self.arrays), elements.stop - elements.start)
            dtype = getattr(torch, header["dtype"])
            slots = torch.frombuffer(
                self._memory, dtype=dtype, count=int(np.prod(shape)), offset=start
            ).view(shape)
            self.chunks.append(Chunk(index, elements, words[index], slots))
            start += slots.nbytes
        self._locks = ChunkLocks(file, words[:, _HOLDER], timeout_seconds)
        weakref.finalize(self, file.close)

    @classmethod
    def create(
        cls,
        flats: Mapping[str, Tensor],
        about: Mapping[str, Any],
        num_chunks: int = 3,
        timeout_seconds: float = 60.0,
    ) -> ParameterStore:
        """Return a new store.

        Args:
            flats: the arrays at the start, by name, ``[P]`` each and of one dtype.
            about: what all that open it must agree on, by name, as JSON can hold it.
            num_chunks: number of chunks.
            timeout_seconds: longest wait for a lock.

        Raises:
            ValueError: ``num_chunks`` is below 1, or this is not Linux.
        """
        if not hasattr(os, "memfd_create"):
            raise ValueError(
                f"sync=store needs Linux, and this is {sys.platform}; use sync=all_reduce"
            )
        if num_chunks < 1:
            raise ValueError(f"num_chunks is {num_chunks}; it must be at least 1")
        flat = next(iter(flats.values()))
        header = {
            "arrays": list(flats),
            "size": flat.numel(),
            "dtype": str(flat.dtype).removeprefix("torch."),
            "num_chunks": num_chunks,
            "about": about,
        }
        text = json.dumps(header).encode()
        start = _round_up(_PREFIX.size + len(text), _PAGE)
        words = len(_ranges(flat.numel(), num_chunks)) * _WORDS * 8
        size = _round_up(start + words, _PAGE) + 2 * len(flats) * flat.nbytes
        file = io.FileIO(os.memfd_create("accel_rl_store", os.MFD_CLOEXEC), "r+b")
        os.posix_fallocate(file.fileno(), 0, size)  # fails here, not at the first push
        os.pwrite(file.fileno(), _PREFIX.pack(_MAGIC, len(text)) + text, 0)
        store = cls(file, header | {"start": start}, timeout_seconds)
        store.write(flats, num_updates=0)
        return store

    @classmethod
    def open(
        cls, address: str, about: Mapping[str, Any], timeout_seconds: float = 60.0
    ) -> ParameterStore:
        """Return a store that another process created.

        Args:
            address: address of the store.
            about: see `create`.
            timeout_seconds: longest wait for a lock.

        Raises:
            ValueError: there is no store, or it is of something else; the message says of what.
        """
        file = _open_file(address)
        try:
            header = _read_header(file, address)
            for key, value in json.loads(json.dumps(about)).items():
                if (found := header["about"].get(key)) != value:
                    values = "" if isinstance(value, dict) else f": {found}, here {value}"
                    raise ValueError(
                        f"the parameter store at {address} has other {key} than this learner"
                        f"{values}; start all learners with the same options"
                    )
        except Exception:
            file.close()
            raise
        return cls(file, header, timeout_seconds)

    def visit(self) -> Iterator[tuple[Chunk, float]]:
        """Yield each chunk once, under its lock, as the locks come free; see `ChunkLocks.visit`."""
        return self._locks.visit(self.chunks)

    def read(self) -> tuple[dict[str, Tensor], int]:
        """Return copies of all arrays, ``[P]`` each, and the largest number of updates of a chunk.

        Each chunk is consistent; chunks may be from different moments.
        """
        flats = torch.empty(len(self.arrays), self._size, dtype=self.chunks[0].slots[0].dtype)
        most_updates = 0
        for chunk, _ in self.visit():
            valid, num_updates = chunk.look()
            flats[:, chunk.elements].copy_(chunk.slots[valid])
            most_updates = max(most_updates, num_updates)
        return dict(zip(self.arrays, flats, strict=True)), most_updates

    def write(self, flats: Mapping[str, Tensor], num_updates: int) -> None:
        """Overwrite all arrays.

        Args:
            flats: the arrays by name, ``[P]`` each.
            num_updates: number of updates that they have had.
        """
        for chunk, _ in self.visit():
            valid, _ = chunk.look()
            for row, name in zip(chunk.slots[1 - valid], self.arrays, strict=True):
                row.copy_(flats[name][chunk.elements])
            chunk.flip(num_updates)

    def pin(self, device: torch.device) -> None:
        """Register the memory with CUDA, so that copies to a GPU need no staging.

        Args:
            device: the GPU.
        """
        memory = torch.frombuffer(self._memory, dtype=torch.uint8)
        if memory.is_pinned():
            return
        if register(memory, device):
            weakref.finalize(self, unregister, memory)

    def close(self) -> None:
        """Close the store: no lock can be taken any more. A second call does nothing."""
        self._file.close()


def _ranges(size: int, num_chunks: int) -> list[slice]:
    """Chunks of equal length, up to alignment; fewer where there is not enough for all."""
    length = _round_up(-(-size // num_chunks), ALIGNMENT)
    return [slice(start, min(start + length, size)) for start in range(0, size, length)]


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _open_file(address: str) -> io.FileIO:
    if not re.fullmatch(r"/proc/\d+/fd/\d+", address):
        raise ValueError(
            f"{address!r} is no address of a parameter store; it looks like /proc/PID/fd/N"
        )
    try:
        return io.FileIO(address, "r+b")
    except OSError as error:
        raise ValueError(
            f"there is no parameter store at {address} ({error.strerror}); the learner that made "
            f"it must still run, on this machine and as the same user"
        ) from None


def _read_header(file: io.FileIO, address: str) -> dict[str, Any]:
    try:
        magic, length = _PREFIX.unpack(os.pread(file.fileno(), _PREFIX.size, 0))
    except (OSError, struct.error):
        magic, length = b"", 0
    if magic != _MAGIC:
        raise ValueError(
            f"what lies at {address} is no parameter store of this version of accel_rl; take the "
            f"address from a learner of the same run"
        )
    header = json.loads(os.pread(file.fileno(), length, _PREFIX.size))
    return {**header, "start": _round_up(_PREFIX.size + length, _PAGE)}
