"""Parameters and optimizer state in memory that all learners of a machine share.

The memory is anonymous (`accel_rl.system.shared_memory`). It has

    words     for each chunk one cache line: version, last holder of the lock, updates of each slot
    chunks    for each chunk two slots ``[K, n]``: K arrays (parameters, then the rule's state)

A chunk's valid slot is ``version % 2``. The holder of the chunk's lock writes all arrays into the
other slot and then counts the version up, so a writer that is killed anywhere loses its own push of
this chunk and nothing else.

Readers take the same lock as writers, for one copy. A message about a time-out names its holder.
The lock also orders memory, on x86 and on ARM: the kernel takes and releases it, so its next holder
sees all that was written before. If a holder was killed, the kernel releases its lock when all its
threads have ended; and the holder wrote in the order of its program, the slot before the version.
Different chunks may be from different moments; that is by design.
"""

from __future__ import annotations

import io
import mmap
import os
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
from accel_rl.system import shared_memory
from accel_rl.system.registration import register, unregister
from accel_rl.system.shared_memory import round_up

_PAGE = mmap.ALLOCATIONGRANULARITY
_VERSION, _HOLDER, _UPDATES = 0, 1, 2  # the last is one word for each slot
_WORDS = 8  # of int64: a cache line


class Chunk:
    """A chunk in shared memory, to be used under its lock alone.

    Its ``elements`` are a slice of the flat vectors, and its two ``slots`` are ``[K, n]`` each.
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
        address: argument of `open`, until this object is closed; of values that JSON can hold.
    """

    def __init__(self, descriptor: int, address: Mapping[str, Any], timeout_seconds: float) -> None:
        self.arrays: tuple[str, ...] = tuple(address["arrays"])
        self.address = {**address, "pid": os.getpid(), "descriptor": descriptor}
        self._file = file = io.FileIO(descriptor, "r+b")
        self._size: int = address["size"]
        self._memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        ranges = _ranges(self._size, address["num_chunks"])
        words = np.frombuffer(self._memory, np.int64, len(ranges) * _WORDS)
        words = words.reshape(-1, _WORDS)
        start = round_up(words.nbytes, _PAGE)
        self.chunks = []
        for index, elements in enumerate(ranges):
            shape = (2, len(self.arrays), elements.stop - elements.start)
            dtype = getattr(torch, address["dtype"])
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
        about: Mapping[str, str],
        num_chunks: int = 3,
        timeout_seconds: float = 60.0,
    ) -> ParameterStore:
        """Return a new store.

        Args:
            flats: the arrays at the start, by name, ``[P]`` each and of one dtype.
            about: what all that open it must agree on, by name.
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
        address = {
            "arrays": list(flats),
            "size": flat.numel(),
            "dtype": str(flat.dtype).removeprefix("torch."),
            "num_chunks": num_chunks,
            "about": about,
        }
        words = len(_ranges(flat.numel(), num_chunks)) * _WORDS * 8
        descriptor = shared_memory.create("accel_rl_store")
        size = round_up(words, _PAGE) + 2 * len(flats) * flat.nbytes
        os.posix_fallocate(descriptor, 0, size)  # fails here, not at the first push
        store = cls(descriptor, address, timeout_seconds)
        store.write(flats, num_updates=0)
        return store

    @classmethod
    def open(
        cls, address: Mapping[str, Any], about: Mapping[str, str], timeout_seconds: float = 60.0
    ) -> ParameterStore:
        """Return a store that another process created.

        Args:
            address: address of the store.
            about: see `create`.
            timeout_seconds: longest wait for a lock.

        Raises:
            ValueError: there is no store, or it is of something else; the message says of what.
        """
        for key, value in about.items():
            if (found := address["about"].get(key)) != value:
                values = "" if key == "parameters" else f": {found}, here {value}"
                raise ValueError(
                    f"the parameter store has other {key} than this learner{values}; start all "
                    f"learners with the same options"
                )
        try:
            descriptor = shared_memory.open_of(address["pid"], address["descriptor"])
        except OSError as error:
            raise ValueError(
                f"there is no parameter store ({error.strerror}); the learner that made it, "
                f"process {address['pid']}, must still run, on this machine and as the same user"
            ) from None
        return cls(descriptor, address, timeout_seconds)

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
    """Return chunks of equal length, up to alignment; fewer if there are not enough elements."""
    length = round_up(-(-size // num_chunks), ALIGNMENT)
    return [slice(start, min(start + length, size)) for start in range(0, size, length)]
