"""A tree of sums over priorities, to draw leaves in proportion to them.

Each node sums `FAN_OUT` children, so that a million leaves need three levels and each operation a
few array operations a level. float64, because the sums of a million priorities are drawn from.
"""

from __future__ import annotations

import torch
from torch import Tensor

FAN_OUT = 128


class SumTree:
    """``num_leaves`` priorities, at first 0, on ``device``. All operations are on arrays."""

    def __init__(self, num_leaves: int, device: torch.device) -> None:
        self._levels: list[Tensor] = []  # [nodes, FAN_OUT] each, from the leaves to the root
        size = num_leaves
        while not self._levels or len(self._levels[-1]) > 1:
            size = -(-size // FAN_OUT)
            level = torch.zeros(size, FAN_OUT, dtype=torch.float64, device=device)
            self._levels.append(level)

    @property
    def total(self) -> Tensor:
        """The sum of all priorities, 0-d."""
        return self._levels[-1].sum()

    def get(self, index: Tensor) -> Tensor:
        """Priorities ``[n]`` of the leaves ``index``, ``[n]`` int64."""
        return self._levels[0].view(-1)[index]

    def set(self, index: Tensor, priority: Tensor) -> None:
        """Give leaves ``index``, ``[n]`` int64, the priorities ``[n]`` float64, none negative.

        An index may be there more than once, with one priority.
        """
        self._levels[0].view(-1)[index] = priority
        for below, above in zip(self._levels, self._levels[1:], strict=False):
            index = index // FAN_OUT
            above.view(-1)[index] = below[index].sum(1)

    def set_range(self, start: int, priority: Tensor) -> None:
        """Give the leaves from ``start`` on the priorities ``[n]`` float64."""
        stop = start + len(priority)
        self._levels[0].view(-1)[start:stop] = priority
        for below, above in zip(self._levels, self._levels[1:], strict=False):
            start, stop = start // FAN_OUT, -(-stop // FAN_OUT)
            above.view(-1)[start:stop] = below[start:stop].sum(1)

    def find(self, mass: Tensor) -> Tensor:
        """The leaves ``[n]`` at which the running sum of priorities exceeds ``mass``, ``[n]``.

        ``mass``: float64 in [0, total). A leaf of priority 0 is never found, whatever is rounded.
        """
        node = torch.zeros_like(mass, dtype=torch.int64)
        mass = mass.unsqueeze(1)
        for level in reversed(self._levels):
            running = level.index_select(0, node).cumsum(1)  # [n, FAN_OUT]
            child = torch.searchsorted(running, mass, right=True)
            # Rounding may have left the mass at the node's sum or above: its last leaf then.
            last = torch.searchsorted(running, running[:, -1:].contiguous())
            child = torch.minimum(child, last)  # [n, 1]
            before = running.gather(1, (child - 1).clamp_(min=0))
            mass = mass - before.where(child > 0, 0.0)
            node = node * FAN_OUT + child.squeeze(1)
        return node
