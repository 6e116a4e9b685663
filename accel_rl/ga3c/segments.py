"""Segments: what GA3C's agents give to its trainers, cut from the rows that they go through.

A segment is the run of steps from the end of the segment before it to the end of an episode, or to
its ``horizon``-th step. Each environment goes through the rows of a shared rollout again and again,
as through a ring of ``R = horizon + 1`` rows, so that a whole segment is still there when it ends.
For example, with a horizon of 3, in the middle of a segment that began in row 3::

    row           0     1     2     3     4 = R
    observation   o4    o5    o2    o3    o4        row R becomes row 0 when the next round begins
    action        a4    a1    a2    a3              reward, terminated, ... as action
                  ^                 ^
                  row               start           length = 2

``row`` is the row of the last step; the observation behind it, ``o5``, waits for its action in the
next row. The noise of an environment's actions is its own, too, so that actions do not depend on
who steps with whom.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from accel_rl.rollout import Rollout
from accel_rl.samplers.block import NOISE_STREAM

Columns = NDArray[np.int64]

_NOISE_BLOCK = 64


class Segment(NamedTuple):
    """A run of ``L`` steps of one environment, with their n-step returns; its `len` is ``L``.

    Attributes:
        observation: Observations.
        action: Actions.
        return_: Discounted rewards up to the end of the segment and, unless the episode terminated
            there, the discounted value that the policy gave the observation behind it.
        version: Numbers of the parameters that acted.
        behaviour_probability: Probability with which each action was chosen. NaN: unknown.
    """

    observation: NDArray[Any]  # [L, ...]
    action: NDArray[np.int64]  # [L]
    return_: NDArray[np.float32]  # [L]
    version: NDArray[np.int64]  # [L]
    behaviour_probability: NDArray[np.float32]  # [L]

    def __len__(self) -> int:
        return len(self.action)


class Taken(NamedTuple):
    """``n`` environments that wait for an action, of which ``m`` were truncated.

    The value behind a truncated segment is the value of its final observation.
    """

    columns: Columns  # [n], the environments
    row: NDArray[np.int64]  # [n], rows of their last steps
    is_closing: NDArray[np.bool_]  # [n], whether the segment ends here
    final: NDArray[np.int64]  # [m], indices into ``columns`` of those that were truncated
    final_slot: NDArray[np.int64]  # [m], their slots in `Rollout.final_observation`


class Segments:
    """The running segment of each environment.

    Everything of an environment belongs to the thread that has taken its agent. If
    ``bootstrap_on_truncation``, a time limit does not end the task.
    """

    def __init__(
        self,
        rollout: Rollout,
        horizon: int,
        gamma: float,
        *,
        bootstrap_on_truncation: bool,
    ) -> None:
        R, B = rollout.action.shape
        assert R == horizon + 1
        self._rollout = rollout
        self._horizon = horizon
        self._gamma = np.float32(gamma)
        self._bootstraps = bootstrap_on_truncation
        self._flat_observation = rollout.observation.reshape(
            (R + 1) * B, *rollout.observation.shape[2:]
        )
        self._version = np.zeros((R, B), np.int64)
        self._probability = np.full((R, B), np.nan, np.float32)
        self._row = np.zeros(B, np.int64)  # see above
        self._start = np.zeros(B, np.int64)
        self._length = np.zeros(B, np.int64)

    def begin(self, columns: slice) -> None:
        """Begin with a new agent's environments, whose first observations are in row ``R``."""
        self._row[columns] = len(self._rollout.action) - 1
        self._rollout.valid[-1, columns] = False  # what is there is of those before them
        self._start[columns] = 0
        self._length[columns] = 0

    def take(self, columns: Columns, has_stepped: NDArray[np.bool_]) -> Taken:
        """Take in the last step of those that ``has_stepped``, ``[n]``; all wait for an action."""
        rollout, row = self._rollout, self._row[columns]
        is_valid = rollout.valid[row, columns]
        self._length[columns] += has_stepped & is_valid
        # Some batches reset in the first row of a segment, after the end of an episode.
        was_reset = has_stepped & ~is_valid & (self._length[columns] == 0)
        self._start[columns[was_reset]] = (row[was_reset] + 1) % len(rollout.action)
        terminated = has_stepped & rollout.terminated[row, columns]
        truncated = has_stepped & rollout.truncated[row, columns] & ~terminated
        is_closing = (self._length[columns] == self._horizon) | terminated | truncated
        if self._bootstraps:
            final = np.flatnonzero(truncated)
        else:
            # Where no step was taken it was a lost worker that ended the episode, and no limit.
            final = np.flatnonzero(truncated & ~is_valid)
        slots = rollout.final_step[:, columns[final]] == row[final]
        return Taken(columns, row, is_closing, final, slots.argmax(axis=0))

    def observations(self, taken: Taken) -> NDArray[Any]:
        """Return the last observations of ``taken``, then its final ones: ``[n + m, ...]``."""
        rollout, columns = self._rollout, taken.columns
        n, B = len(columns), rollout.action.shape[1]
        shape = (n + len(taken.final), *rollout.observation.shape[2:])
        out = np.empty(shape, rollout.observation.dtype)
        indices = (taken.row + 1) * B + columns
        np.take(self._flat_observation, indices, axis=0, out=out[:n], mode="clip")
        if len(taken.final):
            out[n:] = rollout.final_observation[taken.final_slot, columns[taken.final]]
        return out

    def cut(self, taken: Taken, value: NDArray[np.float32]) -> list[Segment]:
        """Return copies of the segments that end here."""
        closing = np.flatnonzero(taken.is_closing)
        if not len(closing):
            return []
        behind = self._values_behind(taken, value)[closing]
        columns = taken.columns[closing]
        steps = np.arange(self._horizon)[:, None]
        rows = (self._start[columns] + steps) % len(self._rollout.action)  # [horizon, K]
        is_inside = steps < self._length[columns]
        reward = self._rollout.reward[rows, columns]
        return_ = _n_step_returns(reward, is_inside, behind, self._gamma)
        return self._pack(columns, rows, is_inside, return_)

    def _values_behind(self, taken: Taken, value: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the value of what follows each of ``taken``, ``[n]``; 0 where its task ended."""
        rollout, columns, row = self._rollout, taken.columns, taken.row
        is_last = rollout.terminated[row, columns]
        if not self._bootstraps:
            is_last = is_last | rollout.truncated[row, columns] & rollout.valid[row, columns]
        behind = value[: len(columns)].copy()
        behind[taken.final] = value[len(columns) :]
        behind[is_last] = 0
        return behind

    def _pack(
        self,
        columns: Columns,
        rows: NDArray[np.int64],
        is_inside: NDArray[np.bool_],
        return_: NDArray[np.float32],
    ) -> list[Segment]:
        """Return the segments of ``columns``, ``[K]``, whose other fields are ``[horizon, K]``."""
        rollout = self._rollout
        own, t = np.nonzero(is_inside.T)  # [samples], segment after segment
        row, column = rows[t, own], columns[own]
        fields: tuple[NDArray[Any], ...] = (
            self._flat_observation[row * rollout.action.shape[1] + column],
            rollout.action[row, column],
            return_[t, own],
            self._version[row, column],
            self._probability[row, column],
        )
        ends = self._length[columns].cumsum()[:-1]
        parts = zip(*(np.split(field, ends) for field in fields), strict=True)
        return [Segment(*each) for each in parts if len(each[1])]

    def act(
        self,
        taken: Taken,
        action: NDArray[np.int64],
        version: int,
        probability: NDArray[np.float32] | None = None,
    ) -> NDArray[np.int64]:
        """Note the next actions, ``[n]``; return the rows of their steps, ``[n]``.

        Comes after `cut`. ``version`` is the parameters' version. If a new round of rows begins,
        the last observation goes to row 0.
        """
        rollout, columns = self._rollout, taken.columns
        R = len(rollout.action)
        row = self._row[columns] + 1
        begins = columns[row == R]
        if len(begins):
            rollout.observation[0, begins] = rollout.observation[R, begins]
            row[row == R] = 0
        rollout.action[row, columns] = action
        self._version[row, columns] = version
        if probability is not None:
            self._probability[row, columns] = probability
        self._row[columns] = row
        closing = columns[taken.is_closing]
        self._start[closing] = row[taken.is_closing]
        self._length[closing] = 0
        return row


def _n_step_returns(
    reward: NDArray[np.float32],  # [horizon, K]
    is_inside: NDArray[np.bool_],  # [horizon, K]
    behind: NDArray[np.float32],  # [K]
    gamma: np.float32,
) -> NDArray[np.float32]:
    """Return discounted sums of rewards and of the values ``behind`` segments, ``[horizon, K]``.

    Steps that are not ``is_inside`` their segment have no effect.
    """
    return_, following = np.empty_like(reward), behind
    for t in reversed(range(len(reward))):
        following = np.where(is_inside[t], reward[t] + gamma * following, following)
        return_[t] = following
    return return_


class EnvNoise:
    """A stream of numbers for each environment, whose ``k``-th action uses the ``k``-th number.

    Streams are disjoint over seeds, environments and ``generation``.
    """

    def __init__(self, seed: int, num_envs: int) -> None:
        self._seed = seed
        self._rngs: list[np.random.Generator | None] = [None] * num_envs
        self._block = np.zeros((num_envs, _NOISE_BLOCK))
        self._used = np.full(num_envs, _NOISE_BLOCK)

    def begin(self, columns: slice, generation: int) -> None:
        """Begin the streams of environments ``columns`` for this generation."""
        for b in range(columns.start, columns.stop):
            key = (NOISE_STREAM, b, generation)
            self._rngs[b] = np.random.default_rng(np.random.SeedSequence(self._seed, spawn_key=key))
        self._used[columns] = _NOISE_BLOCK

    def take(self, columns: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the next number in [0, 1) of each of ``columns``, ``[n]``."""
        for b in columns[self._used[columns] == _NOISE_BLOCK].tolist():
            rng = self._rngs[b]
            assert rng is not None, "begin first"
            rng.random(out=self._block[b])
            self._used[b] = 0
        used = self._used[columns]
        self._used[columns] = used + 1
        noise: NDArray[np.float64] = self._block[columns, used]
        return noise
