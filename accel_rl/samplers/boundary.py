"""The state of a sampler between two rollouts: running episodes, last row and action noise.

A game is one episode, however many lives it has. Returns and lengths are summed over rollouts in
this process, so no statistics travel between processes and none can lag or be lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from accel_rl.rollout import Rollout
from accel_rl.samplers.base import Episode, SamplerState, noise_shape
from accel_rl.samplers.block import NOISE_STREAM, Carry, EnvStates

MOST_KEPT = 100_000
"""episodes of earlier rollouts that wait to be taken; some 20 MB"""

Rows = NDArray[np.int64]

Place = tuple[int, int]
"""Step of a rollout and environment."""


class EpisodeTracker:
    """Running sums of each environment, and the episodes that have ended.

    Args:
        skip_first: the first episode of each environment is not reported. Random first steps are a
            part of it, and are not the policy's score.

    Attributes:
        sums: ``[3, B]``, raw return, clipped return and length of the running episodes.
        is_skipped: ``[B]``, whether the running episodes go unreported.
    """

    def __init__(self, num_envs: int, skip_first: bool, info_keys: tuple[str, ...] = ()) -> None:
        self._info_keys = info_keys
        self.sums = np.zeros((3, num_envs))
        self.is_skipped = np.full(num_envs, skip_first)
        self._skip_first = skip_first
        self._ended: deque[Episode] = deque()

    def update(
        self, rollout: Rollout, lost: Collection[Place] = (), at: tuple[Rows, Rows] | None = None
    ) -> None:
        """Take in a rollout, or one step of each of some environments; each step once, in order.

        Args:
            lost: where the rollout marks episodes as ended whose worker was lost.
            at: rows and columns of the steps, ``[B]`` each; None: all steps of the rollout.
        """
        if len(self._ended) > MOST_KEPT:
            with suppress(IndexError):  # another thread may take them meanwhile
                while len(self._ended) > MOST_KEPT:
                    self._ended.popleft()
        index = (slice(None), slice(None)) if at is None else (at[0][None], at[1])  # [T, B]
        own = index[1]
        fields = (rollout.raw_reward, rollout.reward, rollout.valid)
        has_ended = rollout.episode_ended[index]
        T, B = has_ended.shape
        b, t = np.nonzero(has_ended.T)  # in order of environment, then step
        if not b.size:
            for total, field in zip(self.sums, fields, strict=True):
                total[own] += field[index].sum(axis=0, dtype=np.float64)
            return
        # Each environment's steps one behind the other, cut behind each end: [3, B * T] -> [3, S].
        # With T = 4, an end of environment 0 in step 1 and of environment 1 in step 3 (``|``), and
        # ``starts`` 0, 2, 4:   0 0 | 0 0   1 1 1 1 |
        values = np.empty((3, B, T))
        for value, field in zip(values, fields, strict=True):
            value[...] = field[index].T
        begins = np.arange(B) * T
        starts = np.sort(np.concatenate((begins, (b * T + t + 1)[t < T - 1])))
        sums = np.add.reduceat(values.reshape(3, -1), starts, axis=1)
        first = np.searchsorted(starts, begins)
        sums[:, first] += self.sums[:, own]
        running = sums[:, np.append(first[1:], len(starts)) - 1]
        running[:, b[t == T - 1]] = 0
        self.sums[:, own] = running
        ended = sums[:, np.searchsorted(starts, b * T + t, side="right") - 1]
        is_first = np.append(True, b[1:] != b[:-1])
        if at is not None:
            t, b = at[0][b], at[1][b]
        # Without steps there was no episode, and one that is skipped was played in part.
        counts = (ended[2] > 0) & ~(is_first & self.is_skipped[b])
        self.is_skipped[b] = False
        order = np.lexsort((b, t))
        order = order[counts[order]]
        t, b = t[order], b[order]
        places = zip(t.tolist(), b.tolist(), strict=True)
        is_lost = [place in lost for place in places]
        infos = self._infos(rollout, t, b)
        self._keep(b, ended[:, order], rollout.truncated[t, b], is_lost, infos)

    def forget(self, columns: slice) -> None:
        """Drop the running episodes of ``columns``, whose environments have been replaced."""
        self.sums[:, columns] = 0
        self.is_skipped[columns] = self._skip_first

    def abandon(self, env_indices: Iterable[int]) -> None:
        """End the running episodes of environments that others replace between two rollouts."""
        columns = np.array(list(env_indices), np.int64)
        own = columns[(self.sums[2, columns] > 0) & ~self.is_skipped[columns]]
        is_true = np.ones(len(own), np.bool_)
        self._keep(own, self.sums[:, own], is_true, is_true.tolist(), repeat({}, len(own)))
        self.is_skipped[columns] = False
        self.sums[:, columns] = 0

    def take(self) -> list[Episode]:
        """Return the episodes that ended since the last call, the oldest first.

        If this is not called, only the newest `MOST_KEPT` of earlier rollouts are kept, and all
        of the last rollout.
        """
        ended = []
        with suppress(IndexError):  # one at a time: another thread may add some meanwhile
            while True:
                ended.append(self._ended.popleft())
        return ended

    def _infos(self, rollout: Rollout, t: Rows, b: Rows) -> Iterable[Mapping[str, float]]:
        """Return the numbers of steps by key, for each of ``t`` and ``b``, without NaN."""
        infos: list[dict[str, float]] = [{} for _ in range(len(b))] if self._info_keys else []
        for k, key in enumerate(self._info_keys):
            values = rollout.info[t, b, k]
            for i in np.flatnonzero(~np.isnan(values)).tolist():
                infos[i][key] = float(values[i])
        return infos if self._info_keys else repeat({}, len(b))

    def _keep(
        self,
        columns: NDArray[np.int64],
        sums: NDArray[np.float64],
        truncated: NDArray[np.bool_],
        is_lost: list[bool],
        infos: Iterable[Mapping[str, float]],
    ) -> None:
        """Note ended episodes, ``[n]``."""
        episode_return, clipped_return, length = sums.tolist()
        values = (columns.tolist(), episode_return, clipped_return, map(int, length))
        more = (truncated.tolist(), is_lost, infos)
        self._ended.extend(map(Episode._make, zip(*values, *more, strict=True)))


class Boundary:
    """Carries observations, episodes and action noise from one rollout to the next."""

    def __init__(self, rollout: Rollout, carry: Carry, tracker: EpisodeTracker, seed: int) -> None:
        self._rollout = rollout
        self._carry = carry
        self._tracker = tracker
        sequence = np.random.SeedSequence(seed, spawn_key=(NOISE_STREAM,))
        self._noise = np.random.default_rng(sequence)
        # Whether the last row of the rollout is the first of an episode, unless `carry` has a newer
        # observation. Undefined for environments that wait for a reset.
        self._is_first = np.ones(rollout.action.shape[1], np.bool_)

    def draw_noise(self, num_noise: int) -> NDArray[np.float64]:
        """Return the action noise of one rollout, uniform numbers in [0, 1).

        Returns:
            ``[T, B, k]``, or ``[T, B]`` if ``k`` is 1.
        """
        return self._noise.random(noise_shape(self._rollout.action.shape[:2], num_noise))

    def is_first(self, columns: slice) -> NDArray[np.bool_]:
        """Return where row 0 is the first of an episode, ``[n]``; before `begin_row_zero`."""
        return self._is_first[columns] | self._carry.is_fresh[columns]

    def begin_row_zero(self, columns: slice) -> None:
        """Write row 0: the last row, or the first observation after a wait for a reset.

        May be called again as long as no step has been sent, wherever Ctrl-C has come.
        """
        observation, carry = self._rollout.observation, self._carry
        self._is_first[columns] |= carry.is_fresh[columns]
        fresh = columns.start + np.flatnonzero(carry.is_fresh[columns])
        if fresh.size:
            observation[-1, fresh] = carry.observation[fresh]
            carry.is_fresh[fresh] = False
        observation[0, columns] = observation[-1, columns]

    def finish(self, lost: set[Place], is_whole: bool = True) -> None:
        """Take in a rollout, and clear ``lost``: where episodes ended with a lost worker."""
        if is_whole:
            self._is_first[:] = self.ended(-1, slice(None))
        self._tracker.update(self._rollout, lost)
        lost.clear()

    def cut(self, columns: slice, num_rows: int) -> None:
        """End the rollout of ``columns`` after ``num_rows`` steps; the next one goes on from there.

        The rows behind are not valid.
        """
        rollout = self._rollout
        for field in rollout.results:
            field[num_rows:, columns] = 0
        rollout.info[num_rows:, columns] = np.nan
        if num_rows:  # else the last row is what row 0 was or will be made of
            rollout.observation[-1, columns] = rollout.observation[num_rows, columns]
            self._is_first[columns] = self.ended(num_rows - 1, columns)

    def restart(self, columns: Sequence[int]) -> None:
        """Begin new episodes in ``columns``, whose environments have been replaced."""
        self._is_first[columns] = True
        self._tracker.abandon(columns)

    def get_state(self, states: EnvStates, generation: int) -> SamplerState:
        """Return the state of a sampler whose environments have these states."""
        observation = np.zeros_like(self._rollout.observation[-1])  # of structs, padding too
        observation[...] = self._rollout.observation[-1]
        is_fresh = self._carry.is_fresh
        observation[is_fresh] = self._carry.observation[is_fresh]
        return SamplerState(
            environments=[
                state if isinstance(state := states[b], bytes) else None
                for b in range(len(observation))
            ],
            observation=observation,
            noise=dict(self._noise.bit_generator.state),
            episode_sums=self._tracker.sums.copy(),
            is_skipped=self._tracker.is_skipped.copy(),
            generation=generation,
            is_first=self.is_first(slice(None)),
        )

    def set_state(self, state: SamplerState) -> EnvStates:
        """Restore everything but the environments; return their states."""
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
        is_first = ~goes_on if state.is_first is None else state.is_first | ~goes_on
        self._is_first[:] = is_first
        self._tracker.sums[:, goes_on] = state.episode_sums[:, goes_on]
        self._tracker.is_skipped[goes_on] = state.is_skipped[goes_on]
        return dict(enumerate(state.environments))

    def ended(self, t: int, columns: slice) -> NDArray[np.bool_]:
        """Return where the row behind step ``t`` is the first of an episode, ``[n]``.

        A lost life begins an episode if it ended one.
        """
        rollout = self._rollout
        ended = rollout.terminated[t, columns] | rollout.truncated[t, columns]
        # A step that is not valid was the reset of an environment, or comes before one.
        began: NDArray[np.bool_] = ended | ~rollout.valid[t, columns]
        return began
