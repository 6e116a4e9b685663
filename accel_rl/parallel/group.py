"""What learners in step compute together: sums, maxima, and what one of them has for all."""

from __future__ import annotations

import re
from typing import Protocol

import torch.distributed as dist
from torch import Tensor

from accel_rl import functions


class TeamError(RuntimeError):
    """Another learner is gone, or has not answered in time. The message says which, if known."""


class Group(Protocol):
    """Learners that all make the same calls, in the same order, each with as large a tensor.

    ``size``: how many. Every call changes its tensor, which is contiguous, in place, to the same
    numbers to the bit in all of them, and raises `TeamError` when one is gone.
    """

    size: int

    def sum_(self, x: Tensor) -> None: ...

    def maximum_(self, x: Tensor) -> None:
        """Element by element."""
        ...

    def broadcast_(self, x: Tensor) -> None:
        """The first learner's."""
        ...

    def close(self) -> None: ...


class TorchGroup:
    """The process group of `torch.distributed`, by gloo or NCCL, over any number of machines.

    Through NCCL it is the device that waits for a learner that is gone: a `Watcher`, the launcher,
    or NCCL's own timeout ends such a wait.
    """

    def __init__(self) -> None:
        self.size = dist.get_world_size()

    def sum_(self, x: Tensor) -> None:
        """As `Group.sum_`."""
        self._reduce(x, dist.ReduceOp.SUM)

    def maximum_(self, x: Tensor) -> None:
        """As `Group.maximum_`."""
        self._reduce(x, dist.ReduceOp.MAX)

    def broadcast_(self, x: Tensor) -> None:
        """As `Group.broadcast_`."""
        try:
            dist.broadcast(x, 0)
        except RuntimeError as error:
            raise TeamError(
                f"lost touch with another learner before training: {first_line(error)}"
            ) from error

    def close(self) -> None:
        """Leave it. Through NCCL all others must do so, too: after a failure they may not."""
        dist.destroy_process_group()

    def _reduce(self, x: Tensor, operation: dist.ReduceOp.RedOpType) -> None:
        try:
            dist.all_reduce(x, operation)
        except RuntimeError as error:
            raise TeamError(
                f"lost touch with another learner in an all-reduce: {first_line(error)}"
            ) from error


def first_line(error: Exception) -> str:
    """What ``error`` of torch.distributed says, without places in its source and its guesses."""
    line = re.sub(r"^\[\S+:\d+\] ", "", functions.first_line(error))
    return line.partition(". This is typically")[0]
