"""Environments that clip actions to their bounds, for policies that draw them without bounds.

So the action in a rollout is the one that was drawn, whose density a learner needs.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accel_rl.envs.base import Array, EnvFactory, EnvSpec
from accel_rl.envs.batched import changed
from accel_rl.spaces import Leaf, Space, follow, leaves_of, map_leaves


def clipped(factory: EnvFactory) -> EnvFactory:
    """Return a factory of the same environments, which clip floats in actions to their bounds.

    Such floats are `Leaf.is_clipped`. Environments without them stay as they are.
    """
    return changed(factory, _wrapped)


def beyond_bounds(space: Space) -> Space:
    """Return a space of actions whose floats may be beyond their bounds, see `Leaf.is_clipped`."""
    marked: Space = map_leaves(
        lambda leaf: dataclasses.replace(leaf, is_clipped=_is_bounded(leaf)), space
    )
    return marked


def clip(space: Space, action: Any) -> Any:
    """Return actions ``[..., *shape]``, an array or structs, within the bounds of their floats."""
    if isinstance(space, Leaf):
        return _clip(space, np.asarray(action))
    inside = action.copy()
    for path, leaf in leaves_of(space):
        if _is_bounded(leaf):
            follow(inside, path[:-1])[path[-1]] = _clip(leaf, follow(action, path))
    return inside


def clipped_share(space: Space, action: Array, valid: NDArray[np.bool_]) -> float | None:
    """Return the share of floats that lie beyond their bounds; None if no float has two bounds."""
    num_clipped = num_floats = 0
    for path, leaf in leaves_of(space):
        if leaf.is_clipped:
            low, high = leaf.limits
            is_free = np.isfinite(low) & np.isfinite(high) & (low < high)
            chosen = follow(action, path)[valid]
            num_clipped += int((((chosen < low) | (chosen > high)) & is_free).sum())
            num_floats += len(chosen) * int(is_free.sum())
    return num_clipped / num_floats if num_floats else None


def _clip(leaf: Leaf, action: Array) -> Array:
    return np.clip(action, *leaf.bounds) if _is_bounded(leaf) else action


def _is_bounded(leaf: Leaf) -> bool:
    return leaf.dtype.kind == "f" and (leaf.low is not None or leaf.high is not None)


def _wrapped(made: Any) -> Any:
    has_bounds = any(_is_bounded(leaf) for _, leaf in leaves_of(made.spec.action))
    return Clipped(made) if has_bounds else made


class Clipped:
    """An environment or a batch, with all its attributes, that clips actions to their bounds.

    Attributes:
        spec: spec of ``env``, whose bounded floats are marked as clipped.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self._space = env.spec.action
        self.spec: EnvSpec = dataclasses.replace(env.spec, action=beyond_bounds(self._space))

    @property
    def innermost(self) -> object:
        """The environment itself, which two wrappers may share by mistake."""
        return getattr(self.env, "innermost", self.env)

    def step(self, action: Any, *out: Any) -> Any:
        return self.env.step(clip(self._space, action), *out)

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.env, name)
