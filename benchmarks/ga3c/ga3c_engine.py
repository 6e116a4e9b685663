"""GA3C put together from options as on its command line, to be let run for a while and stopped.

While it stands still agents wait for actions, and the training queue stays as it is.
"""

from __future__ import annotations

import contextlib
import time
from typing import NamedTuple, Self

from accel_rl.cli.parse import parse_arguments
from accel_rl.ga3c.learner import GA3CConfig
from accel_rl.ga3c.sampler import QueuedSampler
from accel_rl.ga3c.threads import QueueThreads
from accel_rl.training.build import build
from benchmarks.harness.usage import GpuUse, cpu_seconds

LOOK_SECONDS = 0.01
START_TIMEOUT_SECONDS = 300.0
SETTLE_SECONDS = 0.5  # of a look at whether trainers keep up
SETTLE_TIMEOUT_SECONDS = 60.0
SETTLED_SHARE = 0.9
ROOM_LOOKS = 10  # at a training queue with room: a predictor may be on its way there

Counts = tuple[int, int, int]
"""of predictors, trainers and agents"""


class Reading(NamedTuple):
    """Sums since the start."""

    seconds: float = 0.0
    predictions: float = 0.0
    prediction_batches: float = 0.0
    trainings: float = 0.0
    samples: float = 0.0
    cpu_seconds: float = 0.0
    own_cpu_seconds: float = 0.0  # without those of agents

    def minus(self, other: Reading) -> Reading:
        return Reading._make(a - b for a, b in zip(self, other, strict=True))


class Engine:
    """Agents, predictors and trainers of one model, standing still until `resume`."""

    def __init__(self, options: list[str]) -> None:
        config = parse_arguments(options)
        assert isinstance(config.learner, GA3CConfig)
        self._parts = build(config)
        sampler, threads = self._parts.sampler, self._parts.threads
        assert isinstance(sampler, QueuedSampler) and isinstance(threads, QueueThreads)
        self.config, self.sampler, self.threads = config, sampler, threads
        self.gpu = GpuUse(self._parts.device.type)
        self._gate = contextlib.ExitStack()
        sampler.start()
        self.is_running = False
        self._before = Reading()
        learner = config.learner
        self.set_counts((learner.num_predictors, learner.num_trainers, config.sampler.num_groups))

    @property
    def plan(self) -> str:
        """What is trained where."""
        return self._parts.describe()

    @property
    def counts(self) -> Counts:
        """What runs when it does."""
        return *self._num_threads, self.sampler.num_agents

    def set_counts(self, counts: Counts) -> None:
        """So many shall run; returns when new agents have begun and trainers keep up with them.

        With slow trainers that is when the training queue is full.

        Raises:
            TimeoutError: agents have not begun within `START_TIMEOUT_SECONDS`.
        """
        predictors, trainers, agents = counts
        self._num_threads = predictors, trainers
        self.resume()
        self.sampler.set_num_agents(agents)
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while self.sampler.num_starting:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{agents} agents have not begun in {START_TIMEOUT_SECONDS} s")
            self.look()
        deadline = time.monotonic() + SETTLE_TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            done = self._go_on(SETTLE_SECONDS)
            if done.samples >= SETTLED_SHARE * done.predictions > 0:
                break
        self.pause()

    def resume(self) -> None:
        """All go on."""
        self._gate.close()
        self.threads.set_counts(*self._num_threads)
        self.is_running = True
        self._before = self._read()

    def look(self) -> float:
        """Waits a little; the predictions since `resume`. Raises what a thread has failed with."""
        self.threads.woken.wait(LOOK_SECONDS)
        self.threads.check()
        self.threads.take_metrics()
        self.sampler.take_episodes()
        self.gpu.look()
        return self.sampler.queue_times.predictions - self._before.predictions

    def pause(self) -> Reading:
        """All stand still; what was done since `resume`.

        First trainers make room in their queue, since predictors would not wait there for ever.
        """
        done = self._read().minus(self._before)
        self._gate.enter_context(self.sampler.paused())
        deadline = time.monotonic() + SETTLE_TIMEOUT_SECONDS
        num_looks = 0
        while num_looks < ROOM_LOOKS and time.monotonic() < deadline:
            num_looks = 0 if self.sampler.training_queue.is_full else num_looks + 1
            self.threads.woken.wait(LOOK_SECONDS)
            self.threads.check()
        self.threads.set_counts(self._num_threads[0], 0)
        self.is_running = False
        return done

    def measure(self, seconds: float, warm_up: float) -> Reading:
        """What is done in ``seconds``, after others that do not count."""
        self.resume()
        self._go_on(warm_up)
        self._go_on(seconds)
        return self.pause()

    def _go_on(self, seconds: float) -> Reading:
        """What is done in ``seconds``, from which on `look` and `pause` count."""
        self._before = self._read()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.look()
        return self._read().minus(self._before)

    def close(self) -> None:
        """Ends all. Calling it again does nothing."""
        self._gate.close()
        self.threads.close()
        self.sampler.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _read(self) -> Reading:
        times, done = self.sampler.queue_times, self.threads.trainings
        sums = (times.predictions, times.batches, done.count, done.samples)
        return Reading(time.perf_counter(), *sums, cpu_seconds(), time.process_time())
