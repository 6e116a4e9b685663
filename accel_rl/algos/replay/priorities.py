"""Priorities of what a replay memory holds (Schaul et al. 2016, arXiv:1511.05952)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from accel_rl.algos.replay.memory import Replay
from accel_rl.algos.replay.sequences import SequenceReplay
from accel_rl.algos.replay.spec import runs_of

FAN_OUT = 128
"""children of a node, so that a million leaves need three levels, and each operation a few array
operations a level"""


class SumTree:
    """A tree of sums over priorities, to draw leaves in proportion to them.

    Priorities are 0 at first, and float64, since the sums of a million of them are drawn from.
    """

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


class Priorities:
    """Draws steps of ``replay`` in proportion to ``priority ** alpha``.

    New steps have the priority ``default``. Those that cannot be drawn have 0, and keep it whatever
    is written: overwritten ones, and those that are not valid when they come. One that loses its
    final observation later keeps its own until it is given 0. Each sample comes from an equal share
    of the sum of its own (stratified), with replacement.
    """

    def __init__(self, replay: Replay | SequenceReplay, alpha: float, default: float) -> None:
        self._replay = replay
        self._alpha = alpha
        self._default = default**alpha
        self._tree = SumTree(replay.num_slots * replay.spec.num_envs, replay.device)
        self._low, self._high = replay.low, replay.high

    def follow(self) -> None:
        """Take in what has been appended to the replay since the last time."""
        replay, device = self._replay, self._replay.device
        B = replay.spec.num_envs
        for _, slot, num in runs_of(self._low, replay.low, replay.num_slots):
            self._tree.set_range(slot * B, torch.zeros(num * B, dtype=torch.float64, device=device))
        env = torch.arange(B, device=device)
        for offset, slot, num in runs_of(self._high, replay.high, replay.num_slots):
            first = self._high + offset
            step = torch.arange(first, first + num, device=device).unsqueeze(1)
            valid = replay.are_valid(step.expand(-1, B), env.expand(num, B))
            self._tree.set_range(slot * B, valid.flatten().double() * self._default)
        self._low, self._high = replay.low, replay.high

    def draw(self, num: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Steps and environments, ``[num]`` int64, and their probabilities ``[num]`` float64.

        Where no step can be drawn they are not valid, of probability 1.
        """
        device = self._replay.device
        share = torch.arange(num, dtype=torch.float64, device=device)
        share += torch.rand(num, dtype=torch.float64, generator=generator, device=device)
        total = self._tree.total
        leaf = self._tree.find(share * (total / num))
        B, S = self._replay.spec.num_envs, self._replay.num_slots
        slot = leaf // B
        # The one step in [low, low + S) that lies in this slot.
        step = self._low + (slot - self._low) % S
        probability = torch.where(total > 0, self._tree.get(leaf) / total, 1.0)
        return step, leaf % B, probability

    def update(self, step: Tensor, env: Tensor, priority: Tensor) -> None:
        """Give these steps, ``[n]``, the priorities ``[n]``; with 0 they are drawn no more.

        Steps that have been overwritten since they were drawn stay as they are, and so do those
        whose priority is not finite, as it is once learning has diverged.
        """
        leaf = step % self._replay.num_slots * self._replay.spec.num_envs + env
        before = self._tree.get(leaf)
        is_there = (step >= self._low) & (step < self._high) & (before > 0)
        new = (priority.double() ** self._alpha).masked_fill(priority == 0, 0.0)
        self._tree.set(leaf, torch.where(is_there & new.isfinite(), new, before))

    def get_state(self) -> dict[str, Any]:
        replay = self._replay
        leaves = torch.arange(replay.num_slots * replay.spec.num_envs, device=replay.device)
        return {"leaves": self._tree.get(leaves).cpu(), "low": self._low, "high": self._high}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._tree.set_range(0, state["leaves"].to(self._replay.device))
        self._low, self._high = state["low"], state["high"]
