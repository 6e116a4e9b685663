"""A pool of simulator processes whose environments are cut into groups.

`WorkerPool.send` releases groups to take a step; `WorkerPool.recv` returns groups whose workers
have all done so. Everything else stands on these two calls.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Sequence
from itertools import islice
from threading import RLock
from time import monotonic, perf_counter
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from accel_rl.envs.base import EnvFactory
from accel_rl.envs.reach import Answer, Request
from accel_rl.rollout import RolloutSpec, truncate_running
from accel_rl.samplers.base import Autoreset, SamplerConfig, SamplerError, WorkerError
from accel_rl.samplers.block import EnvStates, count_nothing
from accel_rl.samplers.boundary import Place
from accel_rl.samplers.layout import EnvSlice, group_columns
from accel_rl.samplers.local_pool import recv_all
from accel_rl.samplers.orders import (
    CALL,
    CLOSE,
    GET_STATE,
    RESET,
    STEP,
    TIMEOUTS,
    WAIT_FOR_RESET,
    count_down,
    take,
)
from accel_rl.samplers.process import pickle_request
from accel_rl.samplers.shared import GRACE_SECONDS, LOOK_SECONDS
from accel_rl.samplers.workers import Workers

MAX_RESTARTS = 10  # of workers of one pool
_MOST_WATCHED_SECONDS = 1.0  # that count of the time between two looks

_LOGGER = logging.getLogger(__name__)


class _Start(NamedTuple):
    deadline: float
    is_replacement: bool


class WorkerPool:
    """Simulator processes, pinned, stepping groups of environments into one shared rollout.

    It has the attributes and methods of a `Pool`. A worker that dies, or hangs longer than the
    timeouts of ``config``, ends the pool with a `WorkerError` or is replaced, as
    ``config.on_worker_failure`` says. The running episodes of a replaced worker are truncated; a
    step that it did not take is not valid.

    Only one thread at a time may call its methods, except `send` and `close`. Ctrl-C within `send`
    or `recv` leaves each group released or not, as `is_released` says; within the replacement of a
    worker it closes the pool.

    Args:
        factory: makes one environment.
        spec: the rollout.
        config: the sampler's settings.
        seed: the sampler's seed.
        cpus: for each worker the CPUs that it is pinned to.
        slices: which columns each worker steps of each group, in order of worker.
        niceness: by how much workers yield to other processes.
        autoreset: as in `Block`.

    Attributes:
        sending: while a thread holds this lock, no group is released.

    Raises:
        SamplerError: this is not Linux, or no more files can be opened.
        ValueError: the free memory, or the number of open files, does not suffice, or the factory
            cannot be pickled.
    """

    def __init__(
        self,
        factory: EnvFactory,
        spec: RolloutSpec,
        config: SamplerConfig,
        seed: int,
        cpus: Sequence[tuple[int, ...]],
        slices: list[EnvSlice],
        niceness: int = 0,
        *,
        autoreset: Autoreset | None = None,
    ) -> None:
        self._config = config
        self._workers = Workers(
            factory, spec, config, seed, cpus, slices, niceness=niceness, autoreset=autoreset
        )
        self.check_open = self._workers.check_open
        self._orders = self._workers.orders
        self._shared = self._workers.arrays
        self.arrays = self._shared.block
        self.columns = group_columns(spec.B, self._workers.spec.num_groups)
        self.num_workers = len(cpus)
        self.generation = 0
        self.lost: set[Place] = set()
        self.replaced: list[int] = []
        self.look: Callable[[int], object] = count_nothing
        self.sending = RLock()
        self._group_of = {ready: g for g, ready in enumerate(self._workers.ready)}
        # A dict for each of these states: Ctrl-C finds a group or worker in it or not, and whether
        # it is empty costs nothing to ask in each step. Of groups:
        self._out: dict[int, float] = {}  # released groups that are not ready, and their deadlines
        self._ready: dict[int, None] = {}  # released groups that are ready, the first ones first
        # Deadlines of retired groups; None: `send` has not ended them yet.
        self._leaving: dict[int, float | None] = {}
        # Of workers:
        self._starting: dict[int, _Start] = {}
        self._dead: dict[int, WorkerError] = {}  # not replaced yet
        self._started: set[int] = set()  # workers that have run, or that run
        self._num_restarts = 0
        # Deadlines are compared with the time in which this pool has watched its workers. If this
        # process is stopped, by Ctrl-Z for example, so are they, and that time must not count.
        self._watched, self._looked_at = 0.0, monotonic()

    # ---- the two calls ---------------------------------------------------------------------------

    def start(
        self, groups: Sequence[int], row: int, states: EnvStates | None = None, generation: int = 0
    ) -> None:
        workers = self._workers
        with workers:
            members = sorted({w for g in groups for w in workers.members[g]})
            if not workers.processes.keys().isdisjoint(members):
                raise SamplerError("this sampler was started before; make another one")
            self.generation += generation + any(w in self._started for w in members)
            for group in groups:
                self._orders.numbers[group] += 1
                self._out[group] = math.inf
                self._orders.number_order(group)
            try:
                for worker in members:
                    self._start(worker, [row] * len(self.columns), states or {})
                    self._started.add(worker)
            except BaseException:
                self.close(GRACE_SECONDS)
                raise

    def send(self, groups: Sequence[int], rows: Sequence[int], command: int = STEP) -> None:
        """Release groups, see `Pool`; end those that were retired."""
        workers = self._workers
        with self.sending:
            workers.uses.append(None)
            try:
                if workers.is_closed:
                    self.check_open()
                deadline = self._now() + getattr(self._config, TIMEOUTS[command])
                for group, row in zip(groups, rows, strict=True):
                    # First, so that no thread mistakes what the workers have done before for this
                    # order.
                    self._orders.numbers[group] += 1
                    if group in self._leaving:
                        self._leaving[group] = deadline
                        self._orders.release(group, row, CLOSE)
                    else:
                        self._out[group] = deadline
                        self._orders.release(group, row, command)
            finally:
                workers.uses.pop()
                if workers.has_ended:
                    workers.free()

    def is_released(self, group: int) -> bool:
        # Ctrl-C within `send` may leave one that is out without an order.
        return group in self._ready or (group in self._out and self._orders.is_ordered(group))

    def recv(
        self, groups: Sequence[int] | None = None, limit: int = 1, timeout: float = math.inf
    ) -> list[int]:
        workers = self._workers
        workers.uses.append(None)
        try:
            if workers.is_closed:
                self.check_open()
            deadline = monotonic() + timeout
            if self._dead:
                self._settle_dead()
            if groups is None:
                # Which groups became ready first, only the order of their signals can tell.
                self._poll(0.0 if self._ready else min(timeout, LOOK_SECONDS))
            else:
                for group in groups:
                    self._note(group)
            if groups is None and monotonic() - self._looked_at > LOOK_SECONDS:
                self._look()
            while not (ready := self._take_ready(groups, limit)):
                left = deadline - monotonic()
                if left <= 0:
                    break
                self._wait(min(left, LOOK_SECONDS))
            return ready
        finally:
            workers.uses.pop()
            if workers.has_ended:
                workers.free()

    def await_start(self) -> None:
        """Wait until all workers that were started have started.

        Raises:
            WorkerError: a worker failed, or took longer than 240 s + ``step_timeout_seconds``.
            SamplerError: this was closed meanwhile.
        """
        with self._workers:
            while self._starting:
                self._wait(LOOK_SECONDS)

    def _wait(self, seconds: float) -> None:
        """Wait up to ``seconds`` until something happens; look for workers that are late."""
        workers = self._workers
        if not workers.is_closed:
            self._poll(seconds)
        if workers.is_closed:
            self.check_open()
        if self._starting:
            self.look(int(self._shared.first_steps.sum()))
        if monotonic() - self._looked_at > LOOK_SECONDS:
            self._look()

    def _take_ready(self, groups: Sequence[int] | None, limit: int) -> list[int]:
        chosen = self._ready if groups is None else filter(groups.__contains__, self._ready)
        ready = list(islice(chosen, limit))
        for group in ready:
            del self._ready[group]
        return ready

    # ---- more groups, fewer groups ---------------------------------------------------------------

    @property
    def running(self) -> list[int]:
        """Workers that run or start, except those of retired groups."""
        return [w for w in list(self._workers.processes) if w not in self._leaving]

    @property
    def free(self) -> list[int]:
        """Workers that do not run."""
        processes = self._workers.processes
        return [w for w in range(self.num_workers) if w not in processes]

    @property
    def num_starting(self) -> int:
        """Workers that were started and whose environments are not reset yet."""
        return len(self._starting)

    @property
    def num_ready(self) -> int:
        """Groups that are known to be ready and that `recv` has not returned."""
        return len(self._ready)

    def retire(self, groups: Sequence[int]) -> None:
        """Let groups that `recv` has returned end at their next `send`.

        Each of them has one worker, which has no other group and the group's number.
        """
        self._leaving.update(dict.fromkeys(groups))

    def generation_of(self, group: int) -> int:
        """The generation in which the environments of ``group`` were started."""
        (worker,) = self._workers.members[group]
        return self._workers.processes[worker].setup.restart

    def done_at(self, groups: Sequence[int]) -> NDArray[np.float64]:
        """Return when each of these groups of one worker was ready, by `time.perf_counter`."""
        done_at: NDArray[np.float64] = self._shared.done_at[groups]  # whose numbers are workers'
        return done_at

    # ---- the rest of a pool ----------------------------------------------------------------------

    @property
    def busy_seconds(self) -> float:
        """Time that all workers that ever ran have spent in their simulators."""
        return float(self._shared.busy_seconds.sum())

    @property
    def is_closed(self) -> bool:
        return self._workers.is_closed

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a fork of the one that made this, and may not use it."""
        return self._workers.inherited_from != 0

    def get_states(self) -> EnvStates:
        """Return states, see `Pool`; none of environments that are replaced meanwhile."""
        with self._workers:
            self._order_all(GET_STATE)
            states: EnvStates = dict.fromkeys(range(self._workers.spec.rollout.B))
            for process in self._workers.processes.values():
                states |= process.take()
            return states

    def _order_all(self, command: int) -> None:
        """Let all groups carry out ``command``, after what they do, and wait for them."""
        recv_all(self)
        groups = range(len(self.columns))
        self.send(groups, [self._workers.spec.rollout.T] * len(groups), command)
        recv_all(self)

    def take_refused(self) -> EnvStates:
        with self._workers:
            processes = self._workers.processes.values()
            return {b: why for each in processes for b, why in each.take().items()}

    def call(self, request: Request) -> dict[int, Answer]:
        pickled = pickle_request(request)
        with self._workers:
            recv_all(self)
            for process in self._workers.processes.values():
                process.leave_request(pickled)
            self._order_all(CALL)
            answers: dict[int, Answer] = {}
            for process in self._workers.processes.values():  # some may be new, with nothing
                answers |= process.take(len(pickled))
            return answers

    def close(self, grace_seconds: float = 5.0) -> None:
        """End the workers, by force after ``grace_seconds``. Calling it again does nothing."""
        if self.is_inherited:  # where another thread may have held the lock
            return
        # Not for ever: who has it may be closing this, too, and wait for what this thread, now in a
        # signal handler, was doing when the signal came.
        is_alone = self.sending.acquire(timeout=max(grace_seconds, GRACE_SECONDS))
        try:
            self._workers.close(grace_seconds)
        finally:
            if is_alone:
                self.sending.release()

    # ---- what happens ----------------------------------------------------------------------------

    def _poll(self, seconds: float) -> None:
        """Note what has happened, waiting up to ``seconds`` for something."""
        workers = self._workers
        for descriptor, _ in workers.poll(seconds):
            group = self._group_of.get(descriptor)
            if group is not None:
                self._note(group)
            elif descriptor == workers.started:
                self._note_started()
            elif (worker := workers.worker_of.get(descriptor)) is not None:
                self._dead[worker] = workers.processes[worker].failure()
                workers.unwatch(worker)
        if self._dead:
            self._settle_dead()

    def _note(self, group: int) -> None:
        """Note that ``group`` is ready, if it is. Reads its signal first, as `orders` says."""
        try:
            os.eventfd_read(self._workers.ready[group])
        except BlockingIOError:
            return
        if group in self._out and self._is_done(group):
            del self._out[group]
            self._ready[group] = None

    def _is_done(self, group: int) -> bool:
        """Whether all workers of a group run and have carried out its order."""
        if self._starting and not self._starting.keys().isdisjoint(self._workers.members[group]):
            return False
        return self._orders.is_done(group)

    def _note_started(self) -> None:
        shared, workers = self._shared, self._workers
        for worker in [w for w in self._starting if shared.has_started[w]]:
            del self._starting[worker]
            shared.done_at[worker] = perf_counter()
            for group in workers.groups_of(worker):
                count_down(workers.countdown[group], workers.ready[group])
                self._note(group)

    # ---- workers that are late, hang or die ------------------------------------------------------

    def _now(self) -> float:
        """Return the seconds in which this pool has watched its workers."""
        return self._watched + min(monotonic() - self._looked_at, _MOST_WATCHED_SECONDS)

    def _look(self) -> None:
        """Look for workers that are late, and for what Ctrl-C has left unnoted or asleep."""
        self._watched, self._looked_at = self._now(), monotonic()
        now, workers = self._watched, self._workers
        self._note_started()
        for worker, start in self._starting.items():
            if now > start.deadline and not self._shared.has_started[worker]:
                self._fail(workers.late_start(worker))
        for group, deadline in self._leaving.items():
            if deadline is not None and now > deadline:
                workers.processes[group].kill()
        for group, deadline in list(self._out.items()):
            if self._is_done(group):
                self._signal_for_dead(group)
            elif now > deadline:
                for worker in workers.members[group]:
                    if worker not in self._dead and self._orders.owes(worker, group):
                        self._dead[worker] = workers.hung(worker, group)
            else:
                self._orders.wake(group)
        if self._dead:
            self._settle_dead()

    def _signal_for_dead(self, group: int) -> None:
        """Signal that a group is done, in case a worker died between its work and its signal."""
        countdown = self._workers.countdown[group]
        while countdown is not None and take(countdown):
            pass
        os.eventfd_write(self._workers.ready[group], 1)

    def _settle_dead(self) -> None:
        """Replace workers that died, as soon as they owe something."""
        workers = self._workers
        for worker, error in list(self._dead.items()):
            if worker in self._leaving:
                if self._leaving[worker] is not None:  # nobody is about to use its place
                    del self._dead[worker], self._leaving[worker]
                    workers.forget(worker)
                continue
            own = workers.groups_of(worker)
            if (
                self._is_fatal(error)
                or worker in self._starting
                or any(self._orders.owes(worker, g) for g in own)
            ):
                try:
                    self._replace(worker, error)
                    del self._dead[worker]
                except BaseException:  # there is none in its place, and nobody would know
                    self.close(GRACE_SECONDS)
                    raise

    def _is_fatal(self, error: WorkerError) -> bool:
        return bool(error.worker_traceback) or self._config.on_worker_failure == "raise"

    def _replace(self, worker: int, error: WorkerError) -> None:
        """Start a process in place of one that died or hung, or end the pool with ``error``."""
        workers = self._workers
        own = workers.groups_of(worker)
        # An order that Ctrl-C has cut short has overwritten which row the last one was for.
        if self._is_fatal(error) or not all(map(self._orders.is_ordered, own)):
            self._fail(error)
        if self._num_restarts == MAX_RESTARTS:
            self._fail(WorkerError(f"{error}; {MAX_RESTARTS} workers were restarted before"))
        self._num_restarts += 1
        self.generation += 1
        before = self._starting.pop(worker, None)
        if before is not None:
            _LOGGER.warning("%s; replaced", error)
            setup = workers.processes[worker].setup
            workers.forget(worker)
            self._start(worker, setup.start_rows, setup.states, before.is_replacement)
        else:
            _LOGGER.warning("%s; replaced, its running episodes count as truncated", error)
            workers.forget(worker)  # before its rows are mended
            rows = [0] * len(self.columns)
            for _, group, columns in workers.slices_of[worker]:
                rows[group] = self._cut_off(worker, group, columns)
                if group in self._ready:  # not without its first observations
                    del self._ready[group]
                    self._out[group] = math.inf
            self._start(worker, rows, {}, is_replacement=True)

    def _start(
        self, worker: int, rows: list[int], states: EnvStates, is_replacement: bool = False
    ) -> None:
        """Start a process whose orders all count as done: this pool settles what is owed."""
        self._shared.done[worker] = self._shared.sequence
        self._workers.start(worker, rows, states, self.generation, is_replacement)
        deadline = self._now() + self._config.reset_timeout_seconds
        self._starting[worker] = _Start(deadline, is_replacement)

    def _cut_off(self, worker: int, group: int, columns: range) -> int:
        """Truncate a lost worker's episodes; return the row for its successor's observations."""
        workers, rollout = self._workers, self.arrays.rollout
        own = slice(columns.start, columns.stop)
        row, waits = int(self._shared.row[group]), self._config.reset_policy == "wait"
        if self._shared.command[group] in (RESET, GET_STATE, CALL):
            self.replaced += columns  # between two rollouts
            self.arrays.carry.is_fresh[own] = False
            return workers.spec.rollout.T
        is_done = not self._orders.owes(worker, group)
        cut_off = truncate_running(rollout, columns, row, is_done, waits)
        self.lost |= {(row, b) for b in cut_off}
        return WAIT_FOR_RESET if waits else row + 1

    def _fail(self, error: WorkerError) -> NoReturn:
        self.close(GRACE_SECONDS)
        raise error
