"""Which worker steps which environments, and on which cores workers and the policy's thread run.

Each sampler is planned as if it were alone, so samplers that take turns, as in training and
evaluation, use the same cores. When a sampler begins to collect while another one of this process
does, the two divide the cores between them. They keep their parts until one of them is closed.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

import numpy as np

from accel_rl.samplers.base import SamplerConfig
from accel_rl.system.topology import (
    Core,
    CorePlan,
    Machine,
    Seat,
    join_cores,
    physical_cores,
    place_workers,
    plan_cores,
)

ALONE = Seat()

MoveOn = Callable[[], None]
"""Moves the calling thread to the next core."""

Places = Sequence[tuple[int, ...]]
"""CPUs of each worker"""


def count_workers(
    config: SamplerConfig,
    cpus: list[int] | None = None,
    drives_gpu: bool = False,
    seat: Seat = ALONE,
    machine: Machine | None = None,
) -> int:
    """How many workers the cores are enough for, whatever ``num_workers`` and ``num_envs`` are.

    Arguments and errors are those of `plan_workers`.
    """
    plan = plan_cores(
        workers_per_core=config.workers_per_core,
        cores_per_worker=config.cores_per_worker,
        drives_gpu=drives_gpu,
        cpus=cpus,
        machine=machine,
        **seat._asdict(),
    )
    return len(plan.worker_cpus)


def plan_workers(
    config: SamplerConfig,
    cpus: list[int] | None = None,
    drives_gpu: bool = False,
    seat: Seat = ALONE,
    machine: Machine | None = None,
) -> CorePlan:
    """How many workers, and the CPUs of each.

    ``cpus``: the only ones to use. ``drives_gpu``: keep a core for the server. ``seat``: whose
    share of the cores this is. ``machine``: to plan for; None: this one.

    Raises:
        ValueError: ``num_workers`` does not fit ``num_envs`` and ``num_groups``, ``cpus`` cannot
            be had, or there are fewer than ``cores_per_worker`` cores for a worker.
    """
    most = config.num_envs
    if config.workers_per_core > 1:
        most = most // config.num_groups * config.workers_per_core
    num_workers = config.num_workers
    if num_workers is None:
        num_workers = min(count_workers(config, cpus, drives_gpu, seat, machine), most)
    elif num_workers > most or num_workers % config.workers_per_core:
        multiple = config.workers_per_core
        raise ValueError(
            f"num_workers is {num_workers}; with num_envs={config.num_envs}, "
            f"num_groups={config.num_groups} and workers_per_core={multiple} it must be a multiple "
            f"of {multiple} and at most {most}: use fewer workers or more environments"
        )
    return plan_cores(
        num_workers=num_workers,
        workers_per_core=config.workers_per_core,
        cores_per_worker=config.cores_per_worker,
        drives_gpu=drives_gpu,
        cpus=cpus,
        machine=machine,
        **seat._asdict(),
    )


def assign_columns(config: SamplerConfig, num_workers: int) -> list[list[range]]:
    """``[worker][group]``: the columns that a worker steps of each group, contiguous or none.

    Group ``g`` is the ``g``-th equal run of columns; slices of it differ by one at most. Larger
    slices are dealt round over all groups, so that what a worker has of all groups together differs
    by one at most, too. Where there are more workers than a group has columns, a slice is one
    column, and not every worker has one of each group.
    """
    G = config.num_groups
    group_size = config.num_envs // G
    if config.workers_per_core == 1 and num_workers > group_size:
        single = [[range(0)] * G for _ in range(num_workers)]
        for g in range(G):  # a run of workers each, the last of which ends with the last worker
            first = g * (num_workers - group_size) // (G - 1)
            for i, column in enumerate(range(g * group_size, (g + 1) * group_size)):
                single[first + i][g] = range(column, column + 1)
        return single
    slices = num_workers // config.workers_per_core  # of each group
    size, num_larger = divmod(group_size, slices)
    places = np.arange(slices)
    bounds = []
    for g in range(G):
        sizes = size + ((places - g * num_larger) % slices < num_larger)
        bounds.append([0, *sizes.cumsum().tolist()])
    columns = []
    for worker in range(num_workers):
        own = worker // config.workers_per_core
        held = range(G) if config.workers_per_core == 1 else [worker % G]
        columns.append(
            [
                range(g * group_size + bounds[g][own], g * group_size + bounds[g][own + 1])
                if g in held
                else range(0)
                for g in range(G)
            ]
        )
    return columns


def assign_agents(num_agents: int, envs_per_agent: int) -> list[list[range]]:
    """``[worker][group]``, as `assign_columns`: each worker has one group, of its own number."""
    nothing = range(0)  # one object, for the square of the number of agents
    own = [range(a * envs_per_agent, (a + 1) * envs_per_agent) for a in range(num_agents)]
    return [[own[a] if g == a else nothing for g in range(num_agents)] for a in range(num_agents)]


def even_num_envs(config: SamplerConfig, num_workers: int) -> list[int]:
    """Return the nearest values of ``num_envs`` that keep all workers evenly busy.

    All wait for the workers with the most environments. An empty list stands for a ``num_envs`` of
    ``config`` that makes these work at most 5 % more than the mean.
    """
    slices = num_workers // config.workers_per_core
    mean = config.num_envs / slices
    if math.ceil(mean) <= 1.05 * mean:
        return []
    step = config.num_groups * slices
    below = config.num_envs // step * step
    return [each for each in (below, below + step) if each]


def num_envs_for_all(config: SamplerConfig, num_workers: int, num_possible: int) -> int | None:
    """Return a ``num_envs`` of which each worker has one environment of each group.

    ``num_possible``: the workers that the cores are enough for, of `count_workers`. None: more than
    half of them are there already, or they are fewer than 8, or ``config`` says how many workers
    there are to be.
    """
    if config.num_workers is not None or num_possible < 8 or 2 * num_workers > num_possible:
        return None
    return config.num_groups * num_possible // config.workers_per_core


class CoreShare:
    """The cores of one sampler's workers.

    Args:
        planned: where the workers run while this sampler is alone; empty if they are not pinned.
        config: how many workers share a core, and how many cores each worker has.
        move: moves the workers to new places.

    Attributes:
        worker_cpus: where the workers are now.
    """

    def __init__(
        self, planned: Places, config: SamplerConfig, move: Callable[[Places], None]
    ) -> None:
        self._planned = self.worker_cpus = planned
        self._config = config
        self._move = move
        self._number = next(_NUMBERS)
        self._rivals: weakref.WeakSet[CoreShare] = weakref.WeakSet([self])

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Within, the sampler collects; others that do so now, or begin to, get other cores."""
        with _LOCK:
            for other in _COLLECTING:
                if other not in self._rivals and other._cpus & self._cpus:
                    self._join(other)
            _COLLECTING.append(self)
        try:
            yield
        finally:
            with _LOCK, suppress(ValueError):  # a fork that the policy has made has none
                _COLLECTING.remove(self)

    def close(self) -> None:
        """Leave the cores to the others. Calling it again does nothing."""
        with _LOCK:
            rivals, self._rivals = self._rivals, weakref.WeakSet()
            rivals.discard(self)
            _divide(rivals)

    @property
    def _cpus(self) -> set[int]:
        return {cpu for cpus in self._planned for cpu in cpus}

    @property
    def _num_needed(self) -> int:
        """Cores on which each worker has its own place."""
        config = self._config
        return -(-len(self._planned) // config.workers_per_core) * config.cores_per_worker

    def _join(self, other: CoreShare) -> None:
        together = self._rivals | other._rivals
        for each in together:
            each._rivals = together
        _divide(together)

    def _place(self, cores: Sequence[Core]) -> None:
        cpus, config = self._planned, self._config
        if cores:
            if config.cores_per_worker > 1:
                cores = join_cores(cores, config.cores_per_worker, len(cpus))
            cpus = place_workers(cores, len(cpus), config.workers_per_core)
        if cpus != self.worker_cpus:
            self.worker_cpus = cpus
            self._move(cpus)


_LOCK = threading.RLock()  # a signal handler may close a sampler
_COLLECTING: list[CoreShare] = []
_NUMBERS = itertools.count()


def _forget() -> None:
    """In a fork: what its parent's threads collect is not collected here."""
    global _LOCK
    _LOCK = threading.RLock()
    _COLLECTING.clear()


if hasattr(os, "register_at_fork"):  # not on every system
    os.register_at_fork(after_in_child=_forget)


def _divide(rivals: Iterable[CoreShare]) -> None:
    """Give each of ``rivals`` cores of its own, if there are enough, else what it had alone."""
    shares = sorted(rivals, key=lambda share: share._number)  # the oldest has the first cores
    parts = None
    if len(shares) > 1:
        parts = divide_cores([(share._cpus, share._num_needed) for share in shares])
    for share, part in zip(shares, parts or [[]] * len(shares), strict=True):
        share._place(part)


def divide_cores(wanted: Sequence[tuple[Iterable[int], int]]) -> list[list[Core]] | None:
    """Divide the cores of this machine among some samplers; None if they need more than there are.

    Args:
        wanted: for each, the CPUs that it may use, and the number of cores that it needs.
    """
    allowed = [set(cpus) for cpus, _ in wanted]
    free = physical_cores(set().union(*allowed))
    parts: list[list[Core]] = [[] for _ in wanted]
    # Who may use the fewest chooses first; then what is left goes to who has the least of it.
    order = sorted(range(len(wanted)), key=lambda i: len(allowed[i]))
    for i in order:
        fitting = [core for core in free if allowed[i].issuperset(core.cpus)]
        parts[i] = fitting[: wanted[i][1]]
        if len(parts[i]) < wanted[i][1]:
            return None
        free = [core for core in free if core not in parts[i]]
    for core in free:
        fitting_parts = [i for i in order if allowed[i].issuperset(core.cpus)]
        if fitting_parts:
            parts[min(fitting_parts, key=lambda i: len(parts[i]) / wanted[i][1])].append(core)
    return parts


@contextmanager
def rotation(cores: Iterable[tuple[int, ...]]) -> Iterator[MoveOn]:
    """Let a policy that has no core of its own move from core to core.

    On the CPU the policy takes its time from the simulators. Left to the kernel it tends to wake on
    the same core again and again; the worker there falls behind, and every group waits for it. A
    thread that moves on by one core after each group takes from all alike: on two cores with
    A3C-Net and 64 environments that is worth 12 % (figures in benchmarks/results/sampling.md).

    Within, each call of the function moves this thread to the next core. With fewer than two cores
    the thread stays where it is. Threads that are started within inherit the one core, so nothing
    within should start any.

    Args:
        cores: CPU ids of each core.
    """
    distinct = list(dict.fromkeys(cores))
    if len(distinct) < 2:
        yield lambda: None
        return
    following = itertools.cycle(distinct)
    with _restoring_affinity():
        yield lambda: os.sched_setaffinity(0, next(following))


@contextmanager
def kept_on(cpus: Iterable[int]) -> Iterator[None]:
    """Keep this thread on ``cpus`` within: those of the core that is planned for a GPU's server.

    After an update, in which all cores idle, the kernel may leave it on the core of a worker, which
    falls behind until the kernel moves one of them; and every group waits for that worker.
    """
    with _restoring_affinity():
        os.sched_setaffinity(0, cpus)
        yield


@contextmanager
def _restoring_affinity() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
