"""Which observations are the first of their episodes, for policies that remember."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from accel_rl.rollout import Rollout
from accel_rl.samplers.stepping import Carry


class Begins:
    """Follows the episodes of ``rollout``, whose waiting environments are reset into ``carry``.

    A lost life begins an episode, too, where it ends one. Of columns that wait nothing is meant.
    """

    def __init__(self, rollout: Rollout, carry: Carry) -> None:
        self._rollout = rollout
        self._carry = carry
        self._next = np.ones(rollout.action.shape[1], np.bool_)

    def at(self, t: int, columns: slice) -> NDArray[np.bool_]:
        """``[n]``, of observation row ``t``; of row 0 before the carry is taken over."""
        if t == 0:
            return self._next[columns] | self._carry.is_fresh[columns]
        return self._ended(t - 1, columns)

    def finish(self) -> None:
        """The rollout is complete: its last row is row 0 of the next one."""
        self._next[:] = self._ended(-1, slice(None))

    def mark(self, columns: Sequence[int]) -> None:
        """Those of ``columns`` have begun anew since."""
        self._next[columns] = True

    def take(self) -> NDArray[np.bool_]:
        """``[B]``, of row 0 of the next rollout, for the `restore` of another sampler."""
        return self.at(0, slice(None))

    def restore(self, begins: NDArray[np.bool_]) -> None:
        """Go on with what `take` gave."""
        self._next[:] = begins

    def _ended(self, t: int, columns: slice) -> NDArray[np.bool_]:
        ended: NDArray[np.bool_] = (
            self._rollout.terminated[t, columns] | self._rollout.truncated[t, columns]
        )
        return ended
