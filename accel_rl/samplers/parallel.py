"""The parallel sampler: groups of simulators in pinned processes, served in turn.

While the policy acts for one group, the other groups simulate (Stooke and Abbeel 2018,
arXiv:1803.02811, section 3). With one group every environment waits for every other (Clemente et
al. 2017, arXiv:1705.04862).
"""

from __future__ import annotations

from threading import Lock
from time import perf_counter
from typing import Self

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
    check_policy,
)
from accel_rl.samplers.begins import Begins
from accel_rl.samplers.cores import CoreShare
from accel_rl.samplers.episodes import EpisodeTracker
from accel_rl.samplers.errors import SamplerError, name_error, not_running, one_at_a_time
from accel_rl.samplers.layout import ALONE, plan_workers
from accel_rl.samplers.policy_output import write_actions
from accel_rl.samplers.pool import WorkerPool
from accel_rl.samplers.rotation import MoveOn, rotation
from accel_rl.samplers.saving import SamplerState, restore_state, take_state
from accel_rl.samplers.shared import RESET_WAITING
from accel_rl.samplers.stepping import EnvStates, action_noise
from accel_rl.topology import Seat


class ParallelSampler:
    """Rollouts from simulators in worker processes, written once, straight into shared memory.

    ``cpus``: the only CPUs that workers may be pinned to; None: all that this process may use.
    ``drives_gpu``: the policy runs on a GPU, so one of their cores is kept for this process; on the
    CPU the policy floats over the workers' cores. ``seat``: which of several processes on this
    machine that do the same this is; they divide the cores. ``plan``: who runs where.

    Raises:
        ValueError: the environment cannot be made, or the workers do not fit it or the CPUs.
        SamplerError: this is not Linux.
    """

    def __init__(
        self,
        factory: EnvFactory,
        config: SamplerConfig,
        seed: int = 0,
        cpus: list[int] | None = None,
        drives_gpu: bool = False,
        seat: Seat = ALONE,
    ) -> None:
        check_arguments(config, seed)
        self.config = config
        self.plan = plan_workers(config, cpus, drives_gpu, seat)
        self.env_spec = probe_spec(factory, config.reset_timeout_seconds)
        self.rollout_spec = config.rollout_spec(self.env_spec)
        self._pool = WorkerPool(factory, self.rollout_spec, config, seed, self.plan)
        self.rollout = self._pool.rollout
        # With one group there is nothing to take turns with: all wait while the policy acts.
        rotates = config.affinity == "rotate" and config.num_groups > 1 and not drives_gpu
        self._rotates = rotates
        places = () if config.affinity == "off" else self.plan.worker_cpus
        self._cores = CoreShare(places, config.workers_per_core, self._pool.move)
        self._noise = action_noise(seed)
        self._begins = Begins(self.rollout, self._pool.carry)
        self._tracker = EpisodeTracker(
            config.num_envs, config.decorrelation_steps > 0, self.env_spec.info_keys
        )
        self.is_running = False
        self._ended_by = ""
        self._waiting = self._in_policy = 0.0

    def start(self, state: SamplerState | None = None) -> None:
        """Start the workers and wait for their first observations, or go on from ``state``.

        Raises:
            SamplerError: started before, or closed.
            ValueError: ``state`` is of other environments.
            WorkerError: a worker failed, or took longer than ``reset_timeout_seconds``.
        """
        states: EnvStates = {}
        if state is not None:
            states = restore_state(state, self.rollout, self._noise, self._begins, self._tracker)
        self._pool.start(states, 0 if state is None else state.generation + 1)
        self._collecting = Lock()
        self.is_running = True

    def collect(self, policy: Policy) -> Rollout:
        """Take ``horizon`` steps of every environment.

        An error in between, the policy's own included, closes the sampler.

        Raises:
            SamplerError: not started, or closed, or in another ``collect``.
            ValueError: the policy is no function, or returned something else than valid actions.
            WorkerError: a worker died or hung and is not to be replaced.
        """
        if not self.is_running:
            raise not_running(self._ended_by, self._pool.is_closed)
        self._pool.check_open()
        check_policy(policy)
        with one_at_a_time(self._collecting, "collect"):
            try:
                with self._cores.collecting():
                    cores = self._cores.worker_cpus if self._rotates else ()
                    with rotation(cores) as move_on:
                        self._collect(policy, move_on)
            except BaseException as error:
                if self.is_running:  # not closed, by its policy or in another thread
                    self._ended_by = name_error(error)
                self.close()
                raise
            return self.rollout

    def _collect(self, policy: Policy, move_on: MoveOn) -> None:
        rollout, pool, T = self.rollout, self._pool, self.config.horizon
        uniform = self._noise.random((T, self.config.num_envs))
        for t in range(T):
            for group, columns in enumerate(pool.columns):
                began = perf_counter()
                if pool.is_released(group):
                    pool.recv(group)
                received = perf_counter()
                if t == 0:
                    self._begins.mark(pool.abandoned)
                begins = self._begins.at(t, columns)
                if t == 0:
                    pool.carry.into_row_zero(rollout, columns)
                observation = rollout.observation[t, columns]
                step = PolicyInput(observation, uniform[t, columns], t, columns, begins)
                actions = policy(step)
                write_actions(rollout.action[t, columns], actions, self.env_spec.num_actions)
                pool.send(group, row=t)
                move_on()
                self._waiting += received - began
                self._in_policy += perf_counter() - received
        began = perf_counter()
        for group in range(len(pool.columns)):
            pool.recv(group)
        self._waiting += perf_counter() - began
        self._end_abandoned()
        self._begins.finish()
        self._tracker.update(rollout, pool.lost)
        pool.lost.clear()
        if self.config.reset_policy == "wait" and rollout.episode_ended.any():
            for group in range(len(pool.columns)):
                pool.send(group, row=T, command=RESET_WAITING)

    def _end_abandoned(self) -> None:
        if self._pool.abandoned:
            self._begins.mark(self._pool.abandoned)
            self._tracker.abandon(self._pool.abandoned)
            self._pool.abandoned.clear()

    def take_episodes(self) -> list[Episode]:
        """Return the episodes that ended since the last call, in order of step, then environment.

        Call it at least once in 100,000 episodes: of more that ended before the last `collect`,
        only the newest 100,000 are kept.
        """
        return self._tracker.take()

    def get_state(self) -> SamplerState:
        """The state after a `collect`, for the `start` of another sampler.

        With any number of workers, or a `SerialSampler`. An error closes the sampler.

        Raises:
            SamplerError: not running, or in a ``collect``.
            WorkerError: a worker died or hung, or an environment fails to tell its state.
        """
        if not self.is_running:
            raise SamplerError("this sampler is not running; it has no state")
        self._pool.check_open()
        with one_at_a_time(self._collecting, "get_state"):
            try:
                states = self._pool.get_states()
            except BaseException:
                self.close()
                raise
            self._end_abandoned()
            return take_state(
                states,
                self.rollout,
                self._pool.carry,
                self._noise,
                self._begins,
                self._tracker,
                self._pool.generation,
            )

    @property
    def generation(self) -> int:
        return self._pool.generation

    @property
    def times(self) -> SamplerTimes:
        return SamplerTimes(self._waiting, self._in_policy, self._pool.busy_seconds)

    def close(self) -> None:
        """End the workers. Calling it again does nothing."""
        self.is_running = False
        self._pool.close()
        self._cores.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
