"""Reports on the queues of a GA3C run: metrics, and the policy lag."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from accel_rl.ga3c.sampler import QueuedSampler, QueueTimes
from accel_rl.ga3c.threads import QueueThreads, Trainings
from accel_rl.runs.files import write_whole


class QueueMeter:
    """Metrics of the queues since the last row. ``clock`` returns seconds without pauses."""

    def __init__(
        self, sampler: QueuedSampler, threads: QueueThreads, clock: Callable[[], float]
    ) -> None:
        self._sampler = sampler
        self._threads = threads
        self._clock = clock
        self._read_at = clock()
        self._times = sampler.queue_times
        self._trainings = Trainings()

    def take(self) -> dict[str, float]:
        """Return the metrics since the last call."""
        now, times, done = self._clock(), self._sampler.queue_times, self._threads.read_trainings()
        before, self._times = self._times, times
        seconds, self._read_at = max(now - self._read_at, 1e-9), now
        spent = QueueTimes._make(a - b for a, b in zip(times, before, strict=True))
        lags = done.lags - self._trainings.lags
        trainings = max(1, done.count - self._trainings.count)
        samples = done.samples - self._trainings.samples
        queued = done.queued - self._trainings.queued
        self._trainings = done
        batches = max(1, spent.batches)
        return {
            "predictions_per_second": spent.predictions / seconds,
            "prediction_batch_mean": spent.predictions / batches,
            "prediction_queue_mean": spent.queued / batches,
            "prediction_latency_ms": 1e3 * spent.latency / max(1, spent.predictions),
            "training_batch_mean": samples / trainings,
            "training_queue_mean": queued / trainings,
            "lag_updates_min": float(min(lags, default=0)),
            "lag_updates_mean": sum(lag * count for lag, count in lags.items()) / trainings,
            "lag_updates_max": float(max(lags, default=0)),
            "num_predictors": float(self._threads.num_predictors),
            "num_trainers": float(self._threads.num_trainers),
            "num_agents": float(self._sampler.num_agents),
        }


def write_lags(run_dir: Path, lags: Counter[int]) -> None:
    """Write ``policy_lag.csv``: how many batches of training had which policy lag."""
    if lags:
        rows = "".join(f"{lag},{lags[lag]}\n" for lag in sorted(lags))
        write_whole(run_dir / "policy_lag.csv", f"lag_updates,batches\n{rows}".encode())
