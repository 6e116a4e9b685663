"""A pool of simulator processes whose environments are cut into groups.

`WorkerPool.send` releases a group to take a step; `WorkerPool.recv` returns a group whose workers
have all done so. Everything else stands on these two calls.
"""

from __future__ import annotations

import logging
import os
import select
import sys
from collections.abc import Callable
from time import monotonic
from typing import Any

import psutil

from accel_rl.envs.base import EnvFactory
from accel_rl.rollout import RolloutSpec
from accel_rl.samplers.base import SamplerConfig
from accel_rl.samplers.errors import SamplerError, WorkerError
from accel_rl.samplers.layout import assign_columns
from accel_rl.samplers.process import WorkerProcess
from accel_rl.samplers.restart import truncate_running
from accel_rl.samplers.shared import (
    CLOSE,
    GET_STATE,
    RESET_WAITING,
    STEP,
    WAIT_FOR_RESET,
    PoolSpec,
    Setup,
    count_down,
    create_memory,
    map_memory,
    take,
)
from accel_rl.samplers.stepping import Block, EnvStates
from accel_rl.topology import CorePlan

_CHECK_SECONDS = 0.25  # how often a waiting server looks at the orders themselves
_NICENESS = 5  # a third of the weight of a policy on the same core, which all workers wait for
_GRACE_SECONDS = 0.5  # for environments to close after a failure; more may hang

_LOGGER = logging.getLogger(__name__)


class WorkerPool:
    """Simulator processes, pinned, stepping groups of environments into one shared rollout.

    Before each `send`, the server has written the group's actions into ``rollout.action[t]``; from
    then until `recv` returns the group, its columns belong to the workers, afterwards to the
    server. A worker that dies, or hangs longer than the timeouts of ``config``, ends the pool with
    a `WorkerError` or is replaced, as ``config.on_worker_failure`` says.

    ``rollout``, ``carry``: shared arrays. ``columns[g]``: the columns of group ``g``.
    ``generation``: how often environments have started anew.
    ``abandoned``: environments whose running episode a replacement cut off between two rollouts,
    where no row can tell; ``lost``: rows and environments at which one was cut off within a
    rollout; whoever keeps statistics empties both. ``make_block``: makes what steps a worker's
    environments of one group, a `Block` or something with its methods.

    Raises:
        SamplerError: this is not Linux.
    """

    def __init__(
        self,
        factory: EnvFactory,
        rollout_spec: RolloutSpec,
        config: SamplerConfig,
        seed: int,
        plan: CorePlan,
        make_block: Callable[..., Any] = Block,
    ) -> None:
        if sys.platform != "linux":
            raise SamplerError(
                f"parallel samplers need Linux, and this is {sys.platform}; use SerialSampler "
                f"(serial=true on the command line)"
            )
        num_workers, G = len(plan.worker_cpus), config.num_groups
        self._factory = factory
        self._config = config
        self._seed = seed
        self._make_block = make_block
        self._cpus = ((),) * num_workers if config.affinity == "off" else plan.worker_cpus
        self._niceness = _NICENESS if config.affinity == "rotate" else 0
        self._spec = PoolSpec(rollout_spec, assign_columns(config, num_workers))
        size = config.num_envs // G
        self.columns = [slice(g * size, (g + 1) * size) for g in range(G)]
        self._members = [
            [w for w, own in enumerate(self._spec.columns) if own[g]] for g in range(G)
        ]
        self._workers: list[WorkerProcess] = []
        self._deadline: list[float | None] = [None] * G  # of the group's order; None: it has none
        self._num_restarts = self.generation = 0
        self.abandoned: list[int] = []
        self.lost: set[tuple[int, int]] = set()

        free = psutil.virtual_memory().available
        if rollout_spec.nbytes > free:
            raise ValueError(
                f"rollouts of num_envs={config.num_envs} x horizon={config.horizon} take "
                f"{rollout_spec.nbytes / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free; use less"
            )
        self._memory = create_memory(self._spec)
        self._arrays = map_memory(self._spec, self._memory)
        self.rollout = self._arrays.rollout
        self.carry = self._arrays.carry
        flags = os.EFD_CLOEXEC | os.EFD_NONBLOCK
        self._countdown = [os.eventfd(0, flags | os.EFD_SEMAPHORE) for _ in range(G)]
        self._ready = [os.eventfd(0, flags) for _ in range(G)]
        self._wake = [os.eventfd(0, os.EFD_CLOEXEC) for _ in range(num_workers)]
        self._started = os.eventfd(0, flags)
        self._epoll = select.epoll()
        for descriptor in (*self._ready, self._started):
            # Edge-triggered: another group that is ready must not keep this process from sleeping.
            self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLET)

    def start(self, states: EnvStates | None = None, generation: int = 0) -> None:
        """Start the workers; their first observations are in observation row T when this returns.

        Environments with a state in ``states`` go on from there; row T holds theirs already.
        ``generation``: others of the same seed are new ones, with other random numbers.

        Raises:
            SamplerError: started before.
            WorkerError: a worker failed, or took longer than ``reset_timeout_seconds``.
        """
        if self._workers or self._epoll.closed:
            raise SamplerError("this sampler was started before; make another one")
        self.generation = generation
        rows = [self._spec.rollout.T] * len(self.columns)
        try:
            for worker in range(len(self._cpus)):
                self._workers.append(self._start_worker(worker, rows, states or {}))
            self._await_start()
        except BaseException:
            self.close(_GRACE_SECONDS)
            raise

    def send(self, group: int, row: int, command: int = STEP) -> None:
        """Release a group: its workers take step ``row``, or reset what waits."""
        arrays, config = self._arrays, self._config
        members = self._members[group]
        arrays.command[group] = command
        arrays.row[group] = row
        arrays.sequence[group] += 1
        is_step = command == STEP
        timeout = config.step_timeout_seconds if is_step else config.reset_timeout_seconds
        self._deadline[group] = monotonic() + timeout
        if len(members) > 1:
            os.eventfd_write(self._countdown[group], len(members) - 1)
        for worker in members:
            os.eventfd_write(self._wake[worker], 1)

    def is_released(self, group: int) -> bool:
        """Whether ``group`` has an order that `recv` has not returned yet."""
        return self._deadline[group] is not None

    def recv(self, group: int | None = None) -> int:
        """Wait until all workers of ``group`` (of any released group) are done; returns the group.

        Raises:
            WorkerError: a worker died or hung and is not to be replaced; the pool is closed then.
        """
        if group is None:
            wanted = [g for g in range(len(self.columns)) if self.is_released(g)]
        else:
            wanted = [group]
        assert wanted and all(self.is_released(g) for g in wanted), "recv of a group not released"
        num_quiet = 0
        while True:
            for g in wanted:
                if take(self._ready[g]) and self._is_done(g):
                    self._deadline[g] = None
                    return g
            num_quiet = 0 if self._wait() else num_quiet + 1
            for g in wanted if num_quiet else ():
                if self._is_done(g):
                    # A worker died between its work and its count-down: do that for it.
                    while take(self._countdown[g]):
                        pass
                    os.eventfd_write(self._ready[g], 1)
                elif num_quiet > 1 and monotonic() > (self._deadline[g] or 0):
                    self._end_hung(g)

    def get_states(self) -> EnvStates:
        """The state of every environment, when all waiting resets are done.

        A worker that is replaced meanwhile gives none.

        Raises:
            WorkerError: as `recv`, or an environment fails to tell its state.
        """
        groups = range(len(self.columns))
        for group in groups:
            if self.is_released(group):
                self.recv(group)
        for group in groups:
            self.send(group, row=self._spec.rollout.T, command=GET_STATE)
        for group in groups:
            self.recv(group)
        states: EnvStates = dict.fromkeys(range(self._config.num_envs))
        for process in self._workers:
            states |= process.take_states()
        return states

    @property
    def busy_seconds(self) -> float:
        """Mean time that the workers have spent in their simulators."""
        return float(self._arrays.busy_seconds.mean())

    def close(self, grace_seconds: float = 5.0) -> None:
        """End the workers, by force after ``grace_seconds``. Calling it again does nothing."""
        if self._epoll.closed:
            return
        self._arrays.command[:] = CLOSE
        self._arrays.sequence[:] += 1
        for wake in self._wake:
            os.eventfd_write(wake, 1)
        deadline = monotonic() + grace_seconds
        for process in self._workers:
            process.close(max(0.0, deadline - monotonic()))
        self._epoll.close()
        for descriptor in (
            *self._countdown,
            *self._ready,
            *self._wake,
            self._started,
            self._memory,
        ):
            os.close(descriptor)

    def _start_worker(self, worker: int, start_rows: list[int], states: EnvStates) -> WorkerProcess:
        self._arrays.has_started[worker] = False
        setup = Setup(
            worker=worker,
            spec=self._spec,
            config=self._config,
            make_block=self._make_block,
            factory=self._factory,
            seed=self._seed,
            restart=self.generation,
            cpus=self._cpus[worker],
            niceness=self._niceness,
            start_rows=start_rows,
            states={b: states.get(b) for columns in self._spec.columns[worker] for b in columns},
            countdown=self._countdown,
            ready=self._ready,
        )
        process = WorkerProcess(setup, self._memory, self._wake[worker], self._started)
        self._epoll.register(process.pidfd, select.EPOLLIN)
        return process

    def _await_start(self) -> None:
        seconds = self._config.reset_timeout_seconds
        deadline = monotonic() + seconds
        while not self._arrays.has_started.all():
            self._wait()
            if monotonic() > deadline and not self._arrays.has_started.all():
                late = self._workers[int(self._arrays.has_started.argmin())].describe()
                raise WorkerError(
                    f"{late} has not started its environments within reset_timeout_seconds="
                    f"{seconds:g}; raise it, or lower decorrelation_steps"
                )

    def _wait(self) -> bool:
        """Sleep until something happens or for a moment; False if nothing did. Notes deaths.

        To have been stopped (by Ctrl-Z, say) counts as something: the workers were, too.
        """
        began = monotonic()
        events = self._epoll.poll(_CHECK_SECONDS)
        was_stopped = monotonic() - began > _CHECK_SECONDS + 1
        happened = {descriptor for descriptor, _ in events}
        for worker, process in enumerate(self._workers):
            if process.pidfd in happened:
                error = process.failure()
                if not self._arrays.has_started[worker]:
                    raise error
                self._replace(worker, error)
                break  # other deaths show again: descriptors of this round may be in use anew
        return bool(events) or was_stopped

    def _end_hung(self, group: int) -> None:
        arrays = self._arrays
        is_step = arrays.command[group] == STEP
        option = "step_timeout_seconds" if is_step else "reset_timeout_seconds"
        for worker in self._members[group]:
            if arrays.done[worker, group] != arrays.sequence[group]:
                process = self._workers[worker]
                error = WorkerError(
                    f"{process.describe()} has not answered within {option}="
                    f"{getattr(self._config, option):g}; its simulator hangs, or needs more time"
                )
                process.kill()
                self._replace(worker, error)

    def _replace(self, worker: int, error: WorkerError) -> None:
        """Put a fresh process in the place of a lost one, or end the pool with ``error``."""
        lost, config = self._workers[worker], self._config
        if error.worker_traceback or config.on_worker_failure == "raise":
            self.close(_GRACE_SECONDS)
            raise error
        if self._num_restarts == config.max_worker_restarts:
            self.close(_GRACE_SECONDS)
            raise WorkerError(f"{error}; max_worker_restarts={self._num_restarts} are used up")
        self._num_restarts += 1
        self.generation += 1
        _LOGGER.warning("%s; replaced, its running episodes count as truncated", error)
        self._epoll.unregister(lost.pidfd)
        lost.close(timeout_seconds=0)
        owed = [g for g in range(len(self.columns)) if self._owes(worker, g)]
        rows = [self._abandon(worker, g) for g in range(len(self.columns))]
        self._workers[worker] = self._start_worker(worker, rows, {})
        try:
            self._await_start()
        except WorkerError:
            self.close(_GRACE_SECONDS)
            raise
        for group in owed:
            count_down(self._countdown[group], self._ready[group])

    def _abandon(self, worker: int, group: int) -> int:
        """Truncate the episodes of a lost worker; the row for its successor's observations."""
        arrays, columns = self._arrays, self._spec.columns[worker][group]
        row, waits = int(arrays.row[group]), self._config.reset_policy == "wait"
        if arrays.command[group] in (RESET_WAITING, GET_STATE):
            # Between two rollouts. Who waited for a reset, or just had it, has no episode running.
            ended = arrays.rollout.episode_ended
            self.abandoned += [b for b in columns if not (waits and ended[:, b].any())]
            self.carry.is_fresh[columns.start : columns.stop] = False
            return self._spec.rollout.T
        is_done = not self._owes(worker, group)
        cut_off = truncate_running(arrays.rollout, columns, row, is_done, waits)
        self.lost |= {(row, b) for b in cut_off}
        return WAIT_FOR_RESET if waits else row + 1

    def _owes(self, worker: int, group: int) -> bool:
        """Whether a worker has an order of this group that it has not carried out."""
        is_member = worker in self._members[group]
        return is_member and bool(self._arrays.done[worker, group] != self._arrays.sequence[group])

    def _is_done(self, group: int) -> bool:
        return not any(self._owes(worker, group) for worker in self._members[group])
