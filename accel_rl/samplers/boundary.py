"""What a sampler keeps between two rollouts: the running episodes, the last row and the noise.

A game is one episode, however many lives it has. Returns and lengths are summed over rollouts in
this process, so no statistics travel between processes and none can lag or be lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from math import isnan

import numpy as np
from numpy.typing import NDArray

from accel_rl.rollout import Rollout, told
from accel_rl.samplers.base import Episode, SamplerState
from accel_rl.samplers.block import NOISE_STREAM, Carry, EnvStates

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
        found = {}
        for k, key in enumerate(self._info_keys):
            values = told(rollout, k)[t, b]
            if values.ndim == 0 and not isnan(values):
                found[key] = float(values)
        return found

    def _end(self, b: int, truncated: bool, is_lost: bool, info: Mapping[str, float]) -> None:
        raw_return, clipped_return, length = self.sums[:, b].tolist()
        if length and not self.is_skipped[b]:  # else there was none, or only part of one
            returns = (raw_return, clipped_return, int(length))
            self._ended.append(Episode(b, *returns, truncated, is_lost, info))
        self.is_skipped[b] = False
        self.sums[:, b] = 0


class Boundary:
    """What crosses from one rollout to the next: observations, episodes and action noise.

    Args:
        rollout: the rollout that is collected again and again.
        carry: where environments that waited for a reset leave their first observations.
        tracker: the running episodes.
        seed: the seed of the action noise.
    """

    def __init__(self, rollout: Rollout, carry: Carry, tracker: EpisodeTracker, seed: int) -> None:
        self._rollout = rollout
        self._carry = carry
        self._tracker = tracker
        sequence = np.random.SeedSequence(seed, spawn_key=(NOISE_STREAM,))
        self._noise = np.random.default_rng(sequence)
        # Whether the last row of the rollout is the first of an episode, unless `carry` has a newer
        # observation. Undefined for environments that wait for a reset.
        self._begins = np.ones(rollout.action.shape[1], np.bool_)

    def draw_noise(self) -> NDArray[np.float64]:
        """Return the action noise of one rollout, ``[T, B]`` uniform numbers in [0, 1)."""
        return self._noise.random(self._rollout.action.shape[:2])

    def begins(self, t: int, columns: slice) -> NDArray[np.bool_]:
        """Return where observation row ``t`` is the first of an episode, ``[n]``.

        A lost life begins an episode if it ended one. Call this for row 0 before `begin_row_zero`.
        """
        if t == 0:
            return self._begins[columns] | self._carry.is_fresh[columns]
        return self._ended(t - 1, columns)

    def begin_row_zero(self, columns: slice) -> None:
        """Write row 0: the last row, or the first observation after a wait for a reset."""
        observation, carry = self._rollout.observation, self._carry
        self._begins[columns] |= carry.is_fresh[columns]
        observation[0, columns] = observation[-1, columns]
        fresh = columns.start + np.flatnonzero(carry.is_fresh[columns])
        if fresh.size:
            observation[0, fresh] = carry.observation[fresh]
            carry.is_fresh[fresh] = False

    def finish(self, lost: set[Place], is_whole: bool = True) -> None:
        """Take in a rollout. ``lost``: where episodes ended because a worker was lost."""
        if is_whole:
            self._begins[:] = self._ended(-1, slice(None))
        self._tracker.update(self._rollout, lost)
        lost.clear()

    def cut(self, columns: slice, num_rows: int | None) -> None:
        """End the rollout of ``columns`` after ``num_rows`` steps; the next one goes on from there.

        The rows behind are not valid. None: not even row 0 has been begun.
        """
        rollout = self._rollout
        for field in rollout.results:
            field[num_rows or 0 :, columns] = 0
        rollout.info[num_rows or 0 :, columns] = np.nan
        if num_rows is not None:
            rollout.observation[-1, columns] = rollout.observation[num_rows, columns]
        if num_rows:
            self._begins[columns] = self._ended(num_rows - 1, columns)

    def restart(self, columns: Sequence[int]) -> None:
        """Begin new episodes in ``columns``, whose environments have been replaced."""
        self._begins[columns] = True
        self._tracker.abandon(columns)

    def get_state(self, states: EnvStates, generation: int) -> SamplerState:
        """Return the state of a sampler whose environments have these states."""
        observation = np.zeros_like(self._rollout.observation[-1])  # of structs, padding too
        observation[...] = self._rollout.observation[-1]
        is_fresh = self._carry.is_fresh
        observation[is_fresh] = self._carry.observation[is_fresh]
        return SamplerState(
            environments=[states[b] for b in range(len(observation))],
            observation=observation,
            noise=dict(self._noise.bit_generator.state),
            episode_sums=self._tracker.sums.copy(),
            is_skipped=self._tracker.is_skipped.copy(),
            generation=generation,
            begins=self.begins(0, slice(None)),
        )

    def set_state(self, state: SamplerState) -> EnvStates:
        """Restore everything but the environments; return their states.

        Raises:
            ValueError: the state is of other environments, or of another number of them.
        """
        row = self._rollout.observation[-1]
        if state.observation.shape != row.shape or state.observation.dtype != row.dtype:
            raise ValueError(
                f"the saved state is of environments whose observations are "
                f"{state.observation.dtype} {list(state.observation.shape)}; these have "
                f"{row.dtype} {list(row.shape)}"
            )
        row[...] = state.observation
        self._noise.bit_generator.state = state.noise
        goes_on = np.array([each is not None for each in state.environments])
        begins = ~goes_on if state.begins is None else state.begins | ~goes_on
        self._begins[:] = begins
        self._tracker.sums[:, goes_on] = state.episode_sums[:, goes_on]
        self._tracker.is_skipped[goes_on] = state.is_skipped[goes_on]
        return dict(enumerate(state.environments))

    def _ended(self, t: int, columns: slice) -> NDArray[np.bool_]:
        rollout = self._rollout
        ended = rollout.terminated[t, columns] | rollout.truncated[t, columns]
        # A step that is not valid was the reset of an environment, or comes before one.
        began: NDArray[np.bool_] = ended | ~rollout.valid[t, columns]
        return began
