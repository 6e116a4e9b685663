"""The check of what a policy returned."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def write_actions(out: NDArray[np.int64], actions: Any, num_actions: int) -> None:
    """Write a policy's ``actions`` to ``out``, ``[n]``.

    Raises:
        ValueError: they are not ``n`` integers in ``0 .. num_actions - 1``.
    """
    given = np.asarray(actions)
    if given.shape != out.shape:
        raise ValueError(
            f"the policy returned actions of shape {given.shape} for {len(out)} observations; "
            f"it must return one integer for each, shape {out.shape}"
        )
    if given.dtype.kind not in "iu":
        raise ValueError(
            f"the policy returned actions of dtype {given.dtype}; they must be integers in "
            f"0 .. {num_actions - 1}"
        )
    out[:] = given
    # As unsigned integers, negative actions are larger than any allowed one: one pass finds both.
    if out.view(np.uint64).max() >= num_actions:
        bad = next(action for action in out.tolist() if not 0 <= action < num_actions)
        raise ValueError(
            f"the policy returned the action {bad}; actions must be in 0 .. {num_actions - 1}"
        )
