"""What a rollout holds of environments whose worker was lost."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from accel_rl.rollout import Rollout


def truncate_running(
    rollout: Rollout, columns: range, t: int, is_done: bool, waits: bool
) -> list[int]:
    """Mark the running episodes of ``columns`` as truncated at row ``t``; returns their columns.

    ``t`` is the last order. ``is_done``: the worker had taken step ``t`` before it was lost; the
    episode ends behind it. Otherwise there was no such step: its row is not valid, and what was
    last seen is the final observation. ``waits``: under the ``wait`` reset policy, where an episode
    that ended earlier in the rollout has no successor yet.
    """
    cols = np.arange(columns.start, columns.stop)
    if not is_done:
        _forget_step(rollout, cols, t)
    if waits:
        cols = cols[~rollout.episode_ended[:t, cols].any(axis=0)]
    cols = cols[~rollout.episode_ended[t, cols]]
    for b in cols[~rollout.terminated[t, cols]]:
        slot = int(np.argmin(rollout.final_step[:, b]))
        if rollout.final_step[slot, b] == -1:
            rollout.final_observation[slot, b] = rollout.observation[t + is_done, b]
            rollout.final_step[slot, b] = t
        else:
            # All slots are taken by earlier truncations of this rollout. Rare enough to give up
            # the bootstrap value of one episode.
            rollout.terminated[t, b] = True
    if waits:
        rollout.observation[t + 1, columns.start : columns.stop] = 0
    rollout.truncated[t, cols] = True
    rollout.episode_ended[t, cols] = True
    return [int(b) for b in cols]


def _forget_step(rollout: Rollout, cols: NDArray[np.int64], t: int) -> None:
    """Undo whatever the lost worker may have written of step ``t``."""
    for field in rollout.results:
        field[t, cols] = 0
    rollout.info[t, cols] = np.nan
    used = rollout.final_step[:, cols]
    rollout.final_step[:, cols] = np.where((t == 0) | (used == t), -1, used)
