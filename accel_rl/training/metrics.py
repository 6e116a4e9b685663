"""Numbers of a run over time: ``metrics.csv`` and TensorBoard events, one row a log interval."""

from __future__ import annotations

import csv
import io
import time
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from accel_rl.samplers.base import Episode
from accel_rl.training.files import naming

EPISODE_WINDOW = 100
"""episodes in each running score, as in Stooke and Abbeel 2018, section 4"""

Row = Mapping[str, float]


class LearnerMetrics:
    """The mean of each of the learner's metrics over the updates since the last `take`.

    Sums stay on the learner's device; only `take` reads them, which waits for it.
    """

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._total: torch.Tensor | None = None
        self._num_updates = 0

    def add(self, metrics: Mapping[str, torch.Tensor]) -> None:
        """``metrics`` are 0-d tensors on one device, the same names at each update."""
        values = torch.stack(tuple(metrics.values()))
        if self._total is None:
            self._names, self._total = tuple(metrics), values
        else:
            self._total += values
        self._num_updates += 1

    def take(self) -> dict[str, float]:
        """The means, and starts anew. The one synchronisation with the device while training."""
        if self._total is None:
            return {}
        means = (self._total / self._num_updates).tolist()
        self._total, self._num_updates = None, 0
        return dict(zip(self._names, means, strict=True))


class Scores:
    """The last `EPISODE_WINDOW` finished episodes, and how many there were in all.

    ``episode_return_raw`` is the game's own score, summed over all lives of a game;
    ``episode_return_clipped`` is the same sum of what the learner sees.
    """

    def __init__(self) -> None:
        self.num_episodes = 0
        self._last: deque[Episode] = deque(maxlen=EPISODE_WINDOW)

    def add(self, episodes: Iterable[Episode]) -> None:
        for episode in episodes:
            self.num_episodes += 1
            self._last.append(episode)

    def summary(self) -> dict[str, float]:
        """Statistics of the window; NaN before the first episode has ended."""
        raw = np.array([episode.raw_return for episode in self._last] or [np.nan])
        clipped = np.array([episode.clipped_return for episode in self._last] or [np.nan])
        length = np.array([float(episode.length) for episode in self._last] or [np.nan])
        p10, median, p90 = np.quantile(raw, np.array([0.1, 0.5, 0.9]))
        return {
            "episode_return_raw_mean": float(raw.mean()),
            "episode_return_raw_std": float(raw.std()),
            "episode_return_raw_min": float(raw.min()),
            "episode_return_raw_p10": float(p10),
            "episode_return_raw_median": float(median),
            "episode_return_raw_p90": float(p90),
            "episode_return_raw_max": float(raw.max()),
            "episode_return_clipped_mean": float(clipped.mean()),
            "episode_length_steps_mean": float(length.mean()),
            "episodes_in_window": float(len(self._last)),
        }


class CsvTable:
    """Rows of numbers in a CSV file, each on the disk when `write` returns.

    The first row makes the header; all others have its columns.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns: tuple[str, ...] = ()

    def write(self, row: Row) -> None:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if not self._columns:
            self._columns = tuple(row)
            writer.writerow(self._columns)
        assert tuple(row) == self._columns, "each row has the columns of the first"
        writer.writerow(f"{value:.10g}" for value in row.values())
        with naming(self._path), self._path.open("a", newline="") as file:
            file.write(text.getvalue())


class EventsWriter:
    """TensorBoard events, each on the disk when `write` returns.

    TensorBoard's own writers hand over to a thread, which prints a traceback of its own when the
    disk is full.
    """

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / f"events.out.tfevents.{int(time.time()):010d}.accel_rl"
        with naming(self._path):
            self._file = self._path.open("wb")
        self._records = RecordWriter(self._file)
        self._append(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def write(self, row: Row, steps: int) -> None:
        """One scalar for each number in ``row``; its name is its tag. NaN is left out."""
        values = [
            Summary.Value(tag=tag, simple_value=value)
            for tag, value in row.items()
            if not np.isnan(value)
        ]
        self._append(Event(wall_time=time.time(), step=steps, summary=Summary(value=values)))

    def close(self) -> None:
        """Calling it again does nothing."""
        self._file.close()

    def _append(self, event: Event) -> None:
        with naming(self._path):
            self._records.write(event.SerializeToString())
            self._records.flush()


class MetricsWriter:
    """Rows to ``metrics.csv`` and to TensorBoard, where they stand over steps.

    The tags begin ``episode/``, ``learner/``, ``time/`` and ``run/``; `write_evaluation` writes
    ``evaluation.csv`` and ``evaluation/``.
    """

    def __init__(self, run_dir: Path) -> None:
        self._metrics = CsvTable(run_dir / "metrics.csv")
        self._evaluations = CsvTable(run_dir / "evaluation.csv")
        self._events = EventsWriter(run_dir)

    def write(self, row: Row) -> None:
        """``row`` has a column ``steps``, and columns in the order in which they shall stand.

        Raises:
            OSError: the disk is full, say.
        """
        self._metrics.write(row)
        tagged = {tag(name): value for name, value in row.items() if name != "steps"}
        self._events.write(tagged, int(row["steps"]))

    def write_evaluation(self, row: Row) -> None:
        """Likewise for the result of an evaluation."""
        self._evaluations.write(row)
        tagged = {f"evaluation/{name}": row[name] for name in row if name != "steps"}
        self._events.write(tagged, int(row["steps"]))

    def close(self) -> None:
        """Calling it again does nothing."""
        self._events.close()


def tag(column: str) -> str:
    """A column of metrics as TensorBoard groups it."""
    if column.startswith("episode"):
        kind = "episode"
    elif column.endswith("_share"):
        kind = "time"
    elif column.endswith(("_seconds", "_per_second")) or column in ("frames", "updates"):
        kind = "run"
    else:
        kind = "learner"
    return f"{kind}/{column}"
