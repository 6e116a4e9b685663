"""Acting on a GPU as CUDA graphs: one start for a group's step, instead of one for each operation.

A graph has the addresses of one group's observations in one row, on the host and on the device:
copies in, the network, drawing actions, the copy out. Of long rollouts, which would need many
graphs, each group has one, over a row of its own that stands for all.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import torch

from accel_rl.agents import Agent
from accel_rl.graphs import Fixed, Graphs

MOST_ROW_GRAPHS = 128
"""of rows and groups together that have a graph each"""


class ActingGraphs:
    """Runs the device's part of a group's step, or replays it if it was recorded before.

    Args:
        agent: The agent. Tensors that its learner replaces, other than parameters, are held in one
            place.
        graphs: Records.
    """

    def __init__(self, agent: Agent, graphs: Graphs) -> None:
        self._agent = agent
        self._recorded = graphs.recorded(self._act, "actions", most=None)
        self._epsilon, self._normalizer = Fixed(None), Fixed(None)
        self._given: Any = None  # the normalizer that is held

    def run(self, key: Hashable, act: Callable[[], Any]) -> Any:
        """Return ``act()``, or replay it if its graph for this group and row was recorded."""
        agent = self._agent
        if agent.epsilon is not self._epsilon.tree:
            agent.epsilon = self._epsilon.hold(agent.epsilon).tree
        if agent.normalizer is not self._given:
            self._given = agent.normalizer
            self._normalizer.hold(self._given)
        held = self._epsilon.key, self._normalizer.key, agent.is_random
        return self._recorded.by_key((key, held), partial(self._act, act))

    def _act(self, act: Callable[[], Any]) -> Any:
        agent = self._agent
        given, agent.normalizer = agent.normalizer, self._normalizer.tree
        try:
            return act()
        finally:  # what acted in a rollout is learned from, and never changes
            agent.normalizer = given


def without_inference_mode(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return an agent's ``method`` without the inference mode that its decorator enters.

    Recordings outside of that mode cannot use tensors made in it.
    """
    inner = getattr(method, "__wrapped__", None)
    if inner is None:
        return method
    return torch.no_grad()(partial(inner, method.__self__))  # type: ignore[attr-defined]
