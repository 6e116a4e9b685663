"""Measurements in processes of their own: what is measured there, and how it is asked for.

A child is a script of the benchmarks run with one JSON argument, its specification. It prepares
itself, prints one line of JSON that says what it uses, and then answers each number of seconds on
its standard input with one line: the steps it took, the seconds they needed, and what else it has
counted. Where a peer runs a loop of its own, `serve_within` does the same out of it. A child stays
alive between measurements, idle, so that many measurements can be interleaved without starting
anything anew, and ends with its standard input. Standard library only: peers may run it with
another interpreter.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from types import TracebackType
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
START_TIMEOUT_SECONDS = 300.0
WARM_UP_SECONDS = 0.3
SETTLE_SECONDS = 0.05  # steps still under way when a measurement ended are done by then

Advance = Callable[[], int]  # takes a few milliseconds' worth of steps and returns how many


class ChildError(RuntimeError):
    """A child ended or did not answer; the message holds the end of what it printed."""


def serve(
    advance: Advance,
    settings: dict[str, Any],
    take_numbers: Callable[[], dict[str, float]] = dict,
    goes_on: Callable[[bool], bool] = bool,
) -> None:
    """The child's side: announces ``settings``, then measures ``advance`` when asked to.

    ``take_numbers``: what else was counted since it was last called. ``goes_on``: whether to take
    more steps, from whether there is time; children that go in step agree on it here.
    """
    _reply({"settings": settings})
    for line in sys.stdin:
        _run(advance, WARM_UP_SECONDS, goes_on)
        take_numbers()
        steps, seconds = _run(advance, float(line), goes_on)
        _reply({"steps": steps, "seconds": seconds, "numbers": take_numbers()})


def serve_calls(call: Callable[[], tuple[int, dict[str, float]]], settings: dict[str, Any]) -> None:
    """The same where one call is a measurement, however long it takes: its steps and numbers."""
    _reply({"settings": settings})
    for _ in sys.stdin:
        began = time.perf_counter()
        steps, numbers = call()
        _reply({"steps": steps, "seconds": time.perf_counter() - began, "numbers": numbers})


def serve_within(settings: dict[str, Any]) -> Callable[[int], None]:
    """The same for a peer that runs a loop of its own: what it calls with the steps so far.

    The first call announces ``settings``. When nothing is measured the loop waits in the call. The
    process ends in the call once no more is asked.
    """
    answers = _answer_within(settings)
    next(answers)
    return answers.send


def _answer_within(settings: dict[str, Any]) -> Generator[None, int, None]:
    steps = yield
    _reply({"settings": settings})
    for line in sys.stdin:
        for duration in (WARM_UP_SECONDS, float(line)):
            first, start = steps, time.perf_counter()
            while (elapsed := time.perf_counter() - start) < duration:
                steps = yield
        _reply({"steps": steps - first, "seconds": elapsed})
    os._exit(0)  # the asking side ends what is left of its process group


def versions(*packages: str) -> dict[str, str]:
    """Of those that are installed."""
    found = {}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def read_spec() -> dict[str, Any]:
    """The child's first act: its specification, and the CPUs named there become its own.

    Standard output is kept for the answers, since emulators print to it. An error that nobody
    catches ends the process at once, without waiting for what it has started.
    """
    global _answers
    sys.excepthook = _end
    _answers = os.dup(1)
    os.dup2(2, 1)
    spec: dict[str, Any] = json.loads(sys.argv[1])
    os.sched_setaffinity(0, spec["cpus"])
    if spec.get("malloc") == "tuned":
        from accel_rl.training.torch_setup import tune_malloc

        # Peers have both settings of our own training, which sets this before torch is loaded.
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")
        tune_malloc()
    return spec


_answers = 1


def _end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.__excepthook__(kind, error, trace)
    sys.stderr.flush()
    os._exit(1)


def _reply(answer: dict[str, Any]) -> None:
    os.write(_answers, (json.dumps(answer) + "\n").encode())


def _run(advance: Advance, seconds: float, goes_on: Callable[[bool], bool]) -> tuple[int, float]:
    steps = 0
    start = time.perf_counter()
    while goes_on((elapsed := time.perf_counter() - start) < seconds):
        steps += advance()
    return steps, elapsed


class Child:
    """The asking side of one child."""

    def __init__(
        self,
        script: str,
        spec: dict[str, Any],
        python: str = sys.executable,
        checkout: Path = CHECKOUT,
    ) -> None:
        self._errors = tempfile.TemporaryFile()
        paths = [str(checkout), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        if "torch_threads" in spec:
            environment["OMP_NUM_THREADS"] = str(spec["torch_threads"])
        self._process = subprocess.Popen(
            [python, str(checkout / "benchmarks" / script), json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
            env=environment,
            process_group=0,  # so that what it started can be ended with it
        )
        self._buffer = b""
        self.numbers: dict[str, float] = {}

    def wait_until_ready(self) -> dict[str, Any]:
        """What the child says of itself, once it is ready to measure."""
        return dict(self._read(START_TIMEOUT_SECONDS)["settings"])

    def ask(self, seconds: float) -> None:
        """Starts a measurement of ``seconds``; `answer` has its result."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is dead: `answer` tells why
            self._process.stdin.write(f"{seconds}\n".encode())

    def answer(self, seconds: float) -> float:
        """Steps a second of the measurement asked for; ``numbers`` has what else was counted."""
        result = self._read(10 * seconds + 60)
        self.numbers = result.get("numbers", {})
        return float(result["steps"] / result["seconds"])

    def leave(self) -> None:
        """Tells the child to end, which takes it a while; `close` waits."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def close(self, patience: float = 10.0) -> None:
        """Ends the child, which has ``patience`` seconds to do so; a second call does nothing."""
        assert self._process.stdout is not None
        if self._errors.closed:
            return
        self.leave()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        self._kill(min(patience, 2.0))
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def _read(self, timeout: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        deadline = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            chunk = b""
            if left > 0 and select.select([output], [], [], left)[0]:
                chunk = os.read(output, 1 << 16)
            if not chunk:
                raise ChildError(f"{self._reason(timeout)}\n{self._last_words()}")
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        return dict(json.loads(line))

    def _reason(self, timeout: float) -> str:
        try:
            return f"ended with status {self._process.wait(2)}"
        except subprocess.TimeoutExpired:
            self._kill()
            return f"gave no answer in {timeout:.0f} s"

    def _kill(self, seconds: float = 2.0) -> None:
        """Ends the child's process group, what it has left behind with it; those that clean up
        after others, as Python's resource tracker, get the time to."""
        group = self._process.pid
        for number, patience in ((signal.SIGTERM, seconds), (signal.SIGKILL, 0.0)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, number)
                os.killpg(group, signal.SIGCONT)
                deadline = time.monotonic() + patience
                while time.monotonic() < deadline:
                    self._process.poll()
                    os.killpg(group, 0)
                    time.sleep(0.02)
        for shared in Path("/dev/shm").glob(f"torch_{group}_*"):  # named so by torch
            shared.unlink(missing_ok=True)

    def _last_words(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-2000:].strip()
