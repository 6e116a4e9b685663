"""Reports on the queues of a GA3C run: metrics, the policy lag, and a picture of the tuner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from accel_rl.ga3c.sampler import QueuedSampler, QueueTimes
from accel_rl.ga3c.threads import QueueThreads, Trainings
from accel_rl.runs.files import write_whole
from accel_rl.runs.tables import Row

_COUNTS = {"num_trainers": "trainers", "num_predictors": "predictors", "num_agents": "agents"}


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


def draw_tuner(path: Path, rows: Sequence[Row], title: str) -> None:
    """Write a PNG of the counts in each window and of how fast they trained, over time.

    Args:
        path: the PNG.
        rows: those of ``tuner.csv``, one for each window: ``seconds`` at its end, its counts,
            updates a second (``trainings_per_second``), and whether the counts were kept (others
            have a hollow mark).
        title: of the figure.
    """
    # Matplotlib takes a while to load.
    from accel_rl.runs.figures import (
        COLOURS,
        MaxNLocator,
        entitle,
        name_ends,
        new_figure,
        style_axes,
        to_png,
    )

    names = ("seconds", "trainings_per_second", "is_kept", *_COUNTS)
    table = {name: np.array([row[name] for row in rows], np.float64) for name in names}
    minutes, rate, is_kept = table["seconds"] / 60, table["trainings_per_second"], table["is_kept"]
    figure = new_figure(8.0, 5.4)
    speed, few, agents = figure.subplots(3, 1, sharex=True, height_ratios=(2, 1, 1))
    speed.plot(minutes, rate, color=COLOURS[0], linewidth=0.8, alpha=0.5)
    for kept, face in ((1, COLOURS[0]), (0, "white")):
        chosen = is_kept == kept
        style = {"color": COLOURS[0], "markersize": 4, "markerfacecolor": face}
        speed.plot(minutes[chosen], rate[chosen], "o", **style)
    speed.set_ylabel("updates a second")
    agents.set_xlabel("minutes")
    for axes in (speed, few, agents):
        axes.set_xlim(0, minutes[-1])
        style_axes(axes)
    for axes, shown in ((few, ("num_trainers", "num_predictors")), (agents, ("num_agents",))):
        ends = []
        for name in shown:
            colour = COLOURS[1 + list(_COUNTS).index(name)]
            edges = np.append(0.0, minutes)  # a row tells of the window that ends with it
            axes.stairs(table[name], edges, baseline=None, color=colour, linewidth=1.5)
            ends.append((minutes[-1], table[name][-1], _COUNTS[name], colour))
        axes.set_ylim(0, 1.1 * max(table[name].max() for name in shown))
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        name_ends(axes, ends)
    speed.set_ylim(0, 1.1 * rate.max())
    found = ", ".join(f"{table[name][-1]:.0f} {label}" for name, label in _COUNTS.items())
    foot = f"{title}; filled: counts that were kept, hollow: given up"
    entitle(figure, f"GA3C ends with {found}: {rate[-1]:.0f} updates a second", foot)
    write_whole(path, to_png(figure))
