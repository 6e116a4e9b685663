"""GA3C in training, let run for a while and stopped; a child of `ga3c_speeds`.

While it stands still agents wait for actions, and the training queue stays as it is.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, NamedTuple

from benchmarks.harness.children import read_spec, serve
from benchmarks.harness.usage import cpu_seconds

LOOK_SECONDS = 0.01
START_TIMEOUT_SECONDS = 300.0
SETTLE_SECONDS = 0.5  # of a look at whether trainers keep up
SETTLE_TIMEOUT_SECONDS = 60.0
SETTLED_SHARE = 0.9
ROOM_LOOKS = 10  # at a training queue with room: a predictor may be on its way there


class Reading(NamedTuple):
    """Sums since the start."""

    seconds: float = 0.0
    predictions: float = 0.0
    prediction_batches: float = 0.0
    trainings: float = 0.0
    samples: float = 0.0
    cpu_seconds: float = 0.0

    def minus(self, other: Reading) -> Reading:
        return Reading._make(a - b for a, b in zip(self, other, strict=True))


class Engine:
    """Agents, predictors and trainers of one model, standing still until `resume`.

    Before that, all have begun and trainers keep up with predictors; with slow trainers that is
    when the training queue is full.

    Raises:
        TimeoutError: agents have not begun within `START_TIMEOUT_SECONDS`.
    """

    def __init__(self, options: list[str]) -> None:
        from accel_rl.cli.parse import parse_arguments
        from accel_rl.ga3c.learner import GA3CConfig
        from accel_rl.training.build import build

        config = parse_arguments(options)
        assert isinstance(config.learner, GA3CConfig)
        self.parts = build(config)
        self.sampler: Any = self.parts.sampler
        self.threads: Any = self.parts.threads
        self.counts = (config.learner.num_predictors, config.learner.num_trainers)
        self._gate = contextlib.ExitStack()
        self.sampler.start()
        self.resume()
        self.sampler.set_num_agents(config.sampler.num_groups)
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while self.sampler.num_starting:
            if time.monotonic() > deadline:
                raise TimeoutError(f"agents have not begun in {START_TIMEOUT_SECONDS} s")
            self.look()
        deadline = time.monotonic() + SETTLE_TIMEOUT_SECONDS
        done = Reading()
        while not done.samples >= SETTLED_SHARE * done.predictions > 0:
            self._before = self._read()
            end = time.monotonic() + SETTLE_SECONDS
            while time.monotonic() < end:
                self.look()
            done = self._read().minus(self._before)
            if time.monotonic() > deadline:
                break
        self.pause()

    def resume(self) -> None:
        """All go on."""
        self._gate.close()
        self.threads.set_counts(*self.counts)
        self.is_running = True
        self._before = self._read()

    def look(self) -> float:
        """Waits a little; the predictions since `resume`. Raises what a thread has failed with."""
        self.threads.woken.wait(LOOK_SECONDS)
        self.threads.check()
        self.threads.take_metrics()
        self.sampler.take_episodes()
        return float(self.sampler.queue_times.predictions - self._before.predictions)

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
        self.threads.set_counts(self.counts[0], 0)
        self.is_running = False
        return done

    def close(self) -> None:
        self._gate.close()
        self.threads.close()
        self.sampler.close()

    def _read(self) -> Reading:
        times, done = self.sampler.queue_times, self.threads.trainings
        sums = (times.predictions, times.batches, done.count, done.samples)
        return Reading(time.perf_counter(), *sums, cpu_seconds())


def main() -> None:
    """Serve: a step is a prediction; the numbers are sums of the measurement."""
    spec = read_spec()
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")  # as accel_rl.__main__, before torch is loaded
    from accel_rl.training.torch_setup import sampling_threads

    with sampling_threads(), contextlib.closing(Engine(spec["options"])) as engine:
        seen, done = 0.0, Reading()

        def advance() -> int:
            nonlocal seen
            if not engine.is_running:
                engine.resume()
                seen = 0.0
            before, seen = seen, engine.look()
            return int(seen - before)

        def goes_on(has_time: bool) -> bool:
            nonlocal done
            if not has_time:
                done = engine.pause()
            return has_time

        def take_numbers() -> dict[str, float]:
            return done._asdict()

        said = {"options": spec["options"], "plan": engine.parts.describe()}
        serve(advance, said | {"threads": engine.counts}, take_numbers, goes_on)


if __name__ == "__main__":
    main()
