"""Samplers that collect rollouts: from environments in this process, or from worker processes.

Groups of environments are served in turn. While the policy acts for one group, worker processes
step the other groups (Stooke and Abbeel 2018, arXiv:1803.02811, section 3). With one group every
environment waits for every other (Clemente et al. 2017, arXiv:1705.04862).
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import fields, replace
from threading import Lock
from time import perf_counter
from typing import Any, Literal, Self

import numpy as np

from accel_rl.envs.make import make_env_factory
from accel_rl.envs.reach import Request, keep_options
from accel_rl.rollout import Rollout
from accel_rl.samplers.base import (
    Episode,
    Policy,
    PolicyInput,
    PolicyOutput,
    SamplerConfig,
    SamplerError,
    SamplerState,
    SamplerTimes,
    check_arguments,
    name_error,
    not_running,
    one_at_a_time,
)
from accel_rl.samplers.block import EnvStates, count_nothing
from accel_rl.samplers.boundary import Boundary, EpisodeTracker
from accel_rl.samplers.layout import (
    ALONE,
    MoveOn,
    assign_columns,
    count_workers,
    kept_on,
    plan_workers,
    rotation,
)
from accel_rl.samplers.local_pool import LocalPool, Pool, recv_all
from accel_rl.samplers.make_block import probe_spec_for
from accel_rl.samplers.orders import RESET
from accel_rl.samplers.pool import WorkerPool
from accel_rl.samplers.workers import NICENESS
from accel_rl.spaces import to_array, write_values
from accel_rl.system.process_settings import all_settings, directory, quick_settings, taking_back
from accel_rl.system.topology import Seat, warn_once

_LOGGER = logging.getLogger(__name__)


class PoolSampler:
    """Base of samplers with a pool of environments: its start, its end, and its times.

    Attributes:
        config: the settings.
        env_spec: spaces of the environment.
        rollout_spec: shapes and dtypes of the rollouts.
        rollout: the arrays into which environments write.
        is_running: whether it was started, and has not been closed.
    """

    _pool: Any

    def __init__(self, env: str | Callable[[], Any], config: SamplerConfig, seed: int) -> None:
        self.config = config
        self._factory = make_env_factory(env)
        self.env_spec = probe_spec_for(self._factory, config)
        self.rollout_spec = config.rollout_spec(self.env_spec)
        self._seed = seed
        self.is_running = False
        self._ended_by = ""

    def _use(self, pool: Pool) -> None:
        """Have environments in ``pool``, which has not been started."""
        self._pool = pool
        self.rollout = pool.arrays.rollout
        self._tracker = EpisodeTracker(
            self.rollout_spec.B, self.config.decorrelation_steps > 0, self.env_spec.info_keys
        )

    def start(
        self, state: SamplerState | None = None, look: Callable[[int], object] = count_nothing
    ) -> None:
        """Start the environments and wait for their first observations.

        Args:
            state: state from which to continue; None starts new episodes.
            look: called a few times a second meanwhile, with the number of random first steps that
                have been taken. What it raises closes the sampler.

        Raises:
            SamplerError: the sampler was started before, or is closed.
            ValueError: ``state`` belongs to other environments.
            WorkerError: a worker failed, or took longer than 240 s + ``step_timeout_seconds``.
        """
        self._pool.check_open()
        if self.is_running:
            raise SamplerError("this sampler was started before; make another one")
        self._pool.look = look
        try:
            self._start(state)
        except BaseException:
            self.close()
            raise
        finally:
            self._pool.look = count_nothing
        self.is_running = True

    def _start(self, state: SamplerState | None) -> None:
        raise NotImplementedError

    def take_episodes(self) -> list[Episode]:
        """Return the episodes that ended since the last call, in order of step, then environment.

        Of the episodes that ended before the last steps, only the newest 100,000 are kept.
        """
        return self._tracker.take()

    @property
    def generation(self) -> int:
        """Number of times that environments were replaced."""
        return int(self._pool.generation)

    def close(self) -> None:
        """Close the environments. A second call, or a call in a fork, does nothing."""
        self.is_running = False
        self._pool.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class RolloutSampler(PoolSampler):
    """Collects rollouts from the environments of a pool. Create a `SerialSampler` or
    `ParallelSampler`.

    Both collect exactly the same rollouts with the same environment, seed and policy. Use a sampler
    in ``with``, or call `start` and `close`. One thread at a time may use it.

    Attributes:
        rollout: the arrays that `collect` writes and returns.
        env_options: options for all resets of Gymnasium environments that follow the beginning of
            the next `collect`, which takes them; None: as before.
    """

    _pool: Pool

    def __init__(self, env: str | Callable[[], Any], config: SamplerConfig, seed: int) -> None:
        super().__init__(env, config, seed)
        self.env_options: dict[str, Any] | None = None
        self._options: dict[str, Any] | None = None
        self._given_in = -1  # generation of the environments that have them
        self._told: set[str] = set()
        self._stage: Literal["ready", "collecting", "finishing"] = "ready"
        self._waiting = self._in_policy = 0.0

    def _use(self, pool: Pool) -> None:
        super()._use(pool)
        self._forget_sent()
        self._boundary = Boundary(self.rollout, pool.arrays.carry, self._tracker, self._seed)

    def _start(self, state: SamplerState | None) -> None:
        pool = self._pool
        states: EnvStates = {}
        generation = 0
        if state is not None:
            states = self._boundary.set_state(state)
            generation = state.generation + 1
        groups = range(len(pool.columns))
        pool.start(groups, self.config.horizon, states, generation)
        recv_all(pool)
        if states:
            refused = pool.take_refused()
            for b in refused:
                self._tracker.forget(slice(b, b + 1))
            self._tell(refused, "do not go on from their saved states, and begin new episodes")
        self._collecting = Lock()

    def collect(self, policy: Policy) -> Rollout:
        """Take ``horizon`` steps of every environment and return the rollout.

        If the policy raises, or at Ctrl-C, the steps of this rollout are dropped, and the next
        rollout continues where the environments are. An error of an environment or a worker closes
        the sampler. So does Ctrl-C in the few moments in which the sampler is between two states,
        a second Ctrl-C, and in a `SerialSampler` Ctrl-C within a step of an environment.

        Args:
            policy: function from a `PolicyInput` to actions, called once for each group and step.

        Returns:
            Views ``[T, B, ...]`` that the next ``collect`` overwrites. If `get_state` replaces a
            lost worker, it overwrites the last row of ``observation`` with the first observations
            of new episodes.

        Raises:
            SamplerError: the sampler was not started, is closed, or is in another ``collect``.
            ValueError: the policy is not a function, or returned invalid actions.
            WorkerError: a worker died or hung, and ``on_worker_failure`` does not replace it.
        """
        if not self.is_running:
            raise not_running(self._ended_by, self._pool.is_closed)
        self._pool.check_open()
        if not callable(policy):
            raise ValueError(
                f"policy is {policy!r}; it must be a function of a PolicyInput that returns actions"
            )
        with one_at_a_time(self._collecting, "collect"):
            self._check_ready()
            try:
                self._give_options()
                with self._placed() as move_on:
                    self._collect(policy, move_on)
            except BaseException as error:
                self._settle(error)
                raise
            return self.rollout

    def _give_options(self) -> None:
        if self.env_options is not None:
            self._options, self.env_options, self._given_in = self.env_options, None, -1
        # Again where a worker was replaced, also while the others take them.
        while self._options is not None and self._given_in != self._pool.generation:
            self._given_in = self._pool.generation
            given = dict.fromkeys(range(self.config.num_envs), (self._options,))
            for answer in self._pool.call(Request(keep_options, given)).values():
                if answer.error:
                    self._options = None
                    raise ValueError(
                        f"env_options is for environments of Gymnasium, one by one, and "
                        f"{self.env_spec.name} takes no options: {answer.message}"
                    )

    def _tell(self, states: EnvStates, what: str) -> None:
        """Warn once that ``what`` of the environments with a text in ``states`` is lost."""
        reasons = [each for each in states.values() if isinstance(each, str)]
        if reasons and what not in self._told:
            self._told.add(what)
            number = f"{len(reasons)} of {self.config.num_envs} environments"
            _LOGGER.warning("%s %s: %s", number, what, reasons[0])

    def _check_ready(self) -> None:
        """Raises SamplerError, and closes this, where Ctrl-C has kept `_settle` from its end."""
        if self._stage != "ready":
            self._ended_by = self._ended_by or name_error(KeyboardInterrupt())
            self.close()
            raise not_running(self._ended_by, self._pool.is_closed)

    def _settle(self, error: BaseException) -> None:
        """After ``error``, of the policy or Ctrl-C: make ready for another rollout, or close."""
        pool = self._pool
        is_settled = False
        try:
            with suppress(SamplerError):
                pool.check_open()
                if self._stage != "finishing":
                    self._stage = "collecting"
                    self._end_early()
                    is_settled = True
        finally:
            if not is_settled:
                if self.is_running:  # not closed, by its policy or in another thread
                    self._ended_by = name_error(error)
                self.close()

    def _end_early(self) -> None:
        """Take in the steps of an interrupted rollout; the next rollout continues from them."""
        pool, boundary = self._pool, self._boundary
        group, t = self._sending
        if group >= 0 and pool.is_released(group):
            self._num_sent[group] = t + 1  # Ctrl-C may have come between the send and its note
        # All first: a worker that is lost meanwhile changes rows of other groups, too.
        for group in range(len(pool.columns)):
            if pool.is_released(group):
                pool.recv((group,))
        for columns, num_rows in zip(pool.columns, self._num_sent, strict=True):
            boundary.cut(columns, num_rows)
        self._note_replaced()
        self._finish(is_whole=False)
        self._reset_waiting(always=True)  # the rows that would tell who waits may be cut off
        self._stage = "ready"

    def _forget_sent(self) -> None:
        # In this rollout: the last group and step sent or about to be sent, and the number of steps
        # sent to each group.
        self._sending = (-1, 0)
        self._num_sent = [0] * len(self._pool.columns)

    def _collect(self, policy: Policy, move_on: MoveOn | None) -> None:
        rollout, pool, boundary, T = self.rollout, self._pool, self._boundary, self.config.horizon
        self._stage = "collecting"
        noise = boundary.draw_noise(getattr(policy, "num_noise", 1))
        for t in range(T):
            for group, columns in enumerate(pool.columns):
                began = perf_counter()
                if t or pool.is_released(group):
                    pool.recv((group,))
                received = perf_counter()
                if t == 0:
                    self._note_replaced()
                    is_first = boundary.is_first(columns)
                    boundary.begin_row_zero(columns)
                else:
                    is_first = boundary.ended(t - 1, columns)
                observation = rollout.observation[t, columns]
                reward = rollout.reward[t - 1, columns]  # of row 0 the last row, still there
                step = PolicyInput(observation, noise[t, columns], t, columns, is_first, reward)
                actions = policy(step)
                pool.check_open()
                if isinstance(actions, PolicyOutput):
                    self._keep(actions.extras, t, columns)
                    actions = actions.action
                elif rollout.extras:
                    self._keep({}, t, columns)
                write_values(self.env_spec.action, actions, rollout.action[t, columns])
                self._sending = (group, t)
                pool.send((group,), (t,))
                self._num_sent[group] = t + 1
                if move_on is not None:
                    move_on()
                self._waiting += received - began
                self._in_policy += perf_counter() - received
        began = perf_counter()
        for group in range(len(pool.columns)):
            pool.recv((group,))
        self._waiting += perf_counter() - began
        self._finish()
        self._reset_waiting()
        self._stage = "ready"

    def _finish(self, is_whole: bool = True) -> None:
        """Take in the rollout, which cannot be done twice, or by half: Ctrl-C ends the sampler."""
        self._stage = "finishing"
        self._boundary.finish(self._pool.lost, is_whole)
        self._forget_sent()
        self._stage = "collecting"

    def _reset_waiting(self, always: bool = False) -> None:
        """Let environments that wait be reset while the caller learns."""
        if self.config.reset_policy == "wait" and (always or self.rollout.episode_ended.any()):
            groups = range(len(self._pool.columns))
            self._pool.send(groups, [self.config.horizon] * len(groups), RESET)

    def _keep(self, extras: Mapping[str, Any], t: int, columns: slice) -> None:
        """Write what the policy gave beside actions into the rollout."""
        kept, B = self.rollout.extras, self.config.num_envs
        arrays = {name: to_array(value, f"extra {name}") for name, value in extras.items()}
        if not kept and t == 0 and columns.start == 0:
            for name, array in arrays.items():
                kept[name] = np.zeros((self.config.horizon, B, *array.shape[1:]), array.dtype)
        if kept.keys() != arrays.keys():
            raise ValueError(
                f"the policy gave the extras {sorted(arrays)}, and {sorted(kept)} before; it must "
                f"give the same in every call"
            )
        for name, array in arrays.items():
            place = kept[name][t, columns]
            if array.shape != place.shape or array.dtype != place.dtype:
                raise ValueError(
                    f"the policy gave {name}, an extra, as {array.dtype} {list(array.shape)}; it "
                    f"must be {place.dtype} {list(place.shape)}, one row for each observation and "
                    f"as it was before"
                )
            place[...] = array

    def _note_replaced(self) -> None:
        if self._pool.replaced:
            self._boundary.restart(self._pool.replaced)
            self._pool.replaced.clear()

    def _placed(self) -> AbstractContextManager[MoveOn | None]:
        """Keep the threads that collect on their cores within."""
        return nullcontext()

    def get_state(self) -> SamplerState:
        """Return the state after a `collect`, for the `start` of another sampler.

        The other sampler may have any number of workers. An error closes this sampler.

        Raises:
            SamplerError: the sampler is not running, or is in a ``collect``.
            WorkerError: a worker died or hung, or an environment failed to return its state.
        """
        if not self.is_running:
            raise SamplerError("this sampler is not running; it has no state")
        self._pool.check_open()
        with one_at_a_time(self._collecting, "get_state"):
            self._check_ready()
            try:
                states = self._pool.get_states()
            except BaseException:
                self.close()
                raise
            self._note_replaced()
            self._tell(states, "cannot be saved, and will begin new episodes after a resume")
            return self._boundary.get_state(states, self._pool.generation)

    @property
    def times(self) -> SamplerTimes:
        """Seconds spent waiting, in the policy, and in simulators."""
        simulating = self._pool.busy_seconds / self._pool.num_workers
        return SamplerTimes(self._waiting, self._in_policy, simulating)


def _make_config(
    config: SamplerConfig | None, settings: Mapping[str, Any], seed: int
) -> SamplerConfig:
    """Return ``config`` with ``settings`` in it; by default with two groups if possible.

    Raises:
        ValueError: a setting is unknown or out of range, or an argument is of another type.
    """
    names = {field.name for field in fields(SamplerConfig)}
    for name in settings:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(names))}"
            raise ValueError(f"{name} is no setting of a sampler; {hint}")
    if config is None:
        num_envs = settings.get("num_envs", SamplerConfig.num_envs)
        if "num_groups" not in settings and isinstance(num_envs, int) and num_envs % 2:
            settings = {**settings, "num_groups": 1}
        config = SamplerConfig(**settings)
    elif settings:
        check_arguments(config, seed)
        config = replace(config, **settings)
    check_arguments(config, seed)
    return config


class SerialSampler(RolloutSampler):
    """A `RolloutSampler` that steps all environments in this process, one after another.

    It needs no workers and no shared memory, and works on every system. It ignores groups, workers
    and affinity. Use it for debugging, and to check that a `ParallelSampler` is right.

    Settings of the whole process that environments change are taken back after they were made and
    after each `collect`: signal handlers, torch's gradient mode, dtype and threads, and others. A
    warning says which. The working directory stays where they moved it.

    Args:
        env: the environment, as in `ParallelSampler`.
        config: the settings; None: the defaults.
        seed: seed of all randomness.
        settings: fields of `SamplerConfig` that override ``config``.

    Raises:
        ValueError: the environment cannot be made, a setting is unknown or out of range, or
            memory does not suffice.
    """

    def __init__(
        self,
        env: str | Callable[[], Any],
        *,
        config: SamplerConfig | None = None,
        seed: int = 0,
        **settings: Any,
    ) -> None:
        config = _make_config(config, settings, seed)
        super().__init__(env, config, seed)
        with self._taking_back():
            self._use(LocalPool(self._factory, self.rollout_spec, config, seed))

    def start(
        self, state: SamplerState | None = None, look: Callable[[int], object] = count_nothing
    ) -> None:
        """Start the environments, see `RolloutSampler`."""
        with self._taking_back():
            super().start(state, look)

    def _taking_back(self) -> AbstractContextManager[None]:
        stays = directory(put=lambda path: None)
        return taking_back([*all_settings(), stays], self._tell_changed)

    @contextmanager
    def _placed(self) -> Iterator[MoveOn | None]:
        with taking_back(quick_settings(), self._tell_changed), super()._placed() as move_on:
            yield move_on

    def _tell_changed(self, names: str) -> None:
        warn_once(
            f"environment {self.env_spec.name} has changed {names} of this process; all but the "
            f"directory is taken back: with workers, its settings are its own"
        )


class ParallelSampler(RolloutSampler):
    """A `RolloutSampler` with simulators in worker processes, which write into shared memory.

        with ParallelSampler("CartPole-v1", num_envs=16, horizon=128) as sampler:
            rollout = sampler.collect(policy)

    Args:
        env: an Atari game (``breakout``), ``catch``, a Gymnasium id, ``module:function``, or a
            function that returns a `gymnasium.Env`, an `Environment` or a `Batched`. A function
            with a parameter ``env_index`` receives the number of each environment. Use
            `make_env_factory` for other settings of Atari games.
        config: the settings; None: the defaults, with one group if ``num_envs`` is odd.
        seed: seed of all randomness.
        cpus: CPUs to which workers may be pinned; None: all that this process may use.
        drives_gpu: True if the policy runs on a GPU: one core is kept for this process. On the
            CPU the policy shares the workers' cores.
        seat: which of several learners on this machine this process is; they divide the cores.
        settings: fields of `SamplerConfig` that override ``config``.

    Attributes:
        plan: the cores of each worker and of this process.
        num_possible: number of workers for which there are cores.

    Raises:
        ValueError: the environment cannot be made, a setting is unknown or out of range, or the
            workers fit neither the environments nor the CPUs.
        SamplerError: this system is not Linux.
    """

    def __init__(
        self,
        env: str | Callable[[], Any],
        *,
        config: SamplerConfig | None = None,
        seed: int = 0,
        cpus: list[int] | None = None,
        drives_gpu: bool = False,
        seat: Seat = ALONE,
        **settings: Any,
    ) -> None:
        config = _make_config(config, settings, seed)
        self.plan = plan_workers(config, cpus, drives_gpu, seat)
        self.num_possible = count_workers(cpus, drives_gpu, seat)
        super().__init__(env, config, seed)
        workers = self.plan.worker_cpus
        self._use(
            WorkerPool(
                self._factory,
                self.rollout_spec,
                config,
                seed,
                workers,
                assign_columns(config, len(workers)),
                niceness=NICENESS if config.affinity == "rotate" else 0,
            )
        )
        # With one group there is nothing to take turns with: all wait while the policy acts.
        self._rotates = config.affinity == "rotate" and config.num_groups > 1 and not drives_gpu
        self._is_kept = drives_gpu and config.affinity != "off"

    def _placed(self) -> AbstractContextManager[MoveOn | None]:
        if self._is_kept:
            return kept_on(self.plan.server_cpus)
        return rotation(self.plan.worker_cpus if self._rotates else ())
