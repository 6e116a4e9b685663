"""Hand a run's numbers to experiment trackers: W&B, MLflow, or a function of the user's own.

Each tracker has a process of its own (`accel_rl.trackers.process`), so a tracker that dies,
hangs or raises cannot stop training. Rows wait in a bounded queue; a thread writes them into the
pipe of the process. If the queue is full, rows are dropped and counted. ``metrics.csv`` always has
all rows. TensorBoard's events are written by `accel_rl.runs.tables`.
"""

from __future__ import annotations

import json
import math
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from accel_rl.system.extras import how_to_install
from accel_rl.system.functions import find_function
from accel_rl.system.processes import add_package_path
from accel_rl.trackers.process import END_SECONDS

TENSORBOARD = "tensorboard"
PACKAGES = ("wandb", "mlflow")
MOST_WAITING = 1_000
"""rows that wait for a tracker; with the default intervals a run writes one every few seconds"""

Say = Callable[[str], None]


def check_trackers(names: Sequence[str]) -> None:
    """Check the option ``tracker``.

    Raises:
        ValueError: a name is unknown or given twice.
    """
    for name in names:
        if name not in (TENSORBOARD, *PACKAGES) and ":" not in name:
            raise ValueError(
                f"tracker={','.join(names)}: {name} is unknown; use tensorboard, wandb, mlflow or "
                f"module:function, several with commas between them, or tracker=[] for none"
            )
        if names.count(name) > 1:
            raise ValueError(f"tracker={','.join(names)}: {name} is there twice; name it once")


def check_installed(names: Sequence[str]) -> None:
    """Check that each tracker can be imported here, before a run begins.

    Raises:
        ValueError: a package or function is missing.
    """
    for name in names:
        if ":" in name:
            find_function("tracker", name)
        elif name in PACKAGES and find_spec(name) is None:
            raise ValueError(
                f"tracker={name} needs {name}, which is not installed: {how_to_install(name)}"
            )


class Trackers:
    """The trackers of one run. Each method returns at once, but `close`.

    Args:
        names: the option ``tracker``; TensorBoard is left out.
        run_dir: directory of the run.
        config: all options, as plain values.
        say: shows one line to people, called at most once for each failure.
    """

    def __init__(
        self, names: Iterable[str], run_dir: Path, config: Mapping[str, Any], say: Say
    ) -> None:
        about = {"run_dir": str(run_dir.absolute()), "config": config, "group": _group(run_dir)}
        self._say, self._notices = say, queue.SimpleQueue[str]()
        self._all: list[_Tracker] = []
        for name in names:
            if name != TENSORBOARD:
                try:
                    self._all.append(_Tracker(name, about, self._notices.put))
                except OSError as error:  # no more processes, say
                    say(f"tracker {name} cannot be started: {error}")

    def log(self, values: Mapping[str, float], steps: int) -> None:
        """Send a row of numbers that were measured after ``steps`` steps. NaN is left out."""
        if self._all:
            row = {name: value for name, value in values.items() if not math.isnan(value)}
            for tracker in self._all:
                tracker.send({"values": row, "steps": steps})
            self._tell()

    def send_files(self, paths: Iterable[Path]) -> None:
        """Send the files that exist, such as the learning curve or a film."""
        found = [str(path.absolute()) for path in paths if path.is_file()]
        for tracker in self._all:
            tracker.send({"files": found})

    def close(self) -> None:
        """Wait up to `END_SECONDS` for all, then end them. Calling it again does nothing."""
        while self._all:
            self._all.pop().close()
        self._tell()

    def _tell(self) -> None:
        while not self._notices.empty():
            self._say(self._notices.get())


def _group(run_dir: Path) -> str | None:
    """The name of the sweep that the run belongs to, or None."""
    sweep = run_dir.absolute().parent.parent
    return sweep.name if (sweep / "sweep.yaml").is_file() else None


class _Tracker:
    """One tracker: its process, its queue, and the thread that empties the queue."""

    def __init__(self, name: str, about: Mapping[str, Any], say: Say) -> None:
        self._name, self._say = name, say
        self._has_failed, self._dropped = False, 0
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue(MOST_WAITING)
        environment = dict(os.environ)
        add_package_path(environment)
        own = "from accel_rl.trackers.process import main; main()"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", own, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C ends training, which then ends the tracker
        )
        assert self._process.stdin is not None and self._process.stderr is not None
        self._pipe, self._errors = self._process.stdin, _LastLines(self._process.stderr)
        self.send(about)
        self._thread = threading.Thread(target=self._write, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def send(self, message: Mapping[str, Any]) -> None:
        try:
            self._queue.put_nowait(dict(message))
        except queue.Full:
            self._dropped += 1

    def _write(self) -> None:
        with suppress(OSError, ValueError):  # the process is gone; `_look` says so
            while (message := self._queue.get()) is not None:
                self._pipe.write(json.dumps(message, default=str).encode() + b"\n")
                self._pipe.flush()
                if self._process.poll() is not None:
                    break
            self._pipe.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        self._look()

    def _look(self) -> None:
        """Say once that the process has failed, if it has."""
        code = self._process.poll()
        if code and not self._has_failed:
            self._has_failed = True
            how = self._errors.last() or f"it ended with {_exit(code)}"
            self._say(f"tracker {self._name} has failed and gets no more rows: {how}")

    def close(self) -> None:
        with suppress(queue.Full):
            self._queue.put(None, timeout=0.1)
        self._thread.join(END_SECONDS)
        if self._process.poll() is None:
            if not self._has_failed:
                self._say(
                    f"tracker {self._name} does not answer and was ended after {END_SECONDS:g} s; "
                    f"metrics.csv has all rows"
                )
            self._has_failed = True
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._look()
        self._thread.join(1.0)
        self._errors.close()
        with suppress(OSError):
            self._pipe.close()
        if self._dropped and not self._has_failed:
            self._say(f"tracker {self._name} was too slow: {self._dropped:,} rows were dropped")


class _LastLines:
    """Reads what a process writes to its error output, and keeps the last line."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe, self._line = pipe, ""
        self._thread = threading.Thread(target=self._read, name="tracker errors", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with suppress(OSError, ValueError):
            for line in self._pipe:
                self._line = line.decode(errors="replace").strip() or self._line

    def last(self) -> str:
        self._thread.join(1.0)
        return self._line

    def close(self) -> None:
        self._thread.join(1.0)
        with suppress(OSError):
            self._pipe.close()


def _exit(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit status {code}"
