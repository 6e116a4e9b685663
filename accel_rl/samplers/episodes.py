"""Episode statistics from finished rollouts.

A game is one episode, however many lives it has. Returns and lengths are summed over rollouts in
this process, so no statistics travel between processes and none can lag or be lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from math import isnan

import numpy as np
from numpy.typing import NDArray

from accel_rl.rollout import Rollout
from accel_rl.samplers.base import Episode

MOST_KEPT = 100_000
"""episodes of earlier rollouts that wait to be taken; some 20 MB"""

Place = tuple[int, int]
"""Step of a rollout and environment."""


class EpisodeTracker:
    """Running sums of each environment, and the episodes that have ended.

    ``skip_first``: the first episode of each environment is not reported. Decorrelated environments
    have spent part of it taking random actions, which would not be the policy's score.
    ``info_keys``: of the rollouts.

    ``sums``: ``[3, B]``, raw return, clipped return and length of the running episodes;
    ``is_skipped``: ``[B]``, whether they go unreported.
    """

    def __init__(self, num_envs: int, skip_first: bool, info_keys: tuple[str, ...] = ()) -> None:
        self._info_keys = info_keys
        self.sums = np.zeros((3, num_envs))
        self.is_skipped = np.full(num_envs, skip_first)
        self._skip_first = skip_first
        self._ended: deque[Episode] = deque()

    def update(self, rollout: Rollout, lost: Collection[Place] = ()) -> None:
        """Take in a rollout, each once, in order.

        ``lost``: where it marks episodes as ended whose worker was lost.
        """
        self._drop_old()
        start = 0
        for t in np.flatnonzero(rollout.episode_ended.any(axis=1)).tolist():
            self._add(rollout, start, t + 1)
            for b in np.flatnonzero(rollout.episode_ended[t]).tolist():
                info = self._told(rollout, t, b)
                self._end(b, bool(rollout.truncated[t, b]), (t, b) in lost, info)
            start = t + 1
        self._add(rollout, start, len(rollout.action))

    def add_step(
        self, rollout: Rollout, rows: NDArray[np.int64], columns: NDArray[np.int64], is_lost: bool
    ) -> None:
        """Take in one step each of ``columns``, in ``rows``: for environments that step apart."""
        self._drop_old()
        fields = (rollout.raw_reward, rollout.reward, rollout.valid)
        for total, field in zip(self.sums, fields, strict=True):
            total[columns] += field[rows, columns].astype(np.float64)
        for i in np.flatnonzero(rollout.episode_ended[rows, columns]).tolist():
            t, b = int(rows[i]), int(columns[i])
            self._end(b, bool(rollout.truncated[t, b]), is_lost, self._told(rollout, t, b))

    def forget(self, columns: slice) -> None:
        """Others begin in ``columns``; the episodes that ran there go unreported."""
        self.sums[:, columns] = 0
        self.is_skipped[columns] = self._skip_first

    def abandon(self, env_indices: Iterable[int]) -> None:
        """End the running episodes of environments that others replace between two rollouts."""
        for b in env_indices:
            self._end(b, truncated=True, is_lost=True, info={})

    def take(self) -> list[Episode]:
        """Return the episodes that ended since the last call, the oldest first.

        Where nobody calls this, only the newest `MOST_KEPT` of earlier rollouts are kept, and all
        of the last rollout.
        """
        ended = []
        with suppress(IndexError):  # one at a time: another thread may add some meanwhile
            while True:
                ended.append(self._ended.popleft())
        return ended

    def _drop_old(self) -> None:
        with suppress(IndexError):  # another thread may take them meanwhile
            while len(self._ended) > MOST_KEPT:
                self._ended.popleft()

    def _add(self, rollout: Rollout, start: int, stop: int) -> None:
        fields = (rollout.raw_reward, rollout.reward, rollout.valid)
        for total, field in zip(self.sums, fields, strict=True):
            total += field[start:stop].sum(axis=0, dtype=np.float64)

    def _told(self, rollout: Rollout, t: int, b: int) -> dict[str, float]:
        """The numbers of the step at ``t``, without those that it did not tell."""
        if not self._info_keys:
            return {}
        pairs = zip(self._info_keys, rollout.info[t, b].tolist(), strict=True)
        return {key: number for key, number in pairs if not isnan(number)}

    def _end(self, b: int, truncated: bool, is_lost: bool, info: Mapping[str, float]) -> None:
        raw_return, clipped_return, length = self.sums[:, b].tolist()
        if length and not self.is_skipped[b]:  # else there was none, or only part of one
            returns = (raw_return, clipped_return, int(length))
            self._ended.append(Episode(b, *returns, truncated, is_lost, info))
        self.is_skipped[b] = False
        self.sums[:, b] = 0
