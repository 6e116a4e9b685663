"""A pool of simulator processes whose environments are cut into groups.

`WorkerPool.send` releases a group to take a step; `WorkerPool.recv` returns a group whose workers
have all done so. Everything else stands on these two calls.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from accel_rl.envs.base import EnvFactory
from accel_rl.rollout import RolloutSpec
from accel_rl.samplers.base import SamplerConfig
from accel_rl.samplers.episodes import Place
from accel_rl.samplers.errors import SamplerError, WorkerError
from accel_rl.samplers.layout import assign_columns
from accel_rl.samplers.restart import truncate_running
from accel_rl.samplers.shared import (
    GET_STATE,
    GRACE_SECONDS,
    RESET_WAITING,
    STEP,
    WAIT_FOR_RESET,
    count_down,
    take,
)
from accel_rl.samplers.stepping import Block, EnvStates
from accel_rl.samplers.workers import NICENESS, Workers
from accel_rl.topology import CorePlan

_CHECK_SECONDS = 0.25  # how often a waiting server looks at the orders themselves

_LOGGER = logging.getLogger(__name__)


class WorkerPool:
    """Simulator processes, pinned, stepping groups of environments into one shared rollout.

    Before each `send`, the server has written the group's actions into ``rollout.action[t]``; from
    then until `recv` returns the group, its columns belong to the workers, afterwards to the
    server. A worker that dies, or hangs longer than the timeouts of ``config``, ends the pool with
    a `WorkerError` or is replaced, as ``config.on_worker_failure`` says.

    ``rollout``, ``carry``: shared arrays. ``columns[g]``: the columns of group ``g``.
    ``abandoned``: environments that were replaced between two rollouts, where no row can tell;
    ``lost``: rows and environments at which an episode was cut off within a rollout; whoever keeps
    statistics empties both. ``make_block``: makes what steps a worker's environments of one group,
    a `Block` or something with its methods.

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
        num_workers, G = len(plan.worker_cpus), config.num_groups
        self._config = config
        self._workers = Workers(
            factory,
            rollout_spec,
            config,
            seed,
            plan.worker_cpus,
            assign_columns(config, num_workers),
            niceness=NICENESS if config.affinity == "rotate" else 0,
            make_block=make_block,
        )
        size = config.num_envs // G
        self.columns = [slice(g * size, (g + 1) * size) for g in range(G)]
        self._arrays = self._workers.arrays
        self._num_restarts = 0
        self._replaced: set[int] = set()
        self.abandoned: list[int] = []
        self.lost: set[Place] = set()
        self.rollout = self._arrays.rollout
        self.carry = self._arrays.carry

    def start(self, states: EnvStates | None = None, generation: int = 0) -> None:
        """Start the workers; their first observations are in observation row T when this returns.

        Environments with a state in ``states`` go on from there; row T holds theirs already.
        ``generation``: others of the same seed are new ones, with other random numbers.

        Raises:
            SamplerError: started before, or closed.
            WorkerError: a worker failed, or took longer than ``reset_timeout_seconds``.
        """
        workers = self._workers
        with workers:
            if workers.processes:
                raise SamplerError("this sampler was started before; make another one")
            workers.generation = generation
            rows = [workers.spec.rollout.T] * len(self.columns)
            try:
                for worker in range(workers.spec.num_workers):
                    workers.start(worker, rows, states or {})
                self._await_start()
            except BaseException:
                self.close(GRACE_SECONDS)
                raise

    @property
    def generation(self) -> int:
        """How often environments have started anew."""
        return self._workers.generation

    @property
    def is_closed(self) -> bool:
        return self._workers.is_closed

    def check_open(self) -> None:
        """Raises SamplerError if this was closed, or is that of another process."""
        self._workers.check_open()

    def send(self, group: int, row: int, command: int = STEP) -> None:
        """Release a group: its workers take step ``row``, or reset what waits.

        Raises:
            SamplerError: this was closed.
        """
        with self._workers:
            self._workers.release(group, row, command)

    def is_released(self, group: int) -> bool:
        """Whether ``group`` has an order that `recv` has not returned yet."""
        return self._workers.deadlines[group] is not None

    def recv(self, group: int | None = None) -> int:
        """Wait until all workers of ``group`` (of any released group) are done; returns the group.

        Raises:
            WorkerError: a worker died or hung and is not to be replaced; the pool is closed then.
            SamplerError: this was closed, perhaps meanwhile.
        """
        if group is None:
            wanted = [g for g in range(len(self.columns)) if self.is_released(g)]
        else:
            wanted = [group]
        assert wanted and all(self.is_released(g) for g in wanted), "recv of a group not released"
        with self._workers:
            return self._recv(wanted)

    def _recv(self, wanted: list[int]) -> int:
        workers = self._workers
        num_quiet = 0
        while True:
            for g in wanted:
                if take(workers.ready[g]) and workers.is_done(g):
                    workers.deadlines[g] = None
                    return g
            num_quiet = 0 if self._wait() else num_quiet + 1
            for g in wanted if num_quiet else ():
                if workers.is_done(g):
                    # A worker died between its work and its count-down: do that for it.
                    countdown = workers.countdown[g]
                    while countdown is not None and take(countdown):
                        pass
                    os.eventfd_write(workers.ready[g], 1)
                elif num_quiet > 1 and monotonic() > (workers.deadlines[g] or 0):
                    self._end_hung(g)

    def get_states(self) -> EnvStates:
        """The state of every environment, when all waiting resets are done.

        A worker that is replaced meanwhile gives none.

        Raises:
            WorkerError: as `recv`, or an environment fails to tell its state.
        """
        groups = range(len(self.columns))
        with self._workers:
            for group in groups:
                if self.is_released(group):
                    self.recv(group)
            for group in groups:
                self.send(group, row=self._workers.spec.rollout.T, command=GET_STATE)
            for group in groups:
                self.recv(group)
            states: EnvStates = dict.fromkeys(range(self._config.num_envs))
            for process in self._workers.processes.values():
                states |= process.take_states()
            return states

    def move(self, cpus: Sequence[tuple[int, ...]]) -> None:
        """Move the workers to other CPUs."""
        self._workers.move(cpus)

    @property
    def busy_seconds(self) -> float:
        """Mean time that the workers have spent in their simulators."""
        return float(self._arrays.busy_seconds.mean())

    def close(self, grace_seconds: float = 5.0) -> None:
        """End the workers, by force after ``grace_seconds``. Calling it again does nothing."""
        self._workers.close(grace_seconds)

    def _await_start(self) -> None:
        has_started = self._arrays.has_started
        num_restarts, deadline = -1, 0.0
        while not has_started.all():
            if num_restarts != self._num_restarts:  # one more has begun to start
                num_restarts = self._num_restarts
                deadline = monotonic() + self._config.reset_timeout_seconds
            self._wait()
            if monotonic() > deadline and not has_started.all():
                raise self._workers.late_start(int(has_started.argmin()))

    def _wait(self) -> bool:
        """Sleep until something happens or for a moment; False if nothing did. Notes deaths.

        To have been stopped (by Ctrl-Z, say) counts as something: nobody looked meanwhile.
        """
        began = monotonic()
        happened = self._workers.poll(_CHECK_SECONDS)
        self._workers.check_open()
        was_stopped = monotonic() - began > _CHECK_SECONDS + 1
        for descriptor in happened:
            worker = self._workers.worker_of.get(descriptor)
            if worker is not None:
                process = self._workers.processes[worker]
                error = process.failure()
                if self._arrays.has_started[worker]:
                    self._replace(worker, error)
                elif worker in self._replaced:
                    self._count_restart(error)
                    self._workers.forget(worker)
                    rows = process.setup.start_rows
                    self._workers.start(worker, rows, {}, is_replacement=True)
                else:
                    raise error
                break  # other deaths show again: descriptors of this round may be in use anew
        return bool(happened) or was_stopped

    def _end_hung(self, group: int) -> None:
        for worker in self._workers.members[group]:
            if self._workers.owes(worker, group):
                self._replace(worker, self._workers.hung(worker, group))

    def _count_restart(self, error: WorkerError) -> None:
        """Note that a worker is replaced, or end the pool with ``error`` if none may be."""
        config = self._config
        if error.worker_traceback or config.on_worker_failure == "raise":
            self.close(GRACE_SECONDS)
            raise error
        if self._num_restarts == config.max_worker_restarts:
            self.close(GRACE_SECONDS)
            raise WorkerError(f"{error}; max_worker_restarts={self._num_restarts} are used up")
        self._num_restarts += 1
        self._workers.generation += 1
        _LOGGER.warning("%s; replaced, its running episodes count as truncated", error)

    def _replace(self, worker: int, error: WorkerError) -> None:
        """Put a fresh process in the place of a lost one, or end the pool with ``error``."""
        workers = self._workers
        self._count_restart(error)
        self._replaced.add(worker)
        workers.forget(worker)
        groups = range(len(self.columns))
        owed = [g for g in groups if workers.owes(worker, g)]
        rows = [self._abandon(worker, g) for g in groups]
        workers.start(worker, rows, {}, is_replacement=True)
        try:
            self._await_start()
        except WorkerError:
            self.close(GRACE_SECONDS)
            raise
        for group in owed:
            count_down(workers.countdown[group], workers.ready[group])

    def _abandon(self, worker: int, group: int) -> int:
        """Truncate the episodes of a lost worker; the row for its successor's observations."""
        workers, arrays = self._workers, self._arrays
        columns = workers.spec.columns[worker][group]
        row, waits = int(arrays.row[group]), self._config.reset_policy == "wait"
        if arrays.command[group] in (RESET_WAITING, GET_STATE):
            self.abandoned += columns  # between two rollouts
            self.carry.is_fresh[columns.start : columns.stop] = False
            return workers.spec.rollout.T
        is_done = not workers.owes(worker, group)
        cut_off = truncate_running(arrays.rollout, columns, row, is_done, waits)
        self.lost |= {(row, b) for b in cut_off}
        return WAIT_FOR_RESET if waits else row + 1
