"""Stepping a block of environments into the columns of a rollout.

This is the one place where environments are stepped and reset: a `SerialSampler` has one block, a
worker has one for each group, so that both give the same rollout by construction.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accel_rl.envs.base import EnvFactory, Environment, Resumable, close_all
from accel_rl.functions import FAILURES
from accel_rl.rollout import Rollout
from accel_rl.samplers.base import SamplerConfig
from accel_rl.samplers.errors import SamplerError
from accel_rl.samplers.states import decode_state, encode_state
from accel_rl.samplers.steps import Steps, env_failure

EnvStates = dict[int, bytes | None]
"""State by environment, as `encode_state` gives it; None: it cannot tell its state."""

ENVIRONMENT_STREAM = 0
NOISE_STREAM = 1


def environment_seed(seed: int, env_index: int, restart: int = 0) -> np.random.SeedSequence:
    """The seed of one environment: disjoint over seeds, environments and restarts."""
    return np.random.SeedSequence(seed, spawn_key=(ENVIRONMENT_STREAM, env_index, restart))


def action_noise(seed: int) -> np.random.Generator:
    """The generator of a sampler's blocks of uniforms ``[T, B]``, one block a rollout."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(NOISE_STREAM,)))


def check_distinct(envs: Sequence[Environment]) -> None:
    """Raises SamplerError where two of ``envs`` are one object, in Gymnasium's wrappers too."""
    if len({id(getattr(env, "innermost", env)) for env in envs}) < len(envs):
        raise SamplerError(
            f"the factory of {envs[0].spec.name} has returned the same environment twice; it must "
            f"make a new one in each call"
        )


class Carry:
    """Where environments that waited for their reset leave the new episode's first observation.

    ``observation``: ``[B, ...]``; ``is_fresh``: ``[B]``, True where it replaces row T of the last
    rollout. Written by whoever steps the column, read and cleared by the sampler between rollouts.
    """

    def __init__(self, observation: NDArray[Any], is_fresh: NDArray[np.bool_]) -> None:
        self.observation = observation
        self.is_fresh = is_fresh

    def into_row_zero(self, rollout: Rollout, columns: slice) -> None:
        """Start the next rollout: its row 0 is the last one's row T, or the fresh observation."""
        rollout.observation[0, columns] = rollout.observation[-1, columns]
        fresh = columns.start + np.flatnonzero(self.is_fresh[columns])
        if fresh.size:
            rollout.observation[0, fresh] = self.observation[fresh]
            self.is_fresh[fresh] = False


class Block:
    """The environments of the columns ``columns``; the only writer of these columns, bar actions.

    ``envs``: they themselves.

    Raises:
        SamplerError: from `step`, when an environment has more truncated episodes in one rollout
            than ``final_observation_slots``, or gives a reward that is not finite.
    """

    def __init__(
        self,
        factory: EnvFactory,
        columns: slice,
        config: SamplerConfig,
        rollout: Rollout,
        carry: Carry,
        seed: int,
        restart: int = 0,
    ) -> None:
        self._columns = columns
        self._waits = config.reset_policy == "wait"
        self._config = config
        self._rollout = rollout
        self._carry = carry
        self._indices = range(columns.start, columns.stop)
        self.envs: list[Environment] = []
        self._seeds = [environment_seed(seed, index, restart) for index in self._indices]
        try:
            for index, env_seed in zip(self._indices, self._seeds, strict=True):
                env = factory()
                self.envs.append(env)
                try:
                    env.seed(env_seed.spawn(1)[0])
                except FAILURES as error:
                    raise env_failure(env, index, "seed", error) from error
        except BaseException:
            with suppress(Exception):
                self.close()
            raise
        # Views made once: indexing a list is several times cheaper than indexing an array. The
        # ellipsis makes views of scalars, too.
        self._out = [[row[index, ...] for index in self._indices] for row in rollout.observation]
        self._steps = Steps(rollout)
        self._is_waiting = [False] * len(self.envs)

    def start(self, row: int, states: EnvStates | None = None) -> None:
        """Reset all environments into observation row ``row``, decorrelated by random steps.

        Those with a state in ``states`` go on from there instead; their observation is in the row
        already.
        """
        for i, (env, seed) in enumerate(zip(self.envs, self._seeds, strict=True)):
            state = states[self._indices[i]] if states else None
            if state is not None:
                self._set_state(i, state)
                continue
            out = self._out[row][i]
            self._reset(i, out)
            rng = np.random.default_rng(seed.spawn(1)[0])
            self._take_random_steps(
                i, out, _random_actions(rng, self._config.decorrelation_steps, env.spec.num_actions)
            )

    def wait_for_reset(self) -> None:
        """Let all environments wait, in the place of others that were lost within a rollout."""
        self._is_waiting = [True] * len(self.envs)

    def step(self, t: int) -> None:
        """Take ``action[t]``: results into row ``t``, observations into row ``t + 1``."""
        out = self._out[t + 1]
        if t == 0:
            self._rollout.final_step[:, self._columns] = -1
        if self._waits:
            for i, is_waiting in enumerate(self._is_waiting):
                if is_waiting:
                    out[i].fill(0)
        ended = self._steps.take(t, self.envs, self._indices, out, self._is_waiting)
        if True in ended:
            terminated, truncated = self._rollout.terminated[t], self._rollout.truncated[t]
            for i, b in enumerate(self._indices):
                if ended[i]:
                    self._end_episode(t, i, keep_final=truncated[b] and not terminated[b])

    def reset_waiting(self) -> None:
        """Reset the environments that wait, their first observations into the carry."""
        for i, is_waiting in enumerate(self._is_waiting):
            if is_waiting:
                index = self._indices[i]
                self._reset(i, self._carry.observation[index, ...])
                self._carry.is_fresh[index] = True
                self._is_waiting[i] = False

    def get_states(self) -> EnvStates:
        """The state of each environment; None for one that cannot tell."""
        return {index: self._get_state(i) for i, index in enumerate(self._indices)}

    def close(self) -> None:
        close_all(self.envs)

    def _get_state(self, i: int) -> bytes | None:
        env = self.envs[i]
        if not isinstance(env, Resumable):
            return None
        try:
            return encode_state(env.get_state())
        except FAILURES as error:
            raise env_failure(env, self._indices[i], "get_state", error) from error

    def _set_state(self, i: int, state: bytes) -> None:
        env = self.envs[i]
        if not isinstance(env, Resumable):
            raise SamplerError(
                f"environment {self._indices[i]} ({env.spec.name}) has a saved state and no "
                f"set_state to take it"
            )
        try:
            env.set_state(decode_state(state))
        except FAILURES as error:
            raise env_failure(env, self._indices[i], "set_state", error) from error

    def _end_episode(self, t: int, i: int, keep_final: bool) -> None:
        index, out = self._indices[i], self._out[t + 1][i]
        if keep_final:
            final_step = self._rollout.final_step[:, index]
            slot = int(final_step.argmin())
            if final_step[slot] >= 0:
                slots = len(final_step)
                raise SamplerError(
                    f"environment {index} was truncated more than final_observation_slots={slots} "
                    f"times within one rollout of {len(self._rollout.action)} steps; leave "
                    f"final_observation_slots out, or raise it"
                )
            self._rollout.final_observation[slot, index] = out
            final_step[slot] = t
        if self._waits:
            self._is_waiting[i] = True
            out.fill(0)
        else:
            self._reset(i, out)

    def _take_random_steps(self, i: int, out: NDArray[Any], actions: list[int]) -> None:
        """Take ``actions`` in environment ``i``, with results that no rollout keeps."""
        if not actions:
            return
        env, b = self.envs[i], self._indices[i]
        num_columns = self._rollout.action.shape[1]
        spec = replace(self._config.rollout_spec(env.spec), T=1, B=num_columns)
        scratch = Rollout.allocate(replace(spec, observation_shape=()))
        steps = Steps(scratch)
        for action in actions:
            scratch.action[0, b] = action
            if steps.take(0, [env], range(b, b + 1), [out], [False])[0]:
                self._reset(i, out)

    def _reset(self, i: int, out: NDArray[Any]) -> None:
        try:
            self.envs[i].reset(out)
        except FAILURES as error:
            raise env_failure(self.envs[i], self._indices[i], "reset", error) from error


def _random_actions(rng: np.random.Generator, max_steps: int, num_actions: int) -> list[int]:
    """0 to ``max_steps`` uniformly random actions."""
    num_steps = int(rng.integers(max_steps + 1))
    return [int(action) for action in rng.integers(num_actions, size=num_steps)]
