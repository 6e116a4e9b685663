"""GA3C's threads and what is read of them, when several change things at the same time."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from queued_play import switching_often

from accel_rl.agents import PolicyAgent
from accel_rl.ga3c.learner import GA3C, GA3CConfig
from accel_rl.ga3c.queue import ClosableQueue
from accel_rl.ga3c.report import QueueMeter
from accel_rl.ga3c.sampler import QueueTimes
from accel_rl.ga3c.threads import QueueThreads
from accel_rl.ga3c.versions import Versions, VersionSync
from accel_rl.models import make_model
from accel_rl.parallel import FlatParameters
from accel_rl.spaces import Leaf


class FailingSampler:
    """All its predictors fail at the same time."""

    num_agents = most_predicted = 1
    queue_times = QueueTimes()

    def __init__(self, num_predictors: int) -> None:
        self.training_queue: ClosableQueue = ClosableQueue(5)
        self._together = threading.Barrier(num_predictors)

    def serve(self, policy: Any) -> int:
        self._together.wait(10)
        raise RuntimeError("the device is gone")


class SlowList(list):
    """Between its length's being read and its last element's removal others have a turn."""

    def pop(self, *args: Any) -> Any:
        time.sleep(0.05)
        return super().pop(*args)


def make_threads(sampler: Any) -> QueueThreads:
    model = make_model("mlp", Leaf((4,), np.dtype(np.float32)), 3)
    agent, config, flat = PolicyAgent(model), GA3CConfig(log_norms=True), FlatParameters(model)
    versions = Versions(flat.parameter, config.rule, None)
    learner = GA3C(agent, config, VersionSync(flat, versions))
    return QueueThreads(agent, learner, versions, sampler, torch.device("cpu"))


def test_predictors_that_fail_together_all_end_with_the_first_error() -> None:
    threads = make_threads(FailingSampler(3))
    threads._stops["predictor"] = SlowList()
    threads.set_counts(3, 1)
    assert threads.woken.wait(10)
    threads.close()  # pytest fails for a thread that ends with another error
    with pytest.raises(RuntimeError, match="the device is gone"):
        threads.check()
    threads.set_counts(2, 2)  # by a tuner that does not know yet
    assert (threads.num_predictors, threads.num_trainers) == (0, 0)


def test_meter_reads_while_trainers_count() -> None:
    threads = make_threads(FailingSampler(1))
    meter = QueueMeter(threads._sampler, threads, time.perf_counter)

    def train() -> None:
        for lag in range(100_000):
            with threads._lock:
                threads.trainings.lags[lag] += 1

    with switching_often(1e-6), ThreadPoolExecutor(1) as trainers:
        trainer = trainers.submit(train)
        while not trainer.done():
            meter.take()
    assert sum(threads.read_trainings().lags.values()) == 100_000
