"""Several learners in step: one gradient, averaged over all of them."""

from __future__ import annotations

import zlib
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor

from accel_rl.capture import EAGER, Capture
from accel_rl.parallel.exchange import Local
from accel_rl.parallel.flat import FlatParameters
from accel_rl.parallel.rules import Rule
from accel_rl.parallel.team import TeamError, first_line


class AllReduce(Local):
    """Every learner of the process group has the same parameters, and applies the same update.

    Its gradient is the mean over the samples of all of them: one all-reduce of the flat gradient
    and its weight. It is clipped after that (Stooke and Abbeel 2018, arXiv:1803.02811, section 4),
    and each applies the rule by itself, to its own copy of equal parameters and optimizer state.

    Raises:
        TeamError: from every call that needs the others, when one of them is gone. Through NCCL it
            is the device that waits: the launcher, or NCCL's own timeout, ends such a learner.
    """

    def __init__(
        self,
        parameters: FlatParameters,
        rule: Rule,
        max_gradient_norm: float | None,
        capture: Capture = EAGER,
    ) -> None:
        super().__init__(parameters, rule, max_gradient_norm, capture)
        self.num_sharing = dist.get_world_size()
        self._seconds = 0.0
        try:
            dist.broadcast(parameters.parameter, 0)
        except RuntimeError as error:
            raise TeamError(
                f"lost touch with another learner before training: {first_line(error)}"
            ) from error

    def step(self, lr: float, weight: Tensor | None = None) -> Tensor:
        """As `Exchange.step`; every learner must call it equally often."""
        flat = self.parameters
        total = flat.gradient_and_more[flat.gradient.numel()]  # its weight travels behind it
        total.fill_(1.0) if weight is None else total.copy_(weight)
        flat.gradient.mul_(total)
        self._reduce(flat.gradient_and_more, dist.ReduceOp.SUM)
        # Where nobody has a sample, the gradients are 0.
        flat.gradient.div_(torch.where(total > 0, total, 1.0))
        return super().step(lr)

    def sum(self, x: Tensor) -> Tensor:
        """As `Exchange.sum`, in a tensor of its own."""
        return self._reduce(x.clone(), dist.ReduceOp.SUM)

    def maximum(self, x: Tensor) -> Tensor:
        """As `Exchange.maximum`, in a tensor of its own."""
        return self._reduce(x.clone(), dist.ReduceOp.MAX)

    def take_metrics(self) -> dict[str, float]:
        """``all_reduce_seconds``: spent in all-reduces since the last call, waiting included.

        On a GPU that is the time to launch them.
        """
        seconds, self._seconds = self._seconds, 0.0
        return {"all_reduce_seconds": seconds}

    def _reduce(self, x: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
        began = perf_counter()
        try:
            dist.all_reduce(x, operation)
        except RuntimeError as error:
            raise TeamError(
                f"lost touch with another learner in an all-reduce: {first_line(error)}"
            ) from error
        self._seconds += perf_counter() - began
        return x


def fingerprint(parameters: FlatParameters) -> int:
    """A checksum of the parameters, equal where they are equal to the bit. Waits for the device."""
    return zlib.crc32(parameters.parameter.detach().cpu().numpy().tobytes())
