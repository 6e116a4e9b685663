"""Cores of samplers that collect at the same time in one process."""

import gc
import itertools
import os
import runpy
import sys
import threading
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tiers import PROCESSES, SLOW
from toy_envs import ToyEnv

from accel_rl.samplers import ParallelSampler, PolicyInput, SamplerConfig, layout, worker
from accel_rl.samplers.layout import CoreShare, plan_workers
from accel_rl.samplers.sampler import RolloutSampler
from accel_rl.system import processes
from accel_rl.system.topology import Core, Machine, available_cpus

Places = Sequence[tuple[int, ...]]


@pytest.fixture(autouse=True)
def no_hyperthreads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever machine this is, each CPU is a core."""
    monkeypatch.setattr("accel_rl.samplers.layout.physical_cores", cores_of)


def cores_of(cpus: Sequence[int]) -> list[Core]:
    return [Core((cpu,)) for cpu in sorted(cpus)]


class Share(CoreShare):
    """Of some workers on ``cpus``; ``moves``: where they were sent."""

    def __init__(
        self,
        num_workers: int,
        cpus: Sequence[int] = range(8),
        per_core: int = 1,
        cores_each: int = 1,
    ) -> None:
        config = SamplerConfig(
            num_workers=num_workers,
            num_groups=per_core,
            workers_per_core=per_core,
            cores_per_worker=cores_each,
        )
        machine = Machine(tuple(cores_of(cpus)))
        self.moves: list[Places] = []
        plan = plan_workers(config, machine=machine)
        super().__init__(plan.worker_cpus, config, self.moves.append)

    @property
    def cpus(self) -> set[int]:
        return {cpu for cpus in self.worker_cpus for cpu in cpus}


def collect_together(*shares: Share) -> None:
    with shares[0].collecting():
        if shares[1:]:
            collect_together(*shares[1:])


def test_samplers_that_take_turns_stay_where_they_are() -> None:
    one, other = Share(8), Share(8)
    for _ in range(3):
        collect_together(one)
        collect_together(other)
    assert one.moves == other.moves == []
    assert one.worker_cpus == other.worker_cpus == tuple((cpu,) for cpu in range(8))


def test_samplers_that_collect_at_the_same_time_divide_the_cores() -> None:
    one, other = Share(4), Share(4)
    assert one.cpus == other.cpus == set(range(8))
    collect_together(one, other)
    assert sorted(one.worker_cpus + other.worker_cpus) == [(cpu,) for cpu in range(8)]
    for _ in range(3):
        collect_together(other, one)
    assert len(one.moves) == len(other.moves) == 1


def test_parts_follow_the_needs_and_leave_no_core_out() -> None:
    shares = [Share(2), Share(1), Share(1)]
    collect_together(*shares)
    assert [len(share.cpus) for share in shares] == [4, 2, 2]
    assert set().union(*(share.cpus for share in shares)) == set(range(8))
    for share in shares:  # each may use all of its part
        assert set(share.worker_cpus) == {tuple(sorted(share.cpus))}


def test_sampler_that_may_use_few_cores_gets_these() -> None:
    for one, other in itertools.permutations([Share(4), Share(4, cpus=range(2, 6))]):
        collect_together(one, other)
        assert not one.cpus & other.cpus
        assert set(range(2, 6)) in (one.cpus, other.cpus)


def test_workers_that_share_a_core_keep_sharing_one() -> None:
    one, other = Share(4, per_core=2), Share(2)
    collect_together(one, other)
    assert [len(share.cpus) for share in (one, other)] == [4, 4]
    one, other = Share(8, per_core=2), Share(4)
    collect_together(one, other)
    assert one.worker_cpus == ((0,), (0,), (1,), (1,), (2,), (2,), (3,), (3,))


def test_workers_with_several_cores_keep_as_many() -> None:
    one, other = Share(2, cores_each=2), Share(2)
    collect_together(one, other)
    assert one.worker_cpus == ((0, 1), (2, 3)) and other.cpus == {4, 5, 6, 7}
    one, other = Share(2, cores_each=3), Share(4)  # ten cores of eight
    collect_together(one, other)
    assert one.moves == other.moves == []


def test_samplers_that_need_more_cores_than_there_are_share_them() -> None:
    one, other = Share(8), Share(4)
    collect_together(one, other)
    assert one.moves == other.moves == []


def test_samplers_on_different_cores_are_left_alone() -> None:
    one, other = Share(2, cpus=range(4)), Share(2, cpus=range(4, 8))
    collect_together(one, other)
    assert one.moves == other.moves == []


@pytest.mark.parametrize("is_dropped", [False, True])
def test_sampler_that_is_closed_leaves_its_cores_to_the_others(is_dropped: bool) -> None:
    one, other, third = Share(2), Share(2), Share(2)
    collect_together(one, other)
    collect_together(other, third)
    for some, others in itertools.combinations([one, other, third], 2):
        assert not some.cpus & others.cpus
    third.close()
    if is_dropped:
        del one
        gc.collect()
        collect_together(other)
        other.close()
        assert other.cpus != set(range(8))  # closed itself: nothing is moved any more
        return
    assert one.cpus | other.cpus == set(range(8)) and not one.cpus & other.cpus
    other.close()
    other.close()
    assert one.cpus == set(range(8))


@PROCESSES
def test_fork_forgets_what_its_parent_collects() -> None:
    one, other = Share(4), Share(4)
    with one.collecting():
        pid = os.fork()
        if pid == 0:
            with other.collecting():
                os._exit(len(one.moves) + len(other.moves))
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@PROCESSES
def test_fork_within_a_collect_can_end_it() -> None:
    pid = None
    try:
        with Share(4).collecting():
            pid = os.fork()
    finally:
        if pid == 0:
            os._exit(1 if sys.exc_info()[0] else 0)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize("module", [layout, processes], ids=["layout", "processes"])
def test_module_can_be_imported_where_there_are_no_forks(module, monkeypatch) -> None:
    monkeypatch.delattr(os, "register_at_fork")
    runpy.run_path(module.__file__)


def test_worker_takes_its_place_on_its_cores(monkeypatch) -> None:
    taken: list[Any] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: taken.append((pid, cpus)))
    monkeypatch.setattr(os, "nice", taken.append)
    setup: Any = SimpleNamespace(cpus=(3, 5), niceness=5)
    worker._take_place(setup)
    assert taken == [(0, (3, 5)), 5]


# ---- with workers --------------------------------------------------------------------------------


def affinities(sampler: ParallelSampler) -> set[int]:
    processes = sampler._pool._workers.processes.values()
    return set().union(*(os.sched_getaffinity(process.pid) for process in processes))


def collect_at_once(*samplers: RolloutSampler) -> None:
    barrier = threading.Barrier(len(samplers))

    def policy(step: PolicyInput) -> np.ndarray:
        if step.t == 0 and step.columns.start == 0:
            barrier.wait(60)
        return np.zeros(len(step.observation), np.int64)

    threads = [threading.Thread(target=each.collect, args=(policy,)) for each in samplers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.fixture
def two() -> Iterator[list[ParallelSampler]]:
    config = SamplerConfig(num_envs=4, horizon=3, num_workers=1)
    samplers = [ParallelSampler(ToyEnv, config=config, cpus=available_cpus()[:2]) for _ in range(2)]
    for sampler in samplers:
        sampler.start()
    yield samplers
    for sampler in samplers:
        sampler.close()


@PROCESSES
def test_workers_move_when_their_samplers_collect_at_the_same_time(two) -> None:
    cpus = set(available_cpus()[:2])
    for sampler in two:
        collect_at_once(sampler)
    if len({core.cpus for core in cores_of(cpus)}) == 2:
        collect_at_once(*two)
        assert not affinities(two[0]) & affinities(two[1])
        assert affinities(two[0]) | affinities(two[1]) == cpus
    two[0].close()
    assert affinities(two[1]) == set(two[1].plan.worker_cpus[0])


@PROCESSES
def test_fork_that_closes_its_copy_of_a_sampler_moves_no_worker(two) -> None:
    collect_at_once(*two)
    before = [affinities(each) for each in two]
    pid = os.fork()
    if pid == 0:
        two[0].close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert [affinities(each) for each in two] == before


@SLOW
@PROCESSES
def test_workers_of_a_sampler_without_affinity_stay_where_they_are() -> None:
    config = SamplerConfig(num_envs=4, horizon=3, num_workers=1, affinity="off")
    with (
        ParallelSampler(ToyEnv, config=config) as one,
        ParallelSampler(ToyEnv, config=config) as other,
    ):
        collect_at_once(one, other)
        assert affinities(one) == affinities(other) == set(available_cpus())
        with ParallelSampler(ToyEnv, num_envs=4, horizon=3, num_workers=1) as pinned:
            collect_at_once(one, pinned)
            assert affinities(pinned) == set(pinned.plan.worker_cpus[0])
