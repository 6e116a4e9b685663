"""From Gymnasium's spaces to an `EnvSpec`, and checks of what a batch returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from accel_rl.envs.base import Array, EnvSpec
from accel_rl.envs.errors import EnvError
from accel_rl.envs.gymnasium_env import read_spaces
from accel_rl.spaces import Leaf, describe, match_values


def read_spec(
    name: str,
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    info_keys: Sequence[str] = (),
    frame_skip: int = 1,
    env: Any = None,
) -> tuple[EnvSpec, int]:
    """Return the spec of environments with these spaces, and the first discrete action."""
    observation, action, first_action = read_spaces(name, env, observation_space, action_space)
    if not isinstance(action, Leaf):
        raise EnvError(
            f"environment {name}: its actions are {describe(action)}; those of a batch must be one "
            f"array: wrap it in one that takes such actions"
        )
    try:
        spec = EnvSpec(
            name=name,
            observation=observation,
            action=action,
            frame_skip=frame_skip,
            info_keys=tuple(info_keys),
        )
    except ValueError as error:
        raise EnvError(f"environment {name}: {error}") from error
    return spec, first_action


def check_array(name: str, what: str, value: Any, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return ``value`` as an array."""
    array = np.asarray(value)
    if array.shape == shape and np.can_cast(array.dtype, dtype, "same_kind"):
        return array
    raise EnvError(
        f"environment {name} returned {what} of shape {array.shape} and dtype {array.dtype}; it "
        f"must be of shape {shape} and dtype {np.dtype(dtype)}"
    )


def check_observations(spec: EnvSpec, given: Any, *n: int) -> list[tuple[tuple[str, ...], Array]]:
    """Return the leaves of observations ``[*n, ...]``, each with the names that lead to it."""
    try:
        parts = list(match_values(spec.observation, given, "observation"))
    except ValueError as error:
        raise EnvError(f"environment {spec.name}: {error}") from None
    return [
        (path, check_array(spec.name, f"an {name}", value, (*n, *leaf.shape), leaf.dtype))
        for name, path, leaf, value in parts
    ]


def write_info(
    keys: Sequence[str], infos: Any, out: NDArray[np.float32], rows: NDArray[np.bool_] | None = None
) -> None:
    """Write the numbers that a batch tells under ``keys`` into ``out``, ``[n, len(keys)]``."""
    for k, key in enumerate(keys):
        if key in infos:
            is_told = np.asarray(infos.get(f"_{key}", True)) & (True if rows is None else rows)
            np.copyto(out[:, k], np.asarray(infos[key], np.float32).reshape(-1), where=is_told)
