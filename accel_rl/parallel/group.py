"""Collective calls of learners in step: sums, maxima and broadcasts."""

from __future__ import annotations

import re
from typing import Protocol

import torch.distributed as dist
from torch import Tensor

from accel_rl.system import functions


class TeamError(RuntimeError):
    """Another learner is gone, or has not answered in time. The message names it if known."""


class Group(Protocol):
    """A group of learners for collective calls.

    All learners make the same calls, in the same order, with contiguous tensors of the same shape.
    A call changes its tensor in place, to the same numbers in all learners, equal to the bit. It
    raises `TeamError` if a learner is gone.

    Attributes:
        size: number of learners.
    """

    size: int

    def sum_(self, x: Tensor) -> None:
        """Replace a tensor by its sum over all learners.

        Args:
            x: the tensor.
        """
        ...

    def maximum_(self, x: Tensor) -> None:
        """Replace a tensor by its maximum over all learners, element by element.

        Args:
            x: the tensor.
        """
        ...

    def broadcast_(self, x: Tensor) -> None:
        """Replace a tensor by the first learner's.

        Args:
            x: the tensor.
        """
        ...

    def close(self) -> None:
        """Leave the group."""
        ...


class TorchGroup(Group):
    """The process group of `torch.distributed`, with gloo or NCCL, over any number of machines.

    With NCCL the GPU itself waits for the other learners. If one is gone, a watcher thread, the
    launcher or NCCL's own timeout ends the wait.
    """

    def __init__(self) -> None:
        self.size = dist.get_world_size()

    def sum_(self, x: Tensor) -> None:
        self._reduce(x, dist.ReduceOp.SUM)

    def maximum_(self, x: Tensor) -> None:
        self._reduce(x, dist.ReduceOp.MAX)

    def broadcast_(self, x: Tensor) -> None:
        try:
            dist.broadcast(x, 0)
        except RuntimeError as error:
            advice = "; in a container, start it with --ipc=host" if x.is_cuda else ""
            raise TeamError(
                f"lost touch with another learner before training: {first_line(error)}{advice}"
            ) from error

    def close(self) -> None:
        """Leave the group. With NCCL all must leave it; do not call this after a failure."""
        dist.destroy_process_group()

    def _reduce(self, x: Tensor, operation: dist.ReduceOp.RedOpType) -> None:
        try:
            dist.all_reduce(x, operation)
        except RuntimeError as error:
            raise TeamError(
                f"lost touch with another learner in an all-reduce: {first_line(error)}"
            ) from error


def first_line(error: Exception) -> str:
    """Return the first line of torch.distributed's ``error``, without source lines and guesses."""
    line = re.sub(r"^\[\S+:\d+\] ", "", functions.first_line(error))
    return line.partition(". This is typically")[0]
