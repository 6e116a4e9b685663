"""One trial of chaos: processes started, one of them hit, and what must hold afterwards."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import warm
from ways import (
    ANSWER_SECONDS,
    HOLD_SECONDS,
    LEARNER_SECONDS,
    NAMED_SECONDS,
    ROOT,
    SHORT_HOLD_SECONDS,
    TRAIN,
    Expected,
    Phase,
    Way,
    expected,
    is_role,
)

MARK = "ACCEL_RL_CHAOS"
"""environment variable by which all processes of a trial are found, whoever their parent is"""
START_SECONDS = 90.0
HANG_SECONDS = 120.0
"""after which a run that should have ended, or gone on, counts as hung"""
OTHERS_SECONDS = 3.0
"""for shared memory of another program, whose process has ended, to be gone"""
LEFT_SECONDS = 15.0
"""for processes to be gone after the end of the first one: learners save before they end"""
_UNFINISHED = re.compile(r"\..*\.part")


@dataclass
class Result:
    """What came of a trial. ``failures`` is empty if all held. ``missed``: nothing was hit."""

    way: str
    target: str
    signal: str
    phase: str
    seed: int
    failures: list[str] = field(default_factory=list)
    missed: bool = False
    code: int | None = None
    named_seconds: float | None = None
    resumed: bool = False
    seconds: float = 0.0


class Processes:
    """All processes of a trial, and what they print."""

    def __init__(self, way: Way, folder: Path, mark: str, *, is_warm: bool) -> None:
        self.mark = f"{MARK}={mark}"
        self._output = folder / "output"
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        environment = os.environ | {
            "ACCEL_RL_TIMEOUT_SECONDS": str(LEARNER_SECONDS),
            MARK: mark,
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(self.temporary),
            "PYTHONFAULTHANDLER": "1",  # so that SIGABRT shows where a process hangs
            "PYTHONPATH": str(ROOT),
        }
        start = warm.Popen if is_warm else subprocess.Popen
        with open(self._output, "wb") as file:
            self.root: subprocess.Popen[Any] = start(
                [sys.executable, *way.program],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def output(self) -> str:
        return self._output.read_text(errors="replace") if self._output.exists() else ""

    def living(self) -> Iterator[tuple[int, str, str]]:
        """Yield the id, command line and variables (a line each) of each process that lives."""
        root = self.root.pid if self.root.poll() is None else None
        for name in os.listdir("/proc"):
            if name.isdecimal():
                with contextlib.suppress(OSError):
                    environment = Path("/proc", name, "environ").read_bytes().decode("latin1")
                    lines = environment.replace("\0", "\n")
                    # Of a fork the kernel tells the variables of its parent.
                    if int(name) == root or self.mark in lines.split("\n"):
                        command = Path("/proc", name, "cmdline").read_bytes().decode("latin1")
                        yield int(name), command.replace("\0", " "), lines

    def find(self, target: str, rng: random.Random) -> int | None:
        """The id of a process with this role; None if there is none yet."""
        if target in ("root", "all"):
            return self.root.pid if self.root.poll() is None else None
        pids = sorted(pid for pid, *rest in self.living() if is_role(target, *rest))
        return rng.choice(pids) if pids else None

    def have_ended(self) -> bool:
        return self.root.poll() is not None

    def end(self) -> None:
        """Kill what is left."""
        while left := [pid for pid, *_ in self.living()]:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.root.poll()
            time.sleep(0.05)
        self.root.wait()


def send(pids: list[int], number: int) -> None:
    """Signal processes, of which some may be gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def wait_until(condition: Callable[[], bool], seconds: float, pause: float = 0.02) -> bool:
    """Return whether ``condition`` came to hold in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True


class Trial:
    """Hits one process of a run in ``folder``; ``run`` says what came of it."""

    def __init__(self, way: Way, result: Result, folder: Path) -> None:
        self.way, self.result, self.folder = way, result, folder
        self.run_dir = folder / "run"
        self.rng = random.Random(f"{result.seed} {result.way} {result.target} {result.signal}")
        if result.phase not in way.phases:
            result.phase = self.rng.choice(way.phases)
        self.phase: Phase = result.phase  # type: ignore[assignment]

    def fail(self, what: str) -> None:
        self.result.failures.append(what)

    def run(self) -> None:
        """Start, hit, wait, and look at what is left."""
        shared_before = set(os.listdir("/dev/shm"))
        began = time.monotonic()
        # Forks of a process that has loaded torch, but for those whose start is hit, and for
        # learners and runs of sweeps, which are found by the variables that they were started with.
        is_command = self.way.program[:2] == TRAIN and self.way.resumes == "here"
        is_warm = is_command and self.phase != "start"
        mark = f"{os.getpid()}-{self.folder.name}"
        self.processes = Processes(self.way, self.folder, mark, is_warm=is_warm)
        try:
            pid = self._wait_for_moment()
            if pid is None:
                return
            wanted = expected(
                self.result.way,
                self.result.target,
                self.result.signal,  # type: ignore[arg-type]
                self.phase,
                pid,
            )
            self._hit(pid, wanted)
            self._look_at_end(wanted)
        finally:
            self._look_at_rest(shared_before)
            self.result.seconds = round(time.monotonic() - began, 1)

    def rows(self) -> int:
        """Rows of metrics that are there, a measure of how far the run is."""
        count = 0
        for path in self.run_dir.rglob("metrics.csv"):
            with contextlib.suppress(OSError):
                count += path.read_bytes().count(b"\n")
        return count

    def said(self) -> str:
        """All that people could read so far."""
        logs = [self.processes.output()]
        for path in [*self.run_dir.rglob("train*.log"), *self.run_dir.rglob("output/*.txt")]:
            with contextlib.suppress(OSError):
                logs.append(path.read_text(errors="replace"))
        return "\n".join(logs)

    def _wait_for_moment(self) -> int | None:
        """The process to hit, at the time to hit it; None if there was none."""
        processes, target = self.processes, self.result.target
        found: list[int] = []

        def is_there() -> bool:
            pid = processes.find(target, self.rng)
            found[:] = [] if pid is None else [pid]
            return bool(found) or processes.have_ended()

        has_begun = wait_until(lambda: self._has_come() or processes.have_ended(), START_SECONDS)
        if not has_begun or processes.have_ended() or not wait_until(is_there, START_SECONDS):
            self.result.missed = processes.have_ended() and processes.root.returncode == 0
            if not self.result.missed:
                self.fail(f"did not come to the moment: {processes.output()[-500:]}")
            return None
        late = {"start": 0.6, "steps": 0.3, "checkpoint": 0.003}
        if target in ("root", "all"):
            late["start"] = 6.0 if self.result.way in ("evaluate", "sweep") else 4.0
        time.sleep(self.rng.uniform(0, late[self.phase]))
        if not found or processes.have_ended():
            self.result.missed = processes.root.returncode in (None, 0)
            if not self.result.missed:
                self.fail(f"ended before it was hit: {processes.output()[-500:]}")
            return None
        return found[0]

    def _has_come(self) -> bool:
        """Whether the phase of the trial has begun."""
        if self.phase == "start":
            return True
        if self.rows() < (2 if self.phase == "steps" else 3):
            return False
        if self.phase == "steps":
            return True
        deadline = time.monotonic() + 0.5
        folder = self.run_dir / "checkpoints"
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                if any(_UNFINISHED.fullmatch(name) for name in os.listdir(folder)):
                    return True
            time.sleep(0.0005)
        return False

    def _hit(self, pid: int, wanted: Expected) -> None:
        """Send the signals, and note how long it takes until the casualty is named."""
        name, target = self.result.signal, self.result.target
        pids = [pid]
        if target == "all":
            pids = [each for each, *_ in self.processes.living()]
        limit = 0.0
        if name == "STOP":
            send(pids, signal.SIGSTOP)
            limit = HOLD_SECONDS.get(target, SHORT_HOLD_SECONDS)
        elif name == "TERM+KILL":
            send([self.processes.root.pid], signal.SIGTERM)
            time.sleep(self.rng.uniform(0, 0.4))
            send(pids, signal.SIGKILL)
        else:
            send(pids, {"INT2": signal.SIGINT}.get(name) or getattr(signal, f"SIG{name}"))
            if name == "INT2":
                time.sleep(self.rng.uniform(0.02, 0.5))
                send(pids, signal.SIGINT)
        hit = time.monotonic()
        before = self.rows()
        if limit:
            ends_at = hit + limit
            hit += ANSWER_SECONDS.get(target, 0.0)  # it is not late before
            self._wait_for_name(wanted, hit, limit)
            time.sleep(max(0.0, ends_at - time.monotonic()))
            send(pids, signal.SIGCONT)
        self._wait_for_name(wanted, hit, HANG_SECONDS)
        if wanted.named and self.result.named_seconds is None:
            self.fail(f"not named ({wanted.named})")
        elif (self.result.named_seconds or 0.0) > NAMED_SECONDS:
            self.fail(f"named after {self.result.named_seconds} s")
        self._go_on = before

    def _wait_for_name(self, wanted: Expected, hit: float, seconds: float) -> None:
        named = wanted.named
        if named is None or self.result.named_seconds is not None:
            return
        is_named = re.compile(named)

        def is_over() -> bool:
            return bool(is_named.search(self.said())) or self.processes.have_ended()

        wait_until(is_over, seconds)
        if is_named.search(self.said()):
            self.result.named_seconds = round(max(0.0, time.monotonic() - hit), 2)

    def _look_at_end(self, wanted: Expected) -> None:
        processes, before = self.processes, self._go_on
        goes_on = False

        def is_decided() -> bool:
            nonlocal goes_on
            if wanted.outcome != "ends":
                goes_on = self.rows() >= before + 3
            return goes_on or processes.have_ended()

        if not wait_until(is_decided, HANG_SECONDS):
            return self._tell_hang()
        if wanted.outcome == "goes on" and not goes_on and processes.root.returncode != 0:
            return self.fail(
                f"ended with {processes.root.returncode} in place of going on: "
                f"{processes.output()[-500:]}"
            )
        codes = wanted.codes
        if goes_on:
            send([processes.root.pid], signal.SIGTERM)
            codes = frozenset({143, -15, 0})
            codes |= {1} if "torch.distributed.run" in self.way.program else set()
            if not wait_until(processes.have_ended, HANG_SECONDS):
                return self._tell_hang()
        elif wanted.outcome != "ends":
            codes |= {0}
        self.result.code = processes.root.returncode
        if processes.root.returncode not in codes:
            text = processes.output()[-800:]
            self.fail(f"exit code {processes.root.returncode}, not in {sorted(codes)}: {text}")

    def _tell_hang(self) -> None:
        left = [pid for pid, *_ in self.processes.living()]
        send(left, signal.SIGCONT)
        send(left, signal.SIGABRT)
        time.sleep(1)
        self.fail(f"hangs; see {self.folder}/output")

    def _look_at_rest(self, shared_before: set[str]) -> None:
        """Processes, shared memory and temporary files that are left are failures."""
        processes = self.processes
        is_hung = any("hangs" in each or "not come" in each for each in self.result.failures)
        if self.result.missed or is_hung:
            return processes.end()
        if not wait_until(lambda: not any(processes.living()), LEFT_SECONDS):
            left = [f"{pid} {command}" for pid, command, _ in processes.living()]
            send([int(each.split()[0]) for each in left], signal.SIGABRT)
            time.sleep(1)
            self.fail(f"left: {left}")
        processes.end()
        # torchrun leaves the folders of its logs behind when it is ended.
        names = os.listdir(processes.temporary)
        if left_files := [name for name in names if not name.startswith("torchelastic_")]:
            self.fail(f"temporary files left: {left_files}")
        for name in set(os.listdir("/dev/shm")) - shared_before:
            # Another program's may be without a process until its tracker deletes it.
            if not wait_until(partial(_is_open, f"/dev/shm/{name}"), OTHERS_SECONDS):
                self.fail(f"left: /dev/shm/{name}")
        is_killed = "KILL" in self.result.signal
        if not is_killed and (parts := unfinished(self.run_dir)):
            self.fail(f"unfinished files left: {parts}")


def unfinished(folder: Path) -> list[str]:
    """Files of which the writing was cut short."""
    return [str(path) for path in folder.rglob(".*") if _UNFINISHED.fullmatch(path.name)]


def _is_open(path: str) -> bool:
    """Whether a process has this file open or mapped, so that it may be another program's."""
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdecimal() and path in Path("/proc", name, "maps").read_text():
                return True
            for link in os.listdir(f"/proc/{name}/fd") if name.isdecimal() else ():
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{name}/fd/{link}") == path:
                        return True
    return not os.path.exists(path)
