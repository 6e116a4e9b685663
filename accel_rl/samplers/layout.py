"""Assigns environments to workers, and cores to workers and the policy's thread.

Each sampler is planned as if it were alone, so samplers that take turns, as in training and
evaluation, use the same cores.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from accel_rl.samplers.base import SamplerConfig
from accel_rl.system.topology import CorePlan, Machine, Seat, plan_cores

ALONE = Seat()

MoveOn = Callable[[], None]
"""Moves the calling thread to the next core."""


def count_workers(
    cpus: list[int] | None = None,
    drives_gpu: bool = False,
    seat: Seat = ALONE,
    machine: Machine | None = None,
) -> int:
    """Return the number of workers that the cores are enough for; see `plan_workers`."""
    place = seat._asdict()
    plan = plan_cores(drives_gpu=drives_gpu, cpus=cpus, machine=machine, **place)
    return len(plan.worker_cpus)


def plan_workers(
    config: SamplerConfig,
    cpus: list[int] | None = None,
    drives_gpu: bool = False,
    seat: Seat = ALONE,
    machine: Machine | None = None,
) -> CorePlan:
    """Return the number of workers and the CPUs of each."""
    most = config.num_envs
    num_workers = config.num_workers
    if num_workers is None:
        num_workers = min(count_workers(cpus, drives_gpu, seat, machine), most)
    elif not 1 <= num_workers <= most:
        raise ValueError(
            f"num_workers is {num_workers}; with num_envs={most} it must be at least 1 and at most "
            f"{most}: use fewer workers or more environments"
        )
    place = seat._asdict()
    return plan_cores(
        num_workers=num_workers, drives_gpu=drives_gpu, cpus=cpus, machine=machine, **place
    )


def group_columns(num_envs: int, num_groups: int) -> list[slice]:
    """Return the columns of each group, equal runs of them."""
    size = num_envs // num_groups
    return [slice(g * size, (g + 1) * size) for g in range(num_groups)]


class EnvSlice(NamedTuple):
    """The environments, a run of columns, that one worker steps of one group."""

    worker: int
    group: int
    columns: range


def assign_columns(config: SamplerConfig, num_workers: int) -> list[EnvSlice]:
    """Return who steps which columns, in order of worker, then group.

    Group ``g`` is the ``g``-th equal run of columns; slices of it differ by one at most. Larger
    slices are dealt round over all groups, so that what a worker has of all groups together differs
    by one at most, too. With 10 environments, 2 groups and 4 workers::

        worker     0    1  2    3
        group 0   0-1   2  3    4
        group 1    5    6  7-8  9

    If there are more workers than a group has columns, a slice is one column, and some workers have
    no slice of some groups.
    """
    G = config.num_groups
    group_size = config.num_envs // G
    found = []
    if num_workers > group_size:
        for g in range(G):  # a run of workers each, the last of which ends with the last worker
            first = g * (num_workers - group_size) // (G - 1)
            for i, column in enumerate(range(g * group_size, (g + 1) * group_size)):
                found.append(EnvSlice(first + i, g, range(column, column + 1)))
        return sorted(found)
    size, num_larger = divmod(group_size, num_workers)
    places = np.arange(num_workers)
    for g in range(G):
        sizes = size + ((places - g * num_larger) % num_workers < num_larger)
        bounds = [g * group_size, *(g * group_size + sizes.cumsum()).tolist()]
        for i in range(num_workers):
            found.append(EnvSlice(i, g, range(bounds[i], bounds[i + 1])))
    return sorted(found)


@contextmanager
def rotation(cores: Iterable[tuple[int, ...]]) -> Iterator[MoveOn | None]:
    """Let a policy that has no core of its own move from core to core.

    On the CPU the policy takes its time from the simulators. Left to the kernel it tends to wake on
    the same core again and again; the worker there falls behind, and every group waits for it. A
    thread that moves on by one core after each group takes from all alike: on two cores with
    A3C-Net and 64 environments that is worth 12 % (figures in benchmarks/results/sampling.md).

    Within, each call of the function moves this thread to the next core. With fewer than two cores
    there is no function (None), and the thread stays where it is. Threads that are started within
    inherit the one core, so nothing within should start any.
    """
    distinct = list(dict.fromkeys(cores))
    if len(distinct) < 2:
        yield None
        return
    following = itertools.cycle(distinct)
    with _restoring_affinity():
        yield lambda: os.sched_setaffinity(0, next(following))


@contextmanager
def kept_on(cpus: Iterable[int]) -> Iterator[MoveOn | None]:
    """Keep this thread on ``cpus`` within: the core that is planned for a GPU's server.

    Yield None, as `rotation` does with fewer than two cores.

    After an update, in which all cores idle, the kernel may leave it on the core of a worker, which
    falls behind until the kernel moves one of them; and every group waits for that worker.
    """
    with _restoring_affinity():
        os.sched_setaffinity(0, cpus)
        yield None


@contextmanager
def _restoring_affinity() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
