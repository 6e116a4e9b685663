"""Priorities of what a replay memory holds (Schaul et al. 2016, arXiv:1511.05952)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from accel_rl.algos.replay.spec import ReplaySpec
from accel_rl.algos.replay.sum_tree import SumTree


class Drawable(Protocol):
    """A replay of single steps, or one of sequences, which then count as the steps do here.

    Attributes:
        spec: What it holds.
        device: Where it lies.
        num_slots: Places of each environment.
        low: Number of the first step that can be drawn.
        high: Number behind the last one.
    """

    spec: ReplaySpec
    device: torch.device

    @property
    def num_slots(self) -> int: ...

    @property
    def low(self) -> int: ...

    @property
    def high(self) -> int: ...

    def are_valid(self, step: Tensor, env: Tensor) -> Tensor:
        """Which steps, of one shape with ``env``, count for something, bool."""
        ...


class Priorities:
    """Draws steps of ``replay`` in proportion to ``priority ** alpha``.

    New steps have the priority ``default``. Those that cannot be drawn have 0, and keep it whatever
    is written: overwritten ones, and those that are not valid when they come. One that loses its
    final observation later keeps its own until it is given 0. Each sample comes from an equal share
    of the sum of its own (stratified), with replacement.
    """

    def __init__(self, replay: Drawable, alpha: float, default: float) -> None:
        self._replay = replay
        self._alpha = alpha
        self._default = default**alpha
        self._tree = SumTree(replay.num_slots * replay.spec.num_envs, replay.device)
        self._low, self._high = replay.low, replay.high

    def follow(self) -> None:
        """Take in what has been appended to the replay since the last time."""
        replay, device = self._replay, self._replay.device
        B = replay.spec.num_envs
        for start, stop in self._runs(self._low, replay.low):
            zeros = torch.zeros((stop - start) * B, dtype=torch.float64, device=device)
            self._tree.set_range(start * B, zeros)
        env = torch.arange(B, device=device)
        for first, (start, stop) in self._numbered_runs(self._high, replay.high):
            step = torch.arange(first, first + stop - start, device=device).unsqueeze(1)
            valid = replay.are_valid(step.expand(-1, B), env.expand(stop - start, B))
            self._tree.set_range(start * B, valid.flatten().double() * self._default)
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

    def _runs(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Slots of the steps ``start`` to ``stop``: one run, or two where the ring begins anew."""
        return [run for _, run in self._numbered_runs(start, stop)]

    def _numbered_runs(self, start: int, stop: int) -> list[tuple[int, tuple[int, int]]]:
        """Likewise, each with its first step."""
        S = self._replay.num_slots
        if start == stop:
            return []
        first = start % S
        fits = min(stop - start, S - first)
        runs = [(start, (first, first + fits))]
        if fits < stop - start:
            runs.append((start + fits, (0, stop - start - fits)))
        return runs
