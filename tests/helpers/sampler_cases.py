"""Samplers, policies and worker processes for the tests of samplers."""

import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import psutil
import pytest
from tiers import processes
from toy_envs import ScriptedEnv

from accel_rl.envs import EnvFactory
from accel_rl.rollout import Rollout
from accel_rl.samplers import ParallelSampler, SamplerConfig, SerialSampler
from accel_rl.samplers.base import PolicyInput
from accel_rl.samplers.sampler import RolloutSampler

T, LENGTH = 5, 7
GAMES = partial(ScriptedEnv, "." * (LENGTH - 1) + "t")
KINDS = pytest.mark.parametrize("kind", [SerialSampler, processes(ParallelSampler)])


def make_sampler(factory=GAMES, **options) -> ParallelSampler:
    given = {"horizon": T, "decorrelation_steps": 30, **options}
    config = SamplerConfig(num_envs=8, num_workers=1, on_worker_failure="restart", **given)
    return ParallelSampler(factory, config=config, seed=5)


def zeros(step: PolicyInput) -> np.ndarray:
    return np.zeros(len(step.noise), np.int64)


def lose_worker(sampler: ParallelSampler, after_order_of: int) -> None:
    """Kill the one worker when it has carried out the last order of this group."""
    workers = sampler._pool._workers
    deadline = time.monotonic() + 10
    while workers.orders.owes(0, after_order_of):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process = psutil.Process(workers.processes[0].pid)
    process.send_signal(signal.SIGKILL)
    while process.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def make(
    factory: EnvFactory, kind: str, reset_policy: str = "immediate", seed: int = 3
) -> RolloutSampler:
    config = SamplerConfig(
        num_envs=4,
        horizon=10,
        num_groups=2,
        num_workers=int(kind) if kind.isdigit() else None,
        reset_policy=reset_policy,  # type: ignore[arg-type]
        decorrelation_steps=20,
    )
    if kind == "serial":
        return SerialSampler(factory, config=config, seed=seed)
    return ParallelSampler(factory, config=config, seed=seed)


def worker_pids() -> list[int]:
    return sorted(process.pid for process in psutil.Process().children())


def assert_same_rollouts(one: Rollout, other: Rollout) -> None:
    """But for extras, and for slots of final observations that are not used."""
    used = one.final_step >= 0
    for name in Rollout.__annotations__.keys() - {"extras"}:
        a, b = getattr(one, name), getattr(other, name)
        if name == "final_observation":
            a, b = a[used], b[used]
        assert a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f"), name


def await_ends(pids: Iterable[int]) -> None:
    """Wait for the ends of processes, whoever's children they are."""
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        has_ended = poll.poll(60_000)
        os.close(descriptor)
        assert has_ended, f"process {pid} still runs"


class StandingClock:
    """A clock for `pool.monotonic` that stands still except while one worker alone owes a step.

    That is one that hangs, from when ``hangs`` says so. So no other worker is ever late, however
    slow the machine is.
    """

    def __init__(self, hangs: Callable[[], bool]) -> None:
        self.hangs, self.now, self.sampler = hangs, 0.0, None

    def __call__(self) -> float:
        sampler: Any = self.sampler
        if sampler is not None and sampler.generation == 0 and self.hangs():
            workers = sampler._pool._workers
            groups = range(len(sampler._pool.columns))
            late = [w for w in workers.processes if any(workers.orders.owes(w, g) for g in groups)]
            self.now += len(late) == 1
        return self.now
