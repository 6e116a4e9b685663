"""Stepping a block of environments for `VectorEnv`: as `Block` does, with Gymnasium's resets.

The rollout has one row. Results go into row 0, observations into row 1, where they stay until the
next order; final observations (``SameStep``) go into slot 0. Gymnasium is not imported here: it
would cost each worker half a second.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Literal

import numpy as np

from accel_rl.envs.base import EnvFactory, Environment, close_all
from accel_rl.functions import FAILURES
from accel_rl.rollout import Rollout
from accel_rl.samplers.base import SamplerConfig
from accel_rl.samplers.stepping import Carry, EnvStates, environment_seed
from accel_rl.samplers.steps import Steps, env_failure

Autoreset = Literal["NextStep", "SameStep", "Disabled"]

# What an order to reset finds in the row of actions, for each environment; 0 and more are seeds.
LEAVE = -3
NEXT_EPISODE = -2  # goes on after a lost life, begins a new game otherwise
NEW_GAME = -1


class VectorBlock:
    """The environments of the columns ``columns``, which it alone writes, bar the actions.

    Where a step is terminated or truncated, what follows begins as ``autoreset`` says: by a reset,
    or after a lost life by nothing, since the observation is then the next life's first already.

    Raises:
        SamplerError: from `step` and `reset_waiting`, when an environment raises, or gives a reward
            that is not finite.
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
        *,
        autoreset: Autoreset,
    ) -> None:
        self._columns = columns
        self._indices = range(columns.start, columns.stop)
        self._rollout = rollout
        self._autoreset = autoreset
        self.envs: list[Environment] = []
        try:
            for _ in self._indices:
                self.envs.append(factory())
        except BaseException:
            with suppress(Exception):
                self.close()
            raise
        # As in `Block`, so that unseeded resets give the episodes of a sampler with this seed.
        seeds = [environment_seed(seed, index, restart) for index in self._indices]
        self._seeds = [env_seed.spawn(1)[0] for env_seed in seeds]
        self._is_seeded = [False] * len(self.envs)
        self._out = [rollout.observation[1, index, ...] for index in self._indices]
        self._steps = Steps(rollout)
        self._is_idle = [False] * len(self.envs)  # in the next step: that is where it resets
        self._has_lost_life = [False] * len(self.envs)  # in its last step, and no more than that

    def start(self, row: int, states: EnvStates) -> None:
        """Nothing: the first order resets all environments."""

    def step(self, t: int) -> None:
        """Take ``action[0]``, or with ``NextStep`` begin the next episode where a step was done."""
        for i, idle in enumerate(self._is_idle):
            if idle:
                self._begin_episode(i)
        ended = self._steps.take(0, self.envs, self._indices, self._out, self._is_idle)
        self._is_idle = [False] * len(self.envs)
        rollout, columns = self._rollout, self._columns
        is_done = rollout.terminated[0, columns] | rollout.truncated[0, columns]
        for i in np.flatnonzero(is_done).tolist():
            self._end_episode(i, is_over=ended[i])

    def reset_waiting(self) -> None:
        """Reset what the row of actions names."""
        orders = self._rollout.action[0, self._columns].tolist()
        for i, order in enumerate(orders):
            if order != LEAVE:
                if order >= 0:
                    self._seed(i, np.random.SeedSequence(order))
                if order != NEXT_EPISODE:
                    self._has_lost_life[i] = False
                self._begin_episode(i)
                self._is_idle[i] = False

    def close(self) -> None:
        close_all(self.envs)

    def _end_episode(self, i: int, is_over: bool) -> None:
        self._has_lost_life[i] = not is_over
        if self._autoreset == "SameStep":
            self._rollout.final_observation[0, self._indices[i]] = self._out[i]
            self._begin_episode(i)
        elif self._autoreset == "NextStep":
            self._is_idle[i] = True

    def _begin_episode(self, i: int) -> None:
        """Reset the environment, unless it has only lost a life: then it goes on by itself."""
        has_lost_life, self._has_lost_life[i] = self._has_lost_life[i], False
        if has_lost_life:
            return
        if not self._is_seeded[i]:
            self._seed(i, self._seeds[i])
        try:
            self.envs[i].reset(self._out[i])
        except FAILURES as error:
            raise env_failure(self.envs[i], self._indices[i], "reset", error) from error

    def _seed(self, i: int, seed: np.random.SeedSequence) -> None:
        try:
            self.envs[i].seed(seed)
        except FAILURES as error:
            raise env_failure(self.envs[i], self._indices[i], "seed", error) from error
        self._is_seeded[i] = True
