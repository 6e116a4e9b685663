"""Several learners in step: one gradient, averaged over all of them."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch
from torch import Tensor

from accel_rl.parallel.flat import FlatParameters
from accel_rl.parallel.gradient_sync import Local
from accel_rl.parallel.group import Group
from accel_rl.parallel.rules import UpdateRule


class AllReduce(Local):
    """Learners in step: all have the same parameters, and make the same updates.

    One all-reduce gives the mean gradient over the samples of all learners, which is clipped
    afterwards (Stooke and Abbeel 2018, arXiv:1803.02811, section 4). Then each learner applies the
    rule to its own copy of the parameters and the optimizer's state.

    Every call that needs the others raises `TeamError` if one of them is gone.

    Args:
        parameters: parameters and gradients of the network.
        rule: the update rule.
        max_gradient_norm: largest L2 norm of the mean gradient; see `Local`. None: no limit.
        group: the learners.
    """

    def __init__(
        self,
        parameters: FlatParameters,
        rule: UpdateRule,
        max_gradient_norm: float | None,
        group: Group,
    ) -> None:
        super().__init__(parameters, rule, max_gradient_norm)
        self.num_sharing = group.size
        self._weight = parameters.gradient_and_more[parameters.gradient.numel()]
        self._group = group
        self._seconds = 0.0
        group.broadcast_(parameters.parameter)

    def pack(self, weight: Tensor | None) -> None:
        """Multiply the gradient by its weight, which travels behind it."""
        self._weight.fill_(1.0) if weight is None else self._weight.copy_(weight)
        self.parameters.gradient.mul_(self._weight)

    def reduce(self) -> None:
        """Add up the gradients of all learners, all of whom must call this equally often."""
        self._reduce(self._group.sum_, self.parameters.gradient_and_more)

    def apply(self, rate: float | Tensor) -> Tensor:
        """Divide the gradient by the number of samples, and apply it as `Local.apply` does."""
        # Where nobody has a sample, the gradients are 0.
        self.parameters.gradient.div_(torch.where(self._weight > 0, self._weight, 1.0))
        return super().apply(rate)

    def sum(self, x: Tensor) -> Tensor:
        """Return a new tensor; see `GradientSync.sum`."""
        return self._reduce(self._group.sum_, x.clone())

    def maximum(self, x: Tensor) -> Tensor:
        """Return a new tensor; see `GradientSync.maximum`."""
        return self._reduce(self._group.maximum_, x.clone())

    def take_metrics(self) -> dict[str, float]:
        """Return those of `Local.take_metrics`, and ``all_reduce_seconds`` since the last call.

        Waiting counts. On a GPU it is the time to launch all-reduces.
        """
        seconds, self._seconds = self._seconds, 0.0
        return {**super().take_metrics(), "all_reduce_seconds": seconds}

    def _reduce(self, reduce_: Callable[[Tensor], None], x: Tensor) -> Tensor:
        began = perf_counter()
        reduce_(x)
        self._seconds += perf_counter() - began
        return x


def fingerprint(parameters: FlatParameters) -> int:
    """Return a checksum of the parameters, which is equal if they are equal to the bit.

    This waits for the device.

    Args:
        parameters: the parameters.
    """
    bits = parameters.parameter.detach().view(torch.int32)
    weight = torch.arange(1, 2 * len(bits), 2, dtype=torch.int32, device=bits.device)
    plain, weighted = torch.stack((bits.sum(), (bits * weight).sum())).tolist()
    return int((plain << 20 ^ weighted) % 2**62)
