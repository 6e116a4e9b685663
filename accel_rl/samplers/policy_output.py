"""The check of what a policy, or the user of a vector environment, gives."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def write_actions(out: NDArray[np.int64], actions: Any, num_actions: int, first: int = 0) -> None:
    """Write ``actions``, counted from ``first``, to ``out``, ``[n]``, counted from 0.

    Raises:
        ValueError: they are not ``n`` integers in ``first .. first + num_actions - 1``.
    """
    allowed = f"{first} .. {first + num_actions - 1}"
    try:
        given = np.asarray(actions)
    except (RuntimeError, TypeError, ValueError) as error:  # torch's, and NumPy's
        raise ValueError(f"got actions that are no array: {error}") from error
    if given.shape != out.shape:
        raise ValueError(
            f"got actions of shape {given.shape} for {len(out)} observations; there must be "
            f"one integer for each, shape {out.shape}"
        )
    if given.dtype.kind not in "iu":
        raise ValueError(f"got actions of dtype {given.dtype}; they must be integers in {allowed}")
    out[:] = given
    if first:
        out -= first
    # As unsigned integers, negative actions are larger than any allowed one: one pass finds both.
    if out.view(np.uint64).max() >= num_actions:
        bad = next(action for action in out.tolist() if not 0 <= action < num_actions)
        raise ValueError(f"got the action {bad + first}; actions must be in {allowed}")


def check_values(values: Any, num_observations: int, name: str = "values") -> NDArray[np.float32]:
    """The ``values`` of so many observations, as an array; ``name``: what they are called.

    Raises:
        ValueError: they are not one finite number for each.
    """
    given: NDArray[np.float32] = np.asarray(values, np.float32)
    if given.shape != (num_observations,):
        raise ValueError(
            f"got {name} of shape {given.shape} for {num_observations} observations; there must be "
            f"one for each, shape ({num_observations},)"
        )
    if not np.isfinite(given).all():
        raise ValueError(f"got {name} that are not finite; what is learned is made of them")
    return given
