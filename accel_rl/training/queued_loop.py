"""GA3C's run: agents, predictors and trainers go by themselves; this thread counts and records."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import numpy as np

from accel_rl.algos import GA3CConfig
from accel_rl.config import TrainConfig
from accel_rl.parallel import VersionExchange
from accel_rl.samplers.base import SamplerTimes
from accel_rl.samplers.queued import QueuedSampler, QueueTimes
from accel_rl.training.queue_threads import QueueThreads, Trainings
from accel_rl.training.recorder import Recorder
from accel_rl.training.stopping import StopRequest

POLL_SECONDS = 0.1
"""between two looks at what was done"""


class QueueMeter:
    """What to tell of the queues since the last time, for a row of metrics."""

    def __init__(self, sampler: QueuedSampler, threads: QueueThreads) -> None:
        self._sampler = sampler
        self._threads = threads
        self._read_at = perf_counter()
        self._times = sampler.queue_times
        self._trainings = Trainings()

    def take(self) -> dict[str, float]:
        """As `Exchange.take_metrics`."""
        now, times, done = perf_counter(), self._sampler.queue_times, self._threads.trainings
        before, self._times = self._times, times
        seconds, self._read_at = max(now - self._read_at, 1e-9), now
        spent = QueueTimes._make(a - b for a, b in zip(times, before, strict=True))
        lags = done.lags - self._trainings.lags
        trainings = max(1, done.count - self._trainings.count)
        samples = done.samples - self._trainings.samples
        queued = done.queued - self._trainings.queued
        self._trainings = Trainings(done.count, done.samples, 0.0, done.queued, done.lags.copy())
        latency = max(spent.waiting + spent.transfer + spent.inference, 1e-9)
        batches = max(1, spent.batches)
        return {
            "predictions_per_second": spent.predictions / seconds,
            "prediction_batch_mean": spent.predictions / batches,
            "prediction_queue_mean": spent.queued / batches,
            "prediction_latency_ms": 1e3 * latency / max(1, spent.predictions),
            "latency_waiting_share": spent.waiting / latency,
            "latency_transfer_share": spent.transfer / latency,
            "latency_inference_share": spent.inference / latency,
            "training_batch_mean": samples / trainings,
            "training_queue_mean": queued / trainings,
            "lag_updates_min": float(min(lags, default=0)),
            "lag_updates_mean": sum(lag * count for lag, count in lags.items()) / trainings,
            "lag_updates_max": float(max(lags, default=0)),
            "num_predictors": float(self._threads.num_predictors),
            "num_trainers": float(self._threads.num_trainers),
            "num_agents": float(self._sampler.num_agents),
        }


class Tuning:
    """Changes the numbers of threads and agents after each interval, and keeps the time line."""

    def __init__(
        self, config: TrainConfig, sampler: QueuedSampler, threads: QueueThreads, run_dir: Path
    ) -> None:
        learner = config.learner
        assert isinstance(learner, GA3CConfig)
        self._interval = learner.tuner_interval_seconds
        self._sampler = sampler
        self._threads = threads
        self._run_dir = run_dir
        self._title = config.title
        start = (learner.num_predictors, learner.num_trainers, config.sampler.num_groups)
        cores = len(available_cpus())
        most = (_MOST_THREADS * cores, _MOST_THREADS * cores, sampler.most_agents)
        rng = np.random.default_rng(np.random.SeedSequence([config.seed, 5]))
        self._tuner = Tuner(start, (1, 1, 1), np.maximum(most, start).tolist(), rng)
        self._began = perf_counter()
        self._rows: list[dict[str, float]] = []
        self._open_window()

    def _open_window(self) -> None:
        self._opened = perf_counter()
        self._before = self._threads.trainings.count, self._sampler.queue_times.predictions

    def look(self) -> None:
        """To be called often: moves on where a window has ended."""
        now = perf_counter()
        seconds = now - self._opened
        if seconds < self._interval:
            return
        trainings, predictions = self._before
        rate = (self._threads.trainings.count - trainings) / seconds
        ran = self._tuner.counts
        kept = self._tuner.after_window(rate)
        self._rows.append(
            {
                "seconds": now - self._began,
                "num_predictors": ran[0],
                "num_trainers": ran[1],
                "num_agents": ran[2],
                "trainings_per_second": rate,
                "predictions_per_second": (self._sampler.queue_times.predictions - predictions)
                / seconds,
                "is_kept": kept,
            }
        )
        num_predictors, num_trainers, num_agents = self._tuner.counts
        self._threads.set_counts(num_predictors, num_trainers)
        self._sampler.set_num_agents(num_agents)
        self._open_window()
