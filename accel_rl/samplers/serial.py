"""The serial sampler: all environments in this process, one after another. The reference."""

from __future__ import annotations

import os
from threading import Lock
from time import perf_counter
from typing import Self

import numpy as np

from accel_rl.envs.base import EnvFactory
from accel_rl.envs.make import probe_spec
from accel_rl.rollout import Rollout
from accel_rl.samplers.base import (
    Episode,
    Policy,
    PolicyInput,
    SamplerConfig,
    SamplerTimes,
    check_arguments,
    check_memory,
    check_policy,
)
from accel_rl.samplers.begins import Begins
from accel_rl.samplers.episodes import EpisodeTracker
from accel_rl.samplers.errors import (
    SamplerError,
    name_error,
    not_running,
    of_another_process,
    one_at_a_time,
    was_closed,
)
from accel_rl.samplers.policy_output import write_actions
from accel_rl.samplers.saving import SamplerState, restore_state, take_state
from accel_rl.samplers.stepping import Block, Carry, EnvStates, action_noise, check_distinct


class SerialSampler:
    """Rollouts from environments in this process.

    Gives exactly the rollouts of `ParallelSampler` for the same factory, seed and policy; needs no
    worker, no shared memory and no Linux. Groups, workers and affinity are ignored.

    Raises:
        ValueError: the environment cannot be made, or the free memory does not suffice.
    """

    def __init__(self, factory: EnvFactory, config: SamplerConfig, seed: int = 0) -> None:
        check_arguments(config, seed)
        self.config = config
        self.env_spec = probe_spec(factory, config.reset_timeout_seconds)
        self.rollout_spec = config.rollout_spec(self.env_spec)
        check_memory(self.rollout_spec)
        self.rollout = Rollout.allocate(self.rollout_spec)
        self._factory = factory
        self._seed = seed
        self._noise = action_noise(seed)
        self._columns = slice(0, config.num_envs)
        self._carry = Carry(
            np.zeros_like(self.rollout.observation[0]), np.zeros(config.num_envs, np.bool_)
        )
        self._begins = Begins(self.rollout, self._carry)
        self._tracker = EpisodeTracker(
            config.num_envs, config.decorrelation_steps > 0, self.env_spec.info_keys
        )
        self._block: Block | None = None
        self._is_closed = False
        self._ended_by = ""
        self._generation = 0
        self._simulating = self._in_policy = 0.0

    def start(self, state: SamplerState | None = None) -> None:
        """Make the environments, and reset them or go on from ``state``.

        Raises:
            SamplerError: started before, or closed.
            ValueError: ``state`` is of other environments.
        """
        if self._is_closed:
            raise was_closed()
        if self._block is not None:
            raise SamplerError("this sampler was started before; make another one")
        states: EnvStates = {}
        if state is not None:
            states = restore_state(state, self.rollout, self._noise, self._begins, self._tracker)
            self._generation = state.generation + 1
        self._collecting = Lock()
        self._pid = os.getpid()
        self._block = Block(
            self._factory,
            self._columns,
            self.config,
            self.rollout,
            self._carry,
            self._seed,
            self._generation,
        )
        try:
            check_distinct(self._block.envs)
            self._block.start(self.config.horizon, states)
        except BaseException:
            self.close()
            raise

    def collect(self, policy: Policy) -> Rollout:
        """Take ``horizon`` steps of every environment.

        An error in between, the policy's own included, closes the sampler.

        Raises:
            SamplerError: not started, or closed, or in another ``collect``.
            ValueError: the policy is no function, or returned something else than valid actions.
        """
        if self._block is None:
            raise not_running(self._ended_by, self._is_closed)
        self._check_own()
        check_policy(policy)
        with one_at_a_time(self._collecting, "collect"):
            try:
                return self._collect(policy, self._block)
            except BaseException as error:
                if not self._is_closed:  # by its policy or in another thread
                    self._ended_by = name_error(error)
                self.close()
                raise

    def _collect(self, policy: Policy, block: Block) -> Rollout:
        rollout = self.rollout
        uniform = self._noise.random((self.config.horizon, self.config.num_envs))
        block.reset_waiting()
        for t in range(self.config.horizon):
            begins = self._begins.at(t, self._columns)
            if t == 0:
                self._carry.into_row_zero(rollout, self._columns)
            started = perf_counter()
            step = PolicyInput(rollout.observation[t], uniform[t], t, self._columns, begins)
            actions = policy(step)
            if self._is_closed:
                raise was_closed()
            write_actions(rollout.action[t], actions, self.env_spec.num_actions)
            answered = perf_counter()
            block.step(t)
            self._in_policy += answered - started
            self._simulating += perf_counter() - answered
        self._begins.finish()
        self._tracker.update(rollout)
        return rollout

    def take_episodes(self) -> list[Episode]:
        """Return the episodes that ended since the last call, in order of step, then environment.

        Call it at least once in 100,000 episodes: of more that ended before the last `collect`,
        only the newest 100,000 are kept.
        """
        return self._tracker.take()

    def get_state(self) -> SamplerState:
        """The state after a `collect`, for the `start` of another sampler.

        Raises:
            SamplerError: not running, or in a ``collect``, or an environment fails to tell its
                state.
        """
        if self._block is None:
            raise SamplerError("this sampler is not running; it has no state")
        self._check_own()
        with one_at_a_time(self._collecting, "get_state"):
            self._block.reset_waiting()
            return take_state(
                self._block.get_states(),
                self.rollout,
                self._carry,
                self._noise,
                self._begins,
                self._tracker,
                self._generation,
            )

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def is_running(self) -> bool:
        return self._block is not None

    @property
    def times(self) -> SamplerTimes:
        return SamplerTimes(self._simulating, self._in_policy, self._simulating)

    def close(self) -> None:
        """Close the environments. Calling it again does nothing, nor does it in a fork."""
        if self._block is not None and self._pid != os.getpid():
            return
        block, self._block, self._is_closed = self._block, None, True
        if block is not None:
            block.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check_own(self) -> None:
        """Refuse forks: programs and connections of the environments are those of the parent."""
        if self._pid != os.getpid():
            raise of_another_process(self._pid)
