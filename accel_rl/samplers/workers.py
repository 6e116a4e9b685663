"""The simulator processes of a pool, the memory they share with it, and the signals in between.

What is made of them is the business of `WorkerPool`, whose groups have several workers each, and of
`AgentPool`, whose workers come and go.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from threading import RLock
from time import monotonic
from typing import Any

from accel_rl.descriptors import open_standard_descriptors
from accel_rl.envs.base import EnvFactory
from accel_rl.rollout import RolloutSpec
from accel_rl.samplers.base import SamplerConfig, check_memory
from accel_rl.samplers.errors import SamplerError, WorkerError
from accel_rl.samplers.process import WorkerProcess
from accel_rl.samplers.shared import (
    CLOSE,
    GRACE_SECONDS,
    STEP,
    PoolSpec,
    Setup,
    create_memory,
    map_memory,
)
from accel_rl.samplers.stepping import EnvStates

NICENESS = 5
"""a third of the weight of a policy on the same core, which all workers wait for"""
_WORKER_DESCRIPTORS, _GROUP_DESCRIPTORS = 6, 2  # open files of each here, at most


class Workers:
    """Processes by number, not started yet; each steps its columns of the groups when released.

    ``columns[worker][group]``: who steps what. ``cpus[worker]``: where it is pinned, if anywhere.
    ``make_block``: makes what steps a worker's environments of one group. ``members[g]``: the
    workers of group ``g``. ``deadlines[g]``: by when its order must be done; None: it has none.
    ``generation``: how often environments have started anew.

    Raises:
        SamplerError: this is not Linux.
        ValueError: the free memory, or the number of open files, does not suffice.
    """

    def __init__(
        self,
        factory: EnvFactory,
        rollout_spec: RolloutSpec,
        config: SamplerConfig,
        seed: int,
        cpus: Sequence[tuple[int, ...]],
        columns: list[list[range]],
        *,
        niceness: int,
        make_block: Callable[..., Any],
    ) -> None:
        open_standard_descriptors()  # of a host's process, which its workers inherit
        allow_open_files(len(columns), len(columns[0]))
        check_memory(rollout_spec)
        self._factory = factory
        self._config = config
        self._seed = seed
        self._cpus = ((),) * len(columns) if config.affinity == "off" else cpus
        self._niceness = niceness
        self._make_block = make_block
        self.spec = PoolSpec(rollout_spec, columns)
        W, G = self.spec.num_workers, self.spec.num_groups
        self.members = [[w for w in range(W) if columns[w][g]] for g in range(G)]
        self.processes: dict[int, WorkerProcess] = {}
        self.deadlines: list[float | None] = [None] * G
        self.generation = 0
        self._memory = create_memory(self.spec)
        self.arrays = map_memory(self.spec, self._memory)
        flags = os.EFD_CLOEXEC | os.EFD_NONBLOCK
        self.countdown = [
            os.eventfd(0, flags | os.EFD_SEMAPHORE) if len(members) > 1 else None
            for members in self.members
        ]
        self.ready = [os.eventfd(0, flags) for _ in range(G)]
        self._wake = [os.eventfd(0, os.EFD_CLOEXEC) for _ in range(W)]
        self.started = os.eventfd(0, flags)
        countdown = [each for each in self.countdown if each is not None]
        self._descriptors = [*countdown, *self.ready, *self._wake, self.started, self._memory]
        self._epoll = select.epoll()
        for descriptor in (*self.ready, self.started):
            # Edge-triggered: another group that is ready must not keep this process from sleeping.
            # Each signal is told once, whether those before were read or not.
            self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLET)
        self.is_closed = False  # or about to be: nothing of it may be touched any more
        self._closing = RLock()
        self._is_ending = False
        self._pid = os.getpid()

    def start(
        self, worker: int, start_rows: list[int], states: EnvStates, *, is_replacement: bool = False
    ) -> None:
        """Start a process, in the place of one that is gone, too; does not wait for it.

        The environments of one ``is_replacement`` begin without random steps: their first games are
        the policy's own, and their first observations have no history.

        Raises:
            SamplerError: this was closed.
        """
        if not self.processes:
            self._pid = os.getpid()  # perhaps a fork of the one that made this
        self.check_open()
        self.arrays.has_started[worker] = False
        columns = self.spec.columns[worker]
        nothing = [range(0)] * len(columns)
        # Only its own: of all, it would be the square of their number.
        known = [columns if w == worker else nothing for w in range(self.spec.num_workers)]
        config = self._config
        if is_replacement:
            config = replace(config, decorrelation_steps=0)
        setup = Setup(
            worker=worker,
            spec=self.spec._replace(columns=known),
            config=config,
            make_block=self._make_block,
            factory=self._factory,
            seed=self._seed,
            restart=self.generation,
            cpus=self._cpus[worker],
            niceness=self._niceness,
            start_rows=start_rows,
            states={b: states.get(b) for own in columns for b in own},
            countdown={g: self.countdown[g] for g, own in enumerate(columns) if own},
            ready={g: self.ready[g] for g, own in enumerate(columns) if own},
        )
        with self._closing:
            try:
                process = WorkerProcess(setup, self._memory, self._wake[worker], self.started)
            except OSError:
                self.check_open()
                raise
            self.processes[worker] = process
            if self.is_closed:  # meanwhile, by a signal handler
                self.processes.pop(worker).close(0.0)
                self.check_open()
            self._epoll.register(process.pidfd, select.EPOLLIN)

    def move(self, cpus: Sequence[tuple[int, ...]]) -> None:
        """Pin the workers, with all their threads, to other CPUs. In a fork it does nothing."""
        if self.is_inherited:
            return
        self._cpus = cpus
        for worker, process in list(self.processes.items()):
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                for thread in os.listdir(f"/proc/{process.pid}/task"):
                    os.sched_setaffinity(int(thread), cpus[worker])

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a fork of the one that started workers, and may not use them."""
        return bool(self.processes) and os.getpid() != self._pid

    def check_own(self) -> None:
        """Raises SamplerError if `is_inherited`."""
        if self.is_inherited:
            raise SamplerError(
                f"this sampler's workers are those of process {self._pid}, of which this one, "
                f"{os.getpid()}, is a fork; make another one here"
            )

    def check_open(self) -> None:
        """Raises SamplerError if this is closed."""
        if self.is_closed:
            raise SamplerError("this sampler was closed; make another one")

    def release(self, group: int, row: int, command: int = STEP) -> None:
        """Release a group: its workers take step ``row``, or do what else ``command`` says."""
        arrays, config = self.arrays, self._config
        members = self.members[group]
        is_step = command == STEP
        timeout = config.step_timeout_seconds if is_step else config.reset_timeout_seconds
        self.deadlines[group] = monotonic() + timeout
        arrays.command[group] = command
        arrays.row[group] = row
        countdown = self.countdown[group]
        if countdown is not None:
            os.eventfd_write(countdown, len(members) - 1)
        # Last: a worker that is awake may carry the order out before it is woken.
        arrays.sequence[group] += 1
        for worker in members:
            os.eventfd_write(self._wake[worker], 1)

    def owes(self, worker: int, group: int) -> bool:
        """Whether a worker has an order of this group that it has not carried out."""
        is_member = worker in self.members[group]
        arrays = self.arrays
        return is_member and bool(arrays.done[worker, group] != arrays.sequence[group])

    def is_done(self, group: int) -> bool:
        return not any(self.owes(worker, group) for worker in self.members[group])

    def poll(self, seconds: float) -> list[int]:
        """Sleep until something happens, or so long; the descriptors to which it did, in order.

        None once this is closed, by a signal handler or another thread.
        """
        try:
            happened = self._epoll.poll(seconds)
        except (OSError, ValueError):
            if not self.is_closed:
                raise
        return [] if self.is_closed else [descriptor for descriptor, _ in happened]

    def hung(self, worker: int, group: int) -> WorkerError:
        """Kill a worker that is late with its order of ``group``; what to say of it."""
        is_step = self.arrays.command[group] == STEP
        option = "step_timeout_seconds" if is_step else "reset_timeout_seconds"
        process = self.processes[worker]
        within = " (a reset within a step included)" if is_step else ""
        error = WorkerError(
            f"{process.describe()} has not answered within {option}="
            f"{getattr(self._config, option):g}; its simulator hangs, or needs more time{within}: "
            f"raise {option}"
        )
        process.kill()
        return error

    def late_start(self, worker: int) -> WorkerError:
        """What to say of a worker that has not started in time."""
        return WorkerError(
            f"{self.processes[worker].describe()} has not started its environments within "
            f"reset_timeout_seconds={self._config.reset_timeout_seconds:g}; raise it, or lower "
            f"decorrelation_steps"
        )

    def unwatch(self, worker: int) -> None:
        """No longer say that a process has ended; said already, nothing more happens."""
        with suppress(FileNotFoundError):
            self._epoll.unregister(self.processes[worker].pidfd)

    def forget(self, worker: int) -> None:
        """Let go of a process, which is killed unless it is gone."""
        with self._closing:
            self.check_open()
            self.unwatch(worker)
            self.processes.pop(worker).close(0.0)

    def close(self, grace_seconds: float = 5.0) -> None:
        """End the workers, by force after ``grace_seconds`` or while they start.

        Calling it again does nothing, or ends what a call that was cut short has left. From another
        thread it waits for the first call; within that, from a signal handler, it returns at once.
        In a fork of the process that made them it does nothing: they go on.
        """
        if os.getpid() != self._pid:
            return
        with self._closing:
            if self._is_ending:
                return
            self.is_closed = self._is_ending = True
            try:
                if not self._epoll.closed:
                    self._end(grace_seconds)
                    self._epoll.close()
                while self._descriptors:
                    os.close(self._descriptors.pop())
            finally:
                self._is_ending = False

    def _end(self, grace_seconds: float) -> None:
        for worker, process in self.processes.items():
            if not self.arrays.has_started[worker]:
                process.kill()  # it would take the order to close for one that came before it
        self.arrays.command[:] = CLOSE
        self.arrays.sequence[:] += 1
        for wake in self._wake:
            os.eventfd_write(wake, 1)
        deadline = monotonic() + grace_seconds
        for process in self.processes.values():
            process.close(max(0.0, deadline - monotonic()))

    def __del__(self) -> None:
        if hasattr(self, "_pid"):  # dropped without `close`
            self.close(GRACE_SECONDS)


def allow_open_files(num_workers: int, num_groups: int) -> None:
    """Raise this process' limit of open files as far as so many workers and groups need it.

    Raises:
        SamplerError: this is not Linux.
        ValueError: it cannot be raised so far.
    """
    if sys.platform != "linux":
        raise SamplerError(
            f"parallel samplers need Linux, and this is {sys.platform}; use SerialSampler "
            f"(serial=true on the command line, where algo is not ga3c)"
        )
    import resource  # not on every system

    own = num_workers * _WORKER_DESCRIPTORS + num_groups * _GROUP_DESCRIPTORS
    needed = own + len(os.listdir("/proc/self/fd")) + 64
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ValueError(
            f"{num_workers} workers in {num_groups} groups need {needed} open files, and "
            f"`ulimit -Hn` allows {hard}; use fewer (a smaller num_workers, with GA3C a smaller "
            f"num_groups or max_agents)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
