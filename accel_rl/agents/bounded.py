"""Agents whose actions are floats between bounds, as of SAC: networks give numbers from -1 to 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accel_rl.agents.agent import Agent
from accel_rl.agents.distributions import standard_normal
from accel_rl.graphs import Graphs
from accel_rl.models import Sequences
from accel_rl.models.soft import flat
from accel_rl.spaces import Leaf, Space, describe, follow, leaves_of, map_leaves, size_of


class BoundedAgent(Agent):
    """Chooses numbers between -1 and 1, and scales them to the bounds of the environment.

    Args:
        model: The networks.
        action: The space of actions: floats between bounds, or a mapping of such.
        explore: ``explore(model, observation, noise)`` returns the numbers by which it acts in
            training, ``[N, D]``. ``observation``: ``[N, size]`` float32, all leaves side by side.
            ``noise``: ``[N, D]`` standard normal numbers; it uses no other randomness.
        decide: ``decide(model, observation)`` returns the best ones, for evaluations.
        graphs: Records acting and learning as CUDA graphs. None: they run as they are.
        is_greedy: It acts by ``decide``.

    Attributes:
        num_actions: Floats of an action, ``D``.
        is_random: It takes any action between the bounds, all equally likely. The learner sets it.
    """

    def __init__(
        self,
        model: Any,
        action: Space,
        explore: Callable[[Any, Tensor, Tensor], Tensor],
        decide: Callable[[Any, Tensor], Tensor],
        graphs: Graphs | None = None,
        *,
        is_greedy: bool = False,
    ) -> None:
        self.model = model
        self.graphs = graphs
        self.decide = decide
        self.action = action
        self._explore = explore
        device = next(model.parameters()).device
        leaves = [leaf for _, leaf in leaves_of(action)]
        if not all(leaf.dtype.kind == "f" and np.isfinite(leaf.limits).all() for leaf in leaves):
            raise ValueError(
                f"actions are {describe(action)}; here they must be floats between finite bounds "
                f"that are not near the largest number of their dtype"
            )
        self._low, self._high, self._middle, self._half = (
            torch.cat([torch.tensor(each, device=device) for each in kind])
            for kind in zip(*map(_numbers, leaves), strict=True)
        )
        self.num_actions = self.num_noise = len(self._low)
        self._is_greedy = is_greedy

    @torch.inference_mode()
    def act(
        self, observation: Any, noise: Tensor, env_slice: slice, memory: Sequences | None = None
    ) -> Any:
        """Actions ``[N, *shape]`` within the bounds, with the parameters as they are now.

        ``observation``: ``[N, ...]``. ``noise``: ``[N, D]`` in [0, 1), or ``[N]`` if ``D`` is 1.
        """
        return self.scaled(self.choose(flat(observation), noise, env_slice))

    def choose(self, outputs: Tensor, noise: Tensor, env_slice: slice, mask: Any = None) -> Tensor:
        """Choose numbers between -1 and 1, ``[N, D]``, see `Agent.choose`.

        ``outputs``: observations ``[N, size]``, all leaves side by side. ``mask``: None.
        """
        if self.is_random:
            return 2 * noise.view(-1, self.num_actions) - 1
        if self._is_greedy:
            return self.decide(self.model, outputs)
        normal = standard_normal(noise, self.num_actions)
        return self._explore(self.model, outputs, normal.to(outputs.dtype))

    def scaled(self, unit: Tensor) -> Any:
        """Return actions ``[N, *shape]`` of numbers between -1 and 1, ``[N, D]``."""
        action = unit.to(self._half.dtype) * self._half + self._middle
        # Rounding may leave the bounds by a bit; equal ones give nothing else.
        return self._arranged(action.clamp(self._low, self._high))

    def unit(self, action: Any) -> Tensor:
        """Return actions ``[N, *shape]`` between -1 and 1, ``[N, D]`` float32."""
        each = [follow(action, path) for path, _ in leaves_of(self.action)]
        rows = torch.cat([leaf.reshape(leaf.shape[0], -1) for leaf in each], 1)
        return ((rows - self._middle) / self._half).to(torch.float32)

    def _arranged(self, rows: Tensor) -> Any:
        """Actions, ``[N, *shape]`` in each leaf, of their floats side by side, ``[N, D]``."""
        sizes = [size_of(leaf) for _, leaf in leaves_of(self.action)]
        pieces = iter(torch.split(rows, sizes, 1))
        return map_leaves(
            lambda leaf: (
                next(pieces).to(getattr(torch, leaf.dtype.name)).reshape(rows.shape[0], *leaf.shape)
            ),
            self.action,
        )

    def greedy(self) -> BoundedAgent:
        """One of the same network that takes its best actions."""
        functions = self._explore, self.decide
        return BoundedAgent(self.model, self.action, *functions, self.graphs, is_greedy=True)


def _numbers(leaf: Leaf) -> list[NDArray[Any]]:
    """Bounds, middle and half the width, flat."""
    arrays: list[Any] = [*leaf.bounds, *leaf.units]
    return [each.astype(leaf.dtype).ravel() for each in arrays]
