"""What a worker process leaves alone: signals, what its environments start, odd search paths."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from toy_envs import ToyEnv

from accel_rl.samplers import ParallelSampler, SamplerConfig

CONFIG = SamplerConfig(num_envs=2, num_workers=1)


def zeros(step) -> np.ndarray:
    return np.zeros(len(step.observation), np.int64)


class HelpedEnv(ToyEnv):
    """Has a process of its own until it is closed, except in the process ``own``."""

    def __init__(self, start: Callable[[], Any], folder: str, own: int) -> None:
        super().__init__()
        self.end: Callable[[], Any] = lambda: None
        if os.getpid() != own:
            helper, self.end = start()
            Path(folder, str(helper.pid)).touch()

    def close(self) -> None:
        self.end()


def start_program() -> Any:
    program = subprocess.Popen(["sleep", "600"])
    return program, lambda: (program.terminate(), program.wait())


def start_fork() -> Any:
    fork = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    fork.start()
    return fork, lambda: (fork.terminate(), fork.join())


@pytest.mark.parametrize("start", [start_program, start_fork])
def test_environment_can_terminate_what_it_started_and_nobody_the_worker(start, tmp_path) -> None:
    with ParallelSampler(partial(HelpedEnv, start, str(tmp_path), os.getpid()), CONFIG) as sampler:
        (worker,) = psutil.Process().children()
        for number in (signal.SIGTERM, signal.SIGINT):
            sampler.collect(zeros)
            time.sleep(0.05)  # so that it waits for orders
            worker.send_signal(number)
        sampler.collect(zeros)
        began = time.monotonic()
    assert time.monotonic() - began < 2
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert len(pids) == 2 and not any(map(psutil.pid_exists, pids))


def test_search_path_with_something_else_than_strings_in_it_is_no_obstacle(monkeypatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, Path("somewhere")])
    with ParallelSampler(ToyEnv, CONFIG) as sampler:
        sampler.collect(zeros)
