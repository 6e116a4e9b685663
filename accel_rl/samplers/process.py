"""One worker process as its pool sees it: started, watched, ended."""

from __future__ import annotations

import io
import json
import os
import pickle
import signal
import struct
import subprocess
import sys
from contextlib import suppress

import cloudpickle

from accel_rl.samplers.errors import WorkerError
from accel_rl.samplers.package_path import add_package_path
from accel_rl.samplers.shared import Descriptors, Setup
from accel_rl.samplers.stepping import EnvStates
from accel_rl.topology import format_cpus

_THREAD_LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class WorkerProcess:
    """A running worker. ``pidfd`` becomes readable when it has ended.

    A direct child started from a fresh interpreter: the caller's main module is not imported in it,
    and its exit status is the real one.
    """

    def __init__(self, setup: Setup, memory: int, wake: int, started: int) -> None:
        try:
            pickled = cloudpickle.dumps(setup)
        except Exception as error:
            raise ValueError(
                f"the environment factory cannot be sent to worker processes: {error}; make it of "
                f"functions and plain values, and open files and devices inside it"
            ) from error
        self.setup = setup
        self._descriptors: list[int] = []  # those of this process
        theirs = [os.memfd_create("accel_rl_setup", os.MFD_CLOEXEC)]
        try:
            _write_setup(theirs[0], pickled)
            report, report_write = os.pipe()
            theirs.append(report_write)
            self._descriptors.append(report)
            # A life pipe of its own: who is told of its end is a property of the open file.
            life_read, life = os.pipe()
            theirs.append(life_read)
            self._descriptors.append(life)
            self._states = os.memfd_create("accel_rl_states", os.MFD_CLOEXEC)
            self._descriptors.append(self._states)
            self._report = report
            inherited = Descriptors(
                theirs[0], report_write, life_read, memory, wake, started, self._states
            )
            countdown = [each for each in setup.countdown.values() if each is not None]
            self._process = subprocess.Popen(
                # -P: no module of the working directory may hide one of the standard library.
                [sys.executable, "-P", "-m", "accel_rl.samplers.worker", *map(str, inherited)],
                stdin=subprocess.DEVNULL,
                env=_environment(),
                pass_fds=[*inherited, *countdown, *setup.ready.values()],
            )
            self.pid = self._process.pid
            self.pidfd = os.pidfd_open(self.pid)
            self._descriptors.append(self.pidfd)
        except BaseException:
            # Ctrl-C, too, most of which come while the process is started: then there is only its
            # life pipe to end it.
            if hasattr(self, "_process"):
                self.close(0.0)
            self._close_descriptors()
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)

    def describe(self) -> str:
        """Its number, pid, CPUs and environments, for messages."""
        setup = self.setup
        columns = [r for r in setup.spec.columns[setup.worker] if r]
        environments = ", ".join(
            f"{r.start}-{r.stop - 1}" if len(r) > 1 else str(r.start) for r in columns
        )
        cpus = f"CPU {format_cpus(setup.cpus)}, " if setup.cpus else ""
        return f"worker {setup.worker} (pid {self.pid}, {cpus}environments {environments})"

    def take_states(self) -> EnvStates:
        """What the worker has left of its environments' states."""
        states: EnvStates = {}
        size = os.fstat(self._states).st_size
        with io.BytesIO(os.pread(self._states, size, 0)) as file:
            while file.tell() < size:
                states |= pickle.load(file)
        os.ftruncate(self._states, 0)
        return states

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()

    def failure(self) -> WorkerError:
        """Why this worker, which has ended, did so. Waits for its exit status."""
        status = self._process.wait()
        os.set_blocking(self._report, False)
        try:
            report = os.read(self._report, 1 << 16)
        except BlockingIOError:
            report = b""
        if report:
            said = json.loads(report)
            kind = "" if said["kind"] == "SamplerError" else f"{said['kind']}: "
            message = f"{self.describe()}: {kind}{said['message']}"
            return WorkerError(message, said["traceback"])
        if status >= 0:
            return WorkerError(f"{self.describe()} ended with exit status {status}")
        if status == -signal.SIGKILL:
            return WorkerError(
                f"{self.describe()} was killed by SIGKILL; if it was the kernel, for want of "
                f"memory, use fewer environments"
            )
        name = signal.strsignal(-status) or "no name"
        return WorkerError(
            f"{self.describe()} was ended by signal {-status} ({name}): its simulator crashed, or "
            f"somebody ended it"
        )

    def close(self, timeout_seconds: float) -> None:
        """Wait for its end, kill it if that takes too long, and let its descriptors go.

        Calling it again does nothing.
        """
        try:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_seconds)
        finally:  # also where Ctrl-C cuts the wait short
            self.kill()
            self._process.wait()
            self._close_descriptors()

    def _close_descriptors(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())


def _write_setup(descriptor: int, pickled: bytes) -> None:
    """Leave what the worker reads at its start; a file, since a pipe would make this wait."""
    # What else is in it, Python ignores.
    search_path = json.dumps([each for each in sys.path if isinstance(each, str)]).encode()
    with open(descriptor, "wb", closefd=False) as file:
        file.write(struct.pack("<q", len(search_path)) + search_path + pickled)
    os.lseek(descriptor, 0, os.SEEK_SET)


def _environment() -> dict[str, str]:
    """The worker's variables. It takes what is put in front of PYTHONPATH out again."""
    environment = dict(os.environ)
    for name in _THREAD_LIMITS:
        environment.setdefault(name, "1")
    add_package_path(environment)
    return environment
