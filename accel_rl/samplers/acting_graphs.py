"""Acting on a GPU as CUDA graphs: one start for a group's step, instead of one for each operation.

A graph has the addresses of one group's observations in one row, on the host and on the device:
copies in, the network, drawing actions, the copy out. Of long rollouts, which would need many
graphs, each group has one, over a row of its own that stands for all.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

from accel_rl.agents import Agent
from accel_rl.graphs import Fixed, Graphs, Pool, Recording

MOST_ROW_GRAPHS = 128
"""of rows and groups together that have a graph each"""
_NUM_WARM = 2  # calls of each group before the first is recorded


class ActingGraphs:
    """Runs the device's part of a group's step, or replays it if it was recorded before.

    Args:
        agent: The agent. Tensors that its learner replaces, other than parameters, are held in one
            place.
        graphs: Records.
        device: The GPU.
    """

    def __init__(self, agent: Agent, graphs: Graphs, device: torch.device) -> None:
        self._agent, self._graphs, self._device = agent, graphs, device
        self._recordings: dict[Hashable, Recording] = {}
        self._num_warm: dict[Hashable, int] = {}
        self._epsilon, self._normalizer = Fixed(None), Fixed(None)
        self._held: Any = None
        self._normal: tuple[Any, Any] = None, None  # the agent's, and the same where it stays
        self._pool = Pool()
        self._is_refused = False

    def run(self, group: Hashable, row: Hashable, act: Callable[[], Any]) -> Any:
        """Return ``act()``, or replay it if its graph for this group and row was recorded."""
        if self._is_refused:
            self._graphs.count("actions", is_replayed=False)
            return act()
        self._hold_epsilon()
        normalizer = self._hold_normalizer()
        key = group, row, self._agent.is_random, normalizer is None
        if (recording := self._recordings.get(key)) is None:
            if normalizer is not None:
                self._agent.normalizer = normalizer
            recording = self._record(key, act)
            if normalizer is not None:  # what acted in a rollout is learned from, and never changes
                self._agent.normalizer = self._normal[0]
            if recording is None:
                self._graphs.count("actions", is_replayed=False)
                return act()
        self._graphs.count("actions", is_replayed=True)
        recording.graph.replay()
        return recording.result

    def _record(self, key: tuple[Hashable, ...], act: Callable[[], Any]) -> Recording | None:
        kind = key[0], *key[2:]
        self._num_warm[kind] = num = self._num_warm.get(kind, 0) + 1
        if num <= _NUM_WARM:
            return None
        with self._graphs.aside():
            recording = self._graphs.record("actions", act, self._pool)
        if recording is None:
            self._is_refused = True
        else:
            self._recordings[key] = recording
        return recording

    def _hold_epsilon(self) -> None:
        epsilon = self._agent.epsilon
        if epsilon is None or epsilon is self._held:
            return
        held = self._epsilon.hold(epsilon).tree
        if self._held is None or held.data_ptr() != self._held.data_ptr():
            self._recordings.clear()
        self._held = self._agent.epsilon = held

    def _hold_normalizer(self) -> Any:
        """Return the agent's normalizer, of which each rollout may have another, in one place."""
        given = self._agent.normalizer
        if given is not self._normal[0]:
            self._normal = given, None if given is None else self._normalizer.hold(given).tree
        return self._normal[1]
