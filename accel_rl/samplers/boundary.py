"""What a sampler keeps between two rollouts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from accel_rl.rollout import Rollout
from accel_rl.samplers.base import SamplerState
from accel_rl.samplers.block import NOISE_STREAM, Carry, EnvStates
from accel_rl.samplers.episodes import EpisodeTracker, Place


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
        return self._noise.random(self._rollout.action.shape)

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

    def finish(self, lost: set[Place]) -> None:
        """Take in a complete rollout. ``lost``: where episodes ended because a worker was lost."""
        self._begins[:] = self._ended(-1, slice(None))
        self._tracker.update(self._rollout, lost)

    def restart(self, columns: Sequence[int]) -> None:
        """Begin new episodes in ``columns``, whose environments have been replaced."""
        self._begins[columns] = True
        self._tracker.abandon(columns)

    def get_state(self, states: EnvStates, generation: int) -> SamplerState:
        """Return the state of a sampler whose environments have these states."""
        observation = self._rollout.observation[-1].copy()
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
        ended: NDArray[np.bool_] = (
            self._rollout.terminated[t, columns] | self._rollout.truncated[t, columns]
        )
        return ended
