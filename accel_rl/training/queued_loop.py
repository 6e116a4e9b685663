"""GA3C's run: agents, predictors and trainers go by themselves; this thread counts and records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np

from accel_rl.algos import GA3CConfig
from accel_rl.config import TrainConfig
from accel_rl.ga3c.queued import QueuedSampler
from accel_rl.parallel import Exchange, VersionExchange
from accel_rl.runs.files import write_whole
from accel_rl.samplers.base import SamplerTimes
from accel_rl.topology import available_cpus
from accel_rl.training.drawing import draw_or_warn
from accel_rl.training.evaluation import Evaluator
from accel_rl.training.metrics import CsvTable
from accel_rl.training.queue_meter import QueueMeter
from accel_rl.training.queue_threads import QueueThreads
from accel_rl.training.recorder import Recorder
from accel_rl.training.stopping import StopRequest
from accel_rl.training.tuner import Tuner

POLL_SECONDS = 0.1
"""between two looks at what was done"""


class Tuning:
    """Changes the numbers of threads and agents after each interval, and keeps the time line.

    An interval begins when all agents that were added have begun; pauses are no part of it. Where
    the run goes on, the time line does.
    """

    def __init__(
        self,
        config: TrainConfig,
        sampler: QueuedSampler,
        threads: QueueThreads,
        recorder: Recorder,
        run_dir: Path,
    ) -> None:
        learner = config.learner
        assert isinstance(learner, GA3CConfig)
        self._interval = learner.tuner_interval_seconds
        self._sampler = sampler
        self._threads = threads
        self._recorder = recorder
        self._run_dir = run_dir
        self._title = config.title
        start = (learner.num_predictors, learner.num_trainers, config.sampler.num_groups)
        most_threads = max(2 * len(available_cpus()), *start[:2])
        rng = np.random.default_rng(np.random.SeedSequence([config.seed, 5]))
        most = (most_threads, most_threads, sampler.most_agents)
        self._tuner = Tuner(start, (1, 1, 1), most, rng)
        self._table = CsvTable(run_dir / "tuner.csv", recorder.steps)
        self._rows = list(self._table.earlier_rows())
        self._opened: float | None = None
        self._counts = 0, 0

    def look(self) -> None:
        """To be called often: moves on where an interval has ended."""
        now = self._recorder.seconds
        counts = self._threads.trainings.count, self._sampler.queue_times.predictions
        if self._opened is None:
            if self._sampler.num_starting == 0:
                self._opened, self._counts = now, counts
            return
        seconds = now - self._opened
        if seconds < self._interval:
            return
        trainings, predictions = (b - a for a, b in zip(self._counts, counts, strict=True))
        names = ("num_predictors", "num_trainers", "num_agents")
        row: dict[str, float] = {"steps": self._recorder.steps, "seconds": now}
        row |= dict(zip(names, self._tuner.counts, strict=True))
        row["trainings_per_second"] = trainings / seconds
        row["predictions_per_second"] = predictions / seconds
        row["is_kept"] = self._tuner.after_window(trainings / seconds)
        self._rows.append(row)
        self._table.write(row)
        num_predictors, num_trainers, num_agents = self._tuner.counts
        self._threads.set_counts(num_predictors, num_trainers)
        self._sampler.set_num_agents(num_agents)
        self._opened = None

    def leave_out(self, trainings: int) -> None:
        """Made while the recorder's clock stood still."""
        self._counts = self._counts[0] + trainings, self._counts[1]

    def draw(self) -> None:
        """``tuner.png``, where an interval has ended."""
        path = self._run_dir / "tuner.png"

        def draw() -> None:
            from accel_rl.training.plot_tuner import draw_tuner  # Matplotlib takes a while to load

            draw_tuner(path, self._rows, self._title)

        if self._rows:
            draw_or_warn(draw, path)


def iterate_queued(
    config: TrainConfig,
    sampler: QueuedSampler,
    threads: QueueThreads,
    exchange: Exchange,
    recorder: Recorder,
    evaluator: Evaluator | None,
    stop: StopRequest,
    run_dir: Path,
) -> None:
    """Let all go on until ``planned_steps`` are taken or a stop is asked for, and record."""
    learner = config.learner
    assert isinstance(learner, GA3CConfig) and isinstance(exchange, VersionExchange)
    earlier = recorder.steps
    threads.progress = lambda: config.progress(earlier + sampler.steps)
    shares = Shares(sampler, threads, recorder)
    tuning = Tuning(config, sampler, threads, recorder, run_dir) if learner.tuner else None
    exchange.take_metrics = QueueMeter(sampler, threads, lambda: recorder.seconds).take

    def record() -> None:
        for metrics in threads.take_metrics():
            recorder.add_metrics(metrics)
        steps, episodes = earlier + sampler.steps, sampler.take_episodes()
        recorder.after_update(steps, exchange.num_updates, {}, episodes, shares.read())

    def report() -> None:
        if tuning is not None:
            tuning.draw()
        write_lags(run_dir, threads.read_trainings().lags, config.title)

    def evaluate_if_due() -> None:
        if evaluator is not None and evaluator.is_due(recorder.steps):
            with sampler.paused():
                exchange.pull()
                count, seconds = _meanwhile(threads, partial(recorder.evaluate, evaluator, stop))
            shares.leave_out(seconds)
            if tuning is not None:
                tuning.leave_out(count)

    try:
        evaluate_if_due()  # a stop may have cut off the last one
        threads.set_counts(learner.num_predictors, learner.num_trainers)
        while recorder.steps < config.planned_steps and stop.received is None:
            threads.woken.wait(POLL_SECONDS)
            threads.check()
            record()
            if tuning is not None:
                tuning.look()
            evaluate_if_due()
        threads.finish()
        threads.check()
        record()
        recorder.write_last_row()
    except Exception:
        with suppress(Exception):  # the first error is the one to tell
            report()
        raise
    began = perf_counter()
    report()
    recorder.pause(perf_counter() - began)


def _meanwhile(threads: QueueThreads, action: Callable[[], None]) -> tuple[int, float]:
    """Does that; what trainers have done meanwhile, in number and in seconds."""
    before = threads.read_trainings()
    action()
    after = threads.read_trainings()
    return after.count - before.count, after.seconds - before.seconds


class Shares:
    """Clocks of predictors and trainers, as shares of the time of all these threads together.

    Predictors that wait for trainers count as learning. What is left they wait for simulators,
    trainers through predictors. Agents' time is that of the mean of those that run.
    """

    def __init__(self, sampler: QueuedSampler, threads: QueueThreads, recorder: Recorder) -> None:
        self._sampler = sampler
        self._threads = threads
        self._recorder = recorder
        self._waiting, self._policy, self._simulating = sampler.times
        self._rest = self._waiting
        self._before = self._read()

    def leave_out(self, learning_seconds: float) -> None:
        """Of trainers, while the recorder's clock stood still."""
        wall, policy, learning, busy = self._before
        self._before = wall, policy, learning + learning_seconds, busy

    def read(self) -> SamplerTimes:
        """The sampler's clocks; adds to the recorder's ``learning_seconds``."""
        now = self._read()
        wall, policy, learning, busy = (b - a for a, b in zip(self._before, now, strict=True))
        self._before = now
        number = max(1, self._threads.num_predictors + self._threads.num_trainers)
        self._policy += policy / number
        # Less than nothing where an update ends that began before the last reading.
        self._rest += wall - (policy + learning) / number
        self._waiting = max(self._waiting, self._rest)
        self._recorder.learning_seconds += learning / number
        self._simulating += busy / max(1, self._sampler.num_agents)
        return SamplerTimes(self._waiting, self._policy, self._simulating)

    def _read(self) -> tuple[float, float, float, float]:
        times, learning = self._sampler.queue_times, self._threads.trainings.seconds
        learning += times.predictor_blocked
        return self._recorder.seconds, times.predictor_busy, learning, self._sampler.busy_seconds


def write_lags(run_dir: Path, lags: Counter[int], title: str) -> None:
    """``policy_lag.csv``: how many batches of training had which policy lag, and its picture."""
    if not lags:
        return
    rows = "".join(f"{lag},{lags[lag]}\n" for lag in sorted(lags))
    write_whole(run_dir / "policy_lag.csv", f"lag_updates,batches\n{rows}".encode())
    path = run_dir / "policy_lag.png"

    def draw() -> None:
        from accel_rl.training.plot_tuner import draw_lags  # Matplotlib takes a while to load

        draw_lags(path, lags, title)

    draw_or_warn(draw, path)
