"""Samplers that are closed twice, dropped, or never came to run leave nothing behind."""

import os

import numpy as np
import psutil
import pytest
from toy_envs import FaultyEnv, ToyEnv

from accel_rl.samplers import ParallelSampler, SamplerConfig, SamplerError, SerialSampler

CONFIG = SamplerConfig(num_envs=8, horizon=5, num_groups=2, num_workers=2)


def zeros(step) -> np.ndarray:
    return np.zeros(len(step.observation), np.int64)


def worker_pids() -> list[int]:
    return sorted(process.pid for process in psutil.Process().children())


def test_close_that_was_interrupted_can_be_called_again(monkeypatch):
    sampler = ParallelSampler(ToyEnv, CONFIG)
    sampler.start()
    before = len(os.listdir("/proc/self/fd"))
    process = list(sampler._pool._workers.processes.values())[1]
    wait, interrupts = process._process.wait, iter([KeyboardInterrupt()])

    def interrupted_wait(timeout: float | None = None) -> int:
        for interrupt in interrupts:
            raise interrupt
        return wait(timeout)

    monkeypatch.setattr(process._process, "wait", interrupted_wait)
    with pytest.raises(KeyboardInterrupt):
        sampler.close()
    sampler.close()
    assert not worker_pids()
    assert len(os.listdir("/proc/self/fd")) < before


@pytest.mark.parametrize("num_collects", [0, 2])
def test_dropped_sampler_ends_its_workers(num_collects):
    before = len(os.listdir("/proc/self/fd"))
    sampler = ParallelSampler(ToyEnv, CONFIG)
    sampler.start()
    for _ in range(num_collects):
        sampler.collect(zeros)
    assert worker_pids()
    del sampler
    assert not worker_pids()
    assert len(os.listdir("/proc/self/fd")) <= before


class ClosingEnv(FaultyEnv):
    """Fails in the reset of the third of these; counts who was closed."""

    made = closed = 0

    def __init__(self) -> None:
        type(self).made += 1
        super().__init__("reset" if self.made == 4 else "none")  # the first is the probe

    def close(self) -> None:
        type(self).closed += 1


def test_serial_sampler_that_cannot_start_closes_its_environments():
    sampler = SerialSampler(ClosingEnv, CONFIG)
    with pytest.raises(SamplerError, match=r"environment 2 .*cannot reset"):
        sampler.start()
    assert ClosingEnv.closed == ClosingEnv.made == 9
    with pytest.raises(SamplerError, match="not running"):
        sampler.collect(zeros)
