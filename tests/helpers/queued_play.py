"""Predictors and trainers for the tests of the queued sampler."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from accel_rl.ga3c.queue import QueueClosed
from accel_rl.ga3c.sampler import Prediction, QueuedSampler
from accel_rl.ga3c.segments import Segment
from accel_rl.samplers.base import SamplerConfig

TABLE = np.random.default_rng(0).dirichlet(np.ones(4), size=16).cumsum(axis=1)


def tabular_action(observation: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """By inverse CDF from a table over the step of the episode."""
    return (noise[..., None] > TABLE[observation[..., 2] % 16, :3]).sum(axis=-1)


def value_of(observation: np.ndarray) -> np.ndarray:
    """A number that tells episode and step, exact in single precision."""
    return (observation[..., 1] % 8 * 16 + observation[..., 2]).astype(np.float32)


def policy(observation: np.ndarray, noise: np.ndarray) -> Prediction:
    n = len(noise)
    return Prediction(tabular_action(observation[:n], noise), value_of(observation), 7)


def make_sampler(
    factory: Callable[[], Any], num_agents: int = 3, envs_per_agent: int = 1, **options: Any
) -> QueuedSampler:
    own = {
        "max_agents": num_agents,
        "max_prediction_batch": 4 * envs_per_agent,
        "training_queue_size": 10_000,
        "gamma": 1.0,
        "bootstrap_on_truncation": True,
    }
    own |= {name: options.pop(name) for name in [*own, "seed"] if name in options}
    settings = {"horizon": 5, "step_timeout_seconds": 30, **options}
    config = SamplerConfig(
        num_envs=num_agents * envs_per_agent, num_groups=num_agents, num_workers=None, **settings
    )
    return QueuedSampler(factory, config, **own)


def serve_until(sampler: QueuedSampler, num_steps: int) -> list[Segment]:
    """Serve in this thread until so many steps were taken in all; what is in the queue."""
    while sampler.steps < num_steps:
        sampler.serve(policy)
    return take_all(sampler)


def take_all(sampler: QueuedSampler) -> list[Segment]:
    segments: list[Segment] = []
    while len(sampler.training_queue):
        segments += sampler.training_queue.take(1, 1)
    return segments


@contextmanager
def switching_often(seconds: float = 1e-5) -> Iterator[None]:
    """Let threads take turns as often as can be within."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextmanager
def predictors(sampler: QueuedSampler, number: int = 3) -> Iterator[list[BaseException]]:
    """Threads that serve within, switched as often as can be; what they raised."""
    errors: list[BaseException] = []
    is_over = threading.Event()

    def run() -> None:
        try:
            while not is_over.is_set():
                sampler.serve(policy)
        except QueueClosed:
            pass
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, name=f"predictor {i}") for i in range(number)]
    for thread in threads:
        thread.start()
    try:
        with switching_often():
            yield errors
    finally:
        is_over.set()
        for thread in threads:
            thread.join(20)
        assert not any(thread.is_alive() for thread in threads)


class Step(NamedTuple):
    observation: list[int]
    action: int
    reward: float
    version: int
    end: str  # as in `ScriptedEnv`
    value: float  # of what was seen behind it, of an episode's end if it was cut off there


def expected_segments(
    steps: list[Step], horizon: int, gamma: float, limit_ends: bool
) -> list[list[tuple]]:
    """The segments of one environment's steps: by Babaeizadeh et al. 2017, section 4.1."""
    segments, running = [], []
    for step in steps:
        running.append(step)
        is_last = step.end in ("ltbc" if limit_ends else "ltb")
        if not (is_last or step.end == "c" or len(running) == horizon):
            continue
        segment = []
        for k, own in enumerate(running):
            return_ = 0.0
            for j in range(k, len(running)):
                return_ += gamma ** (j - k) * running[j].reward
            if not is_last:
                return_ += gamma ** (len(running) - k) * step.value
            segment.append((own.observation, own.action, return_, own.version))
        segments.append(segment)
        running = []
    return segments
