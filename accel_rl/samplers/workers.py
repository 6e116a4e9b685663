"""The simulator processes of a pool, the memory they share with it, and the signals in between.

What is made of them is the business of `WorkerPool`.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from threading import RLock
from time import monotonic

from accel_rl.envs.base import EnvFactory
from accel_rl.rollout import RolloutSpec
from accel_rl.samplers.base import (
    Autoreset,
    SamplerConfig,
    WorkerError,
    check_memory,
    of_another_process,
    was_closed,
)
from accel_rl.samplers.block import EnvStates
from accel_rl.samplers.layout import EnvSlice
from accel_rl.samplers.orders import CLOSE, STEP, TIMEOUTS, Orders, awake_seconds
from accel_rl.samplers.process import (
    KILL_SECONDS,
    WorkerProcess,
    allow_open_files,
    shortage,
    store_factory,
)
from accel_rl.samplers.shared import GRACE_SECONDS, PoolSpec, Setup, create_memory, map_memory
from accel_rl.system import shared_memory
from accel_rl.system.processes import disown_in_forks, open_standard_descriptors
from accel_rl.system.topology import available_cpus

_CHANGE_SECONDS = 0.5
"""after which `Workers.close` leaves closing to a thread that starts or forgets a worker"""
NICENESS = 5
"""a third of the weight of a policy on the same core, which all workers wait for"""


class Workers:
    """Processes by number, not started yet; each steps its columns of the groups when released.

    `close` may come at any time, from another thread or a signal handler. So use descriptors only
    within ``with workers:``. Until the last such block is left, `close` ends processes and leaves
    the descriptors open, so that no other file gets their numbers. ``uses`` has an item for each
    such block; calls of each step write it themselves.

    Attributes:
        slices_of: the slices of each worker.
        members: the workers of each group.
        orders: the orders to workers.
        worker_of: workers by the ``pidfd`` of their processes.
        inherited_from: pid of the process that made this, if this process is a fork of it; else 0.
    """

    inherited_from = 0
    is_closed = False  # or about to be: nothing of it may be touched any more
    _is_made = False

    def __init__(
        self,
        factory: EnvFactory,
        rollout_spec: RolloutSpec,
        config: SamplerConfig,
        seed: int,
        cpus: Sequence[tuple[int, ...]],
        slices: list[EnvSlice],
        *,
        niceness: int,
        autoreset: Autoreset | None,
    ) -> None:
        open_standard_descriptors()  # of a host's process, which its workers inherit
        W, G = len(cpus), 1 + max(each.group for each in slices)
        allow_open_files(W, G)
        check_memory(rollout_spec)
        self._config = config
        self._seed = seed
        self._cpus = ((),) * W if config.affinity == "off" else cpus
        self._niceness = niceness
        # Only where no policy or other worker waits for the core.
        self._awake_seconds = awake_seconds(W < len(available_cpus()))
        self._autoreset = autoreset
        self.spec = PoolSpec(rollout_spec, W, G, slices)
        self.slices_of: list[list[EnvSlice]] = [[] for _ in range(W)]
        self.members: list[list[int]] = [[] for _ in range(G)]
        for each in slices:
            self.slices_of[each.worker].append(each)
            self.members[each.group].append(each.worker)
        self.processes: dict[int, WorkerProcess] = {}
        self.worker_of: dict[int, int] = {}
        self._descriptors: list[int] = []
        try:
            self._epoll = select.epoll()
            self._open_descriptors(factory)
            self.arrays = map_memory(self.spec, self._memory)
        except BaseException as error:
            shared_memory.close_descriptors(self._descriptors)
            if isinstance(error, OSError):
                raise shortage(error, W) from error
            raise
        self.orders = Orders(self.arrays, self.members, self.countdown, self._wake)
        self.uses: list[None] = []  # one for each block in which descriptors are used
        self._closing = RLock()
        self._is_ending = self.has_ended = self._is_changing = False
        self._is_made = True
        disown_in_forks(self)

    def _open_descriptors(self, factory: EnvFactory) -> None:
        def opened(descriptor: int) -> int:
            self._descriptors.append(descriptor)
            return descriptor

        flags = os.EFD_CLOEXEC | os.EFD_NONBLOCK
        self._memory = opened(create_memory(self.spec))
        self._factory = opened(store_factory(factory))
        self.countdown = [
            opened(os.eventfd(0, flags | os.EFD_SEMAPHORE)) if len(members) > 1 else None
            for members in self.members
        ]
        self.ready = [opened(os.eventfd(0, flags)) for _ in self.members]
        self._wake = [opened(os.eventfd(0, os.EFD_CLOEXEC)) for _ in self.slices_of]
        self.started = opened(os.eventfd(0, flags))
        for descriptor in (*self.ready, self.started):
            # Edge-triggered: another group that is ready must not keep this process from sleeping.
            # Each signal is reported once, even if earlier ones were not read.
            self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLET)

    def __enter__(self) -> None:
        """Keep descriptors open within."""
        self.uses.append(None)
        if self.is_closed:
            self.__exit__()
            self.check_open()

    def __exit__(self, *error: object) -> None:
        self.uses.pop()
        if self.has_ended:
            self.free()

    def start(
        self,
        worker: int,
        start_rows: list[int],
        states: EnvStates,
        generation: int,
        is_replacement: bool,
    ) -> None:
        """Start a process, also to replace one that has ended. Do not wait for it.

        The environments of one ``is_replacement`` begin without random steps: their first games are
        the policy's own, and their first observations have no history.
        """
        self.check_open()
        self.arrays.has_started[worker] = self.arrays.is_awake[worker] = False
        own = self.slices_of[worker]
        config = self._config
        if is_replacement:
            config = replace(config, decorrelation_steps=0)
        setup = Setup(
            worker=worker,
            spec=self.spec._replace(slices=own),
            config=config,
            autoreset=self._autoreset,
            seed=self._seed,
            restart=generation,
            cpus=self._cpus[worker],
            niceness=self._niceness,
            awake_seconds=self._awake_seconds,
            start_rows=start_rows,
            states={b: states.get(b) for each in own for b in each.columns},
            countdown={each.group: self.countdown[each.group] for each in own},
            ready={each.group: self.ready[each.group] for each in own},
        )
        with self._changing():
            try:
                wake = self._wake[worker]
                process = WorkerProcess(
                    setup, self._memory, self._factory, wake, self.started, self.processes
                )
            except OSError as error:
                raise shortage(error, self.spec.num_workers) from error
            self.worker_of[process.pidfd] = worker
            if self.is_closed:  # meanwhile, by a signal handler or another thread
                process.end()
                self.check_open()
            self._epoll.register(process.pidfd, select.EPOLLIN)

    def check_open(self) -> None:
        """Raise SamplerError if this is closed, or belongs to another process."""
        if self.inherited_from:
            raise of_another_process(self.inherited_from)
        if self.is_closed:
            raise was_closed()

    def groups_of(self, worker: int) -> list[int]:
        """The groups that a worker has environments of."""
        return [each.group for each in self.slices_of[worker]]

    def poll(self, seconds: float) -> list[tuple[int, int]]:
        """Wait up to ``seconds`` for events; return their descriptors, in order, and their kinds.

        The list is empty once this was closed, by a signal handler or another thread.
        """
        happened = self._epoll.poll(seconds)
        return [] if self.is_closed else happened

    def hung(self, worker: int, group: int) -> WorkerError:
        """Kill a worker that is late with its order of ``group``; return the error."""
        command = int(self.arrays.command[group])
        process, config = self.processes[worker], self._config
        within = " (a reset within a step included)" if command == STEP else ""
        longer = getattr(config, TIMEOUTS[command]) - config.step_timeout_seconds
        more = f"{longer:g} s + " if longer else ""
        error = WorkerError(
            f"{process.describe()} has not answered within {more}step_timeout_seconds="
            f"{config.step_timeout_seconds:g}; its simulator hangs{process.place()}, or needs more "
            f"time{within}: raise step_timeout_seconds"
        )
        process.kill()
        return error

    def late_start(self, worker: int) -> WorkerError:
        """Return the error of a worker that has not started in time."""
        process, config = self.processes[worker], self._config
        longer = config.reset_timeout_seconds - config.step_timeout_seconds
        return WorkerError(
            f"{process.describe()} has not started its environments{process.place()} within "
            f"{longer:g} s + step_timeout_seconds={config.step_timeout_seconds:g}; "
            f"raise it, or lower decorrelation_steps"
        )

    def unwatch(self, worker: int) -> None:
        """Stop reporting the end of a process. A second call does nothing."""
        with suppress(FileNotFoundError):
            self._epoll.unregister(self.processes[worker].pidfd)

    def forget(self, worker: int) -> None:
        """Remove a process, and kill it if it has not ended."""
        with self._changing():
            self.unwatch(worker)
            process = self.processes[worker]
            process.end()
            del self.worker_of[process.pidfd]
            process.free()
            del self.processes[worker]

    def close(self, grace_seconds: float = 5.0) -> None:
        """End the workers, by force after ``grace_seconds`` or while they start.

        A worker may be in an order, so it has the time of its longest order so far on top, but
        ``step_timeout_seconds`` at most.

        A second call completes a call that was cut short. It waits for a call in another thread; in
        a signal handler during the first call, it returns at once. While another thread starts or
        forgets a worker, that thread closes afterwards, since it may be in a signal handler that
        waits for this thread. In a fork, this does nothing.
        """
        if self.inherited_from:
            return
        self.is_closed = True
        if not self._take(grace_seconds):
            return
        try:
            if self._is_ending:
                return
            self._is_ending = True
            self.uses.append(None)
            try:
                if not self.has_ended:
                    self._end(grace_seconds)
                    self.has_ended = True
            finally:
                self._is_ending = False
                self.__exit__()
        finally:
            self._closing.release()

    def _take(self, grace_seconds: float) -> bool:
        """Wait for the lock. Return False if its holder closes, or keeps it too long."""
        most = grace_seconds + self._config.step_timeout_seconds + KILL_SECONDS
        deadline = monotonic() + most
        while not self._closing.acquire(timeout=_CHANGE_SECONDS):
            if self._is_changing or monotonic() > deadline:
                return False
        return True

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Let only this thread change the processes within; close at the end if asked to."""
        try:
            with self._closing, self:
                self._is_changing = True
                try:
                    yield
                finally:
                    self._is_changing = False
        finally:
            if self.is_closed:
                self.close()

    def _end(self, grace_seconds: float) -> None:
        for worker, process in self.processes.items():
            if not self.arrays.has_started[worker]:
                process.kill()  # it would take the order to close for one that came before it
        self.arrays.command[:] = CLOSE
        self.arrays.sequence[:] += 1
        for wake in self._wake:
            os.eventfd_write(wake, self.spec.num_groups)
        began = monotonic()
        try:
            for worker, process in self.processes.items():
                # No function of NumPy, which may import more, while Python ends.
                longest = float(self.arrays.longest_seconds[worker])
                longest = min(longest, self._config.step_timeout_seconds)
                deadline = began + grace_seconds + longest
                has_ended = process.has_ended(max(0.0, deadline - monotonic()))
                if not has_ended and grace_seconds > GRACE_SECONDS:  # else there was an error
                    process.tell_late_close()
        finally:  # also where Ctrl-C cuts the wait short
            for process in self.processes.values():
                process.kill()
        for process in self.processes.values():
            process.end()

    def free(self) -> None:
        """Close the descriptors unless they are used."""
        if self.uses:
            return
        for process in self.processes.values():
            process.free()
        self._epoll.close()
        shared_memory.close_descriptors(self._descriptors)

    def disown(self) -> None:
        """In a fork of the process that made this: make it unusable."""
        self.inherited_from = self.inherited_from or os.getppid()
        self.is_closed = True
        self.uses.clear()
        self.free()

    def __del__(self) -> None:
        if self._is_made:  # dropped, perhaps without `close`
            self.uses.clear()  # of Ctrl-C at an unlucky moment
            self.close(GRACE_SECONDS)
