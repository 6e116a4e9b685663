"""Tables of a run on disk: ``metrics.csv``, ``evaluation.csv`` and TensorBoard events."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from accel_rl.runs.files import append_whole, naming, whole_lines, write_whole

EPISODE_WINDOW = 100
"""episodes in each running score, as in Stooke and Abbeel 2018, section 4"""

MOST_CURVE_ROWS = 2_000
"""rows that a learning curve is drawn through, which is about one for each column of pixels"""

Row = Mapping[str, float]

_LOGGER = logging.getLogger(__name__)


class CsvTable:
    """Rows of numbers in a CSV file, each on the disk when `write` returns.

    The first row makes the header; all others have its columns. Of what is there already, rows up
    to ``steps`` stay; where the run that goes on has other columns, the earlier rows get NaN in
    those that they lack, and it in those that it has no more. Rows are not kept in memory.
    """

    def __init__(self, path: Path, steps: int) -> None:
        self._path = path
        self._earlier: tuple[str, ...] = ()  # columns of the rows that stay
        self._columns: tuple[str, ...] = ()  # of the rows that were written here
        if path.exists():
            self._rewrite(steps=steps)

    def earlier_rows(self) -> Iterator[dict[str, float]]:
        """Read the rows that stay from an earlier part of the run, before the first `write`."""
        return _rows(self._path, ["steps"])

    def write(self, row: Row) -> None:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        columns = self._columns
        if not columns:
            columns = tuple(dict.fromkeys((*row, *self._earlier)))
            if self._earlier:
                self._rewrite(columns)
        if not self._path.exists() or not self._path.stat().st_size:
            if self._columns or self._earlier:
                _LOGGER.warning("%s was deleted; it goes on with a header", self._path)
            writer.writerow(columns)
        assert set(row) <= set(columns), "each row has the columns of the first"
        writer.writerow(_texts(row, columns))
        append_whole(self._path, text.getvalue().encode())
        self._columns = columns

    def _rewrite(self, columns: tuple[str, ...] = (), steps: float = math.inf) -> None:
        """Keep the rows up to ``steps``, with ``columns``, or their own if there are none given."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        try:
            for row in _rows(self._path, ["steps"]):
                if row["steps"] > steps:
                    continue
                if not text.tell():
                    self._earlier = columns or tuple(row)
                    writer.writerow(self._earlier)
                writer.writerow(_texts(row, self._earlier))
        except ValueError as error:
            raise ValueError(f"{error}; move it away") from error
        write_whole(self._path, text.getvalue().encode())


def _texts(row: Row, columns: Sequence[str]) -> list[str]:
    return [f"{row.get(name, np.nan):.10g}" for name in columns]


class CurveRows:
    """Rows of a whole run for its learning curve: evenly thinned, so that there are never many."""

    def __init__(self, earlier: Iterable[Row] = ()) -> None:
        self._kept: list[Row] = []  # each `_every`-th
        self._every, self._number = 1, 0
        self._last: Row = {}
        for row in earlier:
            self.add(row)

    def add(self, row: Row) -> None:
        """Take in the next ``row``; of more than `MOST_CURVE_ROWS`, every second one is dropped."""
        if self._number % self._every == 0:
            self._kept.append(row)
        self._number, self._last = self._number + 1, row
        if len(self._kept) > MOST_CURVE_ROWS:
            del self._kept[1::2]
            self._every *= 2

    @property
    def rows(self) -> list[Row]:
        """Kept rows and the last row, in order."""
        is_last_kept = not self._number or self._kept[-1] is self._last
        return [*self._kept] if is_last_kept else [*self._kept, self._last]


class EventsWriter:
    """TensorBoard events, each on the disk when `write` returns.

    TensorBoard forgets what an earlier file of the run says of steps after ``steps``.

    TensorBoard's own writers hand over to a thread, which prints a traceback of its own when the
    disk is full.
    """

    def __init__(self, run_dir: Path, steps: int) -> None:
        # TensorBoard reads the files in the order of their names. One second has one file.
        for second in itertools.count(int(time.time())):
            self._path = run_dir / f"events.out.tfevents.{second:010d}.accel_rl"
            with naming(self._path), contextlib.suppress(FileExistsError):
                self._file = self._path.open("xb")
                break
        self._records = RecordWriter(self._file)
        self._append(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if steps:
            start = SessionLog(status=SessionLog.START)
            self._append(Event(wall_time=time.time(), step=steps + 1, session_log=start))

    def write(self, row: Row, steps: int) -> None:
        """Write a scalar for each number in ``row`` that is not NaN; its name is its tag."""
        values = [
            Summary.Value(tag=tag, simple_value=value)
            for tag, value in row.items()
            if not np.isnan(value)
        ]
        self._append(Event(wall_time=time.time(), step=steps, summary=Summary(value=values)))

    def close(self) -> None:
        """Calling it again does nothing."""
        with contextlib.suppress(OSError):  # of what could not be written, which `write` has told
            self._file.close()

    def _append(self, event: Event) -> None:
        with naming(self._path):
            self._records.write(event.SerializeToString())
            self._records.flush()


class MetricsWriter:
    """Rows to ``metrics.csv``, TensorBoard and other trackers, where they stand over steps.

    The tags begin ``episode/``, ``learner/``, ``time/`` and ``run/``; `write_evaluation` writes
    ``evaluation.csv`` and ``evaluation/``. Of an earlier part of the run, rows up to ``steps``
    stay. ``evaluated_steps``: likewise for evaluations. ``send`` gets the same rows and their
    steps; without ``tensorboard`` there are no events.
    """

    def __init__(
        self,
        run_dir: Path,
        steps: int = 0,
        evaluated_steps: int = 0,
        *,
        tensorboard: bool = True,
        send: Callable[[Row, int], None] | None = None,
    ) -> None:
        self.metrics = CsvTable(run_dir / "metrics.csv", steps)
        self._evaluations = CsvTable(run_dir / "evaluation.csv", evaluated_steps)
        self._events = EventsWriter(run_dir, steps) if tensorboard else None
        self._send = send

    def write(self, row: Row) -> None:
        """Write ``row``, which has a column ``steps``, in its order of columns."""
        self.metrics.write(row)
        tagged = {tag(name): value for name, value in row.items() if name != "steps"}
        self._hand_on(tagged, int(row["steps"]))

    def write_evaluation(self, row: Row) -> None:
        """Write the result of an evaluation."""
        self._evaluations.write(row)
        tagged = {f"evaluation/{name}": row[name] for name in row if name != "steps"}
        self._hand_on(tagged, int(row["steps"]))

    def _hand_on(self, tagged: Row, steps: int) -> None:
        if self._events is not None:
            self._events.write(tagged, steps)
        if self._send is not None:
            self._send(tagged, steps)

    def close(self) -> None:
        """Calling it again does nothing."""
        if self._events is not None:
            self._events.close()


def tag(column: str) -> str:
    """Return the name of a column in TensorBoard."""
    if column.startswith("episode"):
        kind = "episode"
    elif column.endswith("_share"):
        kind = "time"
    elif column.endswith(("_seconds", "_per_second")) or column in ("frames", "updates"):
        kind = "run"
    else:
        kind = "learner"
    return f"{kind}/{column}"


def read_rows(path: Path, *needed: str) -> list[dict[str, float]]:
    """Return the rows of a table of metrics, none if there is no file; the run may go on."""
    return list(_rows(path, needed))


def _rows(path: Path, needed: Sequence[str]) -> Iterator[dict[str, float]]:
    try:
        for texts in csv.DictReader(whole_lines(path)):
            if lacking := [name for name in needed if name not in texts]:
                raise ValueError(f"there is no column {lacking[0]} in its first line")
            yield {name: float(text) for name, text in texts.items()}
    except FileNotFoundError:
        return
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except (TypeError, ValueError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
