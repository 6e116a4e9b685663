"""Environments that clip actions to their bounds, for policies that draw them without bounds.

So the action in a rollout is the one that was drawn, whose density a learner needs.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import numpy as np

from accel_rl.envs.base import Array, EnvFactory, Environment, EnvSpec, StepResult
from accel_rl.envs.batched import Batched, Results, Simulators, call_factory
from accel_rl.spaces import Leaf, Space, follow, leaves_of


def clipped(factory: EnvFactory) -> EnvFactory:
    """Return a factory of the same environments, whose bounded floats in actions have no bounds.

    Environments without such actions stay as they are.
    """
    make = partial(_make, factory)
    make.__name__ = getattr(factory, "__name__", "environment")  # type: ignore[attr-defined]
    return make


def clip(space: Space, action: Any) -> Any:
    """Return actions ``[..., *shape]``, an array or structs, within the bounds of their floats."""
    if isinstance(space, Leaf):
        return _clip(space, np.asarray(action))
    inside = action.copy()
    for path, leaf in leaves_of(space):
        if _is_bounded(leaf):
            follow(inside, path[:-1])[path[-1]] = _clip(leaf, follow(action, path))
    return inside


def _clip(leaf: Leaf, action: Array) -> Array:
    return np.clip(action, *leaf.bounds) if _is_bounded(leaf) else action


def _is_bounded(leaf: Leaf) -> bool:
    return leaf.dtype.kind == "f" and (leaf.low is not None or leaf.high is not None)


def _without_bounds(space: Space) -> Space:
    if not isinstance(space, Leaf):
        return {name: _without_bounds(each) for name, each in space.items()}
    return Leaf(space.shape, space.dtype) if space.dtype.kind == "f" else space


def _has_bounds(space: Space) -> bool:
    return any(_is_bounded(leaf) for _, leaf in leaves_of(space))


def _make(factory: EnvFactory, env_index: int = 0) -> Any:
    made = call_factory(factory, env_index)
    if isinstance(made, Batched):
        return Batched(partial(_make_batch, made), name=made.__name__, indexed=True)
    return Clipped(made) if _has_bounds(made.spec.action) else made


def _make_batch(batched: Batched, n: int, first_index: int) -> Simulators:
    made = batched.make(n, first_index)
    return ClippedBatch(made) if _has_bounds(made.spec.action) else made


class _Clipped:
    """What both have in common; the rest is that of ``env``."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self._space = env.spec.action
        self._spec: EnvSpec = dataclasses.replace(env.spec, action=_without_bounds(self._space))

    @property
    def spec(self) -> EnvSpec:
        """The environment's, without bounds."""
        return self._spec

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.env, name)


class Clipped(_Clipped):
    """One environment."""

    env: Environment

    def step(self, action: Any, out: Array) -> StepResult:
        """Take a step with the action within the bounds."""
        return self.env.step(clip(self._space, action), out)


class ClippedBatch(_Clipped):
    """A batch."""

    env: Simulators

    def step(self, action: Array, out: Array, results: Results) -> None:
        """Take a step with the actions within the bounds."""
        self.env.step(clip(self._space, action), out, results)
