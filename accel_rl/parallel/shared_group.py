"""All-reduce among the learners of one machine, in memory that they share.

Each learner writes its numbers into a slot of its own. When all have written, each learner adds up
its part of all slots, in the order of the learners, into a common result. When all parts are there,
each learner copies the result. So every number is read from the slots once.

Learners wait for one another by pipes: each writes a mark into the pipes of all others, and sleeps
until its own pipe has a mark of each. The kernel orders memory by that, on x86 and on ARM: a
learner that has read a mark sees what was written before it. Pipes and memory have no names that
could be left behind: others open them through ``/proc/PID/fd/N``.
"""

from __future__ import annotations

import mmap
import os
import select
import sys
from collections.abc import Callable, Sequence
from time import monotonic
from typing import NamedTuple

import torch
from torch import Tensor

from accel_rl.parallel.group import Group, TeamError
from accel_rl.parallel.ranks import TIMEOUT_VARIABLE
from accel_rl.system import shared_memory
from accel_rl.system.registration import register, unregister
from accel_rl.system.shared_memory import round_up

_ALIGNMENT = 64  # numbers: whole cache lines of any type, so that no two learners write to one
_MARK_BYTES = 2  # of the learner's number
_PIPE_BYTES = 4096


class Address(NamedTuple):
    """A learner's process, and its descriptors of its pipe and, of the first, the memory."""

    pid: int
    pipe: int
    memory: int


class SharedGroup(Group):
    """A `Group` of processes, or threads, of one machine.

    Tensors of a GPU go by way of the memory, which is then registered with CUDA.

    Args:
        rank: rank of this learner.
        size: number of learners.
        timeout_seconds: longest wait for another learner.

    Attributes:
        address: this learner, for `connect` in all learners.
    """

    def __init__(self, rank: int, size: int, timeout_seconds: float) -> None:
        assert 0 <= rank < size and size > 1
        self.size = size
        self._rank = rank
        self._timeout_seconds = timeout_seconds
        self._inbox, own = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._memory = shared_memory.create("accel_rl_group") if rank == 0 else -1
        self.address = Address(os.getpid(), own, self._memory)
        self._descriptors = [self._inbox, own, *([self._memory] if rank == 0 else [])]
        self._poll = select.poll()
        self._poll.register(self._inbox, select.POLLIN)
        self._others: dict[int, int] = {}  # their pipes, by rank
        self._processes: dict[int, int] = {}  # ranks, by descriptor of the process
        self._ended: set[int] = set()
        self._num_meetings = 0
        self._num_marks = [0] * size
        self._slot_bytes = 0
        self._map: mmap.mmap | None = None
        self._registered: Tensor | None = None  # all of it, where CUDA could
        self._is_tried = False

    def connect(self, addresses: Sequence[Address]) -> None:
        """Find all learners, by ``addresses`` in order of rank.

        Raises:
            TeamError: one is gone.
        """
        for rank, address in enumerate(addresses):
            if rank == self._rank:
                continue
            try:
                process = self._keep(os.pidfd_open(address.pid))
                pipe = shared_memory.open_of(address.pid, address.pipe, os.O_WRONLY)
                self._others[rank] = self._keep(pipe)
                if rank == 0:
                    memory = shared_memory.open_of(address.pid, address.memory)
                    self._memory = self._keep(memory)
            except OSError as error:
                raise TeamError(
                    f"learner {self._rank} cannot reach learner {rank} (pid {address.pid}): "
                    f"{error.strerror}"
                ) from error
            self._processes[process] = rank
            self._poll.register(process, select.POLLIN)

    def sum_(self, x: Tensor) -> None:
        self._reduce(x, torch.add)

    def maximum_(self, x: Tensor) -> None:
        self._reduce(x, torch.maximum)

    def broadcast_(self, x: Tensor) -> None:
        *slots, _ = self._views(x)
        if self._rank == 0:
            slots[0].copy_(x.view(-1))
        self._meet()
        if self._rank != 0:
            x.view(-1).copy_(slots[0])
        self._meet()  # the slot is used again

    def close(self) -> None:
        """Let go of the others. Calling it again does nothing."""
        self._unregister()
        self._map = None
        shared_memory.close_descriptors(self._descriptors)

    def _reduce(self, x: Tensor, combine: Callable[..., Tensor]) -> None:
        *slots, result = self._views(x)
        slots[self._rank].copy_(x.view(-1))
        self._meet()
        step = round_up(-(-x.numel() // self.size), _ALIGNMENT)
        part = slice(self._rank * step, (self._rank + 1) * step)
        combine(slots[0][part], slots[1][part], out=result[part])
        for slot in slots[2:]:
            combine(result[part], slot[part], out=result[part])
        self._meet()
        # Nobody writes to the result before all have come to the next call's first meeting.
        x.view(-1).copy_(result)

    def _views(self, x: Tensor) -> list[Tensor]:
        """The slots of all and the result, as large as ``x``, flat, on the CPU."""
        if x.nbytes > self._slot_bytes or self._map is None:
            slot_bytes = round_up(max(1, x.nbytes), mmap.ALLOCATIONGRANULARITY)
            num_bytes = (self.size + 1) * slot_bytes
            if self._rank == 0:
                os.posix_fallocate(self._memory, 0, num_bytes)  # fails here, not where it is used
            self._meet()
            self._unregister()
            self._map, self._slot_bytes = mmap.mmap(self._memory, num_bytes), slot_bytes
        if x.is_cuda and not self._is_tried:
            self._is_tried = True
            memory = torch.frombuffer(self._map, dtype=torch.uint8)
            if register(memory, x.device):
                self._registered = memory
        count = self._slot_bytes // x.element_size()
        return [
            torch.frombuffer(self._map, dtype=x.dtype, count=count, offset=start)[: x.numel()]
            for start in range(0, (self.size + 1) * self._slot_bytes, self._slot_bytes)
        ]

    def _unregister(self) -> None:
        """Let go of the memory, of which no copy is under way: each waits until it is done."""
        self._is_tried = False
        if self._registered is not None:
            unregister(self._registered)
            self._registered = None

    def _meet(self) -> None:
        """Wait until all have come here as often as this one.

        Raises:
            TeamError: one has ended, or does not come in time; the message names it.
        """
        self._num_meetings += 1
        mark = self._rank.to_bytes(_MARK_BYTES, sys.byteorder)
        for rank, pipe in self._others.items():
            try:
                os.write(pipe, mark)
            except BrokenPipeError:
                raise TeamError(f"learner {rank} has ended") from None
        deadline = monotonic() + self._timeout_seconds
        while missing := [rank for rank in self._others if self._is_missing(rank)]:
            self._await_marks(deadline - monotonic())
            for rank in self._ended.intersection(missing):
                if self._is_missing(rank):
                    raise TeamError(f"learner {rank} has ended")
            if monotonic() > deadline:
                raise TeamError(
                    f"learner {missing[0]} has not answered within {self._timeout_seconds:g} s; "
                    f"see its part of the log, or raise {TIMEOUT_VARIABLE}"
                )

    def _is_missing(self, rank: int) -> bool:
        return self._num_marks[rank] < self._num_meetings

    def _await_marks(self, seconds: float) -> None:
        """Sleep until there are marks or a learner has ended, and note both."""
        for descriptor, _ in self._poll.poll(max(0, 1000 * seconds)):
            if descriptor != self._inbox:
                self._ended.add(self._processes[descriptor])
                self._poll.unregister(descriptor)
        try:  # in any case: who has ended may have left a mark since the pipe was looked at
            marks = os.read(self._inbox, _PIPE_BYTES)
        except BlockingIOError:
            return
        for i in range(0, len(marks), _MARK_BYTES):
            rank = int.from_bytes(marks[i : i + _MARK_BYTES], sys.byteorder)
            self._num_marks[rank] += 1

    def _keep(self, descriptor: int) -> int:
        self._descriptors.append(descriptor)
        return descriptor
