"""One worker process as its pool sees it: started, watched, ended; and what the system allows."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
from contextlib import suppress
from time import monotonic, sleep
from typing import Any

import psutil

from accel_rl.envs.base import EnvFactory
from accel_rl.envs.reach import Request
from accel_rl.samplers.base import SamplerError, WorkerError
from accel_rl.samplers.shared import TELL_PLACE, Descriptors, Setup, dumps
from accel_rl.system import shared_memory
from accel_rl.system.functions import place_in_dump
from accel_rl.system.processes import add_package_path, disown_in_forks
from accel_rl.system.stopping import keeping_signals
from accel_rl.system.topology import format_cpus

_TELL_SECONDS = 0.5
"""for a worker that hangs to write where; one that was stopped does not"""
_REPORT = '{"message": '
"""what begins a worker's report; a place that it was asked for may come before"""
KILL_SECONDS = 10.0
"""for a killed process to end, which the kernel does at once unless a device or file hangs"""
_WORKER_DESCRIPTORS, _GROUP_DESCRIPTORS = 6, 2  # open files of each here, at most
_SERIAL = (
    "SerialSampler (num_workers=0 on the command line, where algo is not ga3c) or "
    "VectorEnv(num_workers=0)"
)
_NO_PYTHON = (
    f"sys.executable is {{!r}}, and must be a Python that has accel_rl; in a program that embeds "
    f"Python, set it to one, or use {_SERIAL}"
)
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)
"""errors for want of files, processes or memory"""
_THREAD_LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

_LOGGER = logging.getLogger(__name__)


def pickle_request(request: Request) -> bytes:
    """Return the bytes of a request to workers."""
    try:
        pickled = dumps(request)
    except Exception as error:  # of anybody's __reduce__
        raise TypeError(f"an argument cannot be sent to another process: {error}") from error
    return pickled


class WorkerProcess:
    """A running worker. ``pidfd`` becomes readable when it has ended.

    A direct child started from a fresh interpreter: the caller's main module is not imported in it,
    and its exit status is the real one. It leads a process group, to which the programs that its
    environments start belong: they are killed with it. It is put into ``processes``, by its number.
    """

    _status_is_lost = False

    def __init__(
        self,
        setup: Setup,
        memory: int,
        factory: int,
        wake: int,
        started: int,
        processes: dict[int, WorkerProcess],
    ) -> None:
        self.setup = setup
        self._descriptors: list[int] = []  # those of this process
        disown_in_forks(self)
        theirs = [shared_memory.create("accel_rl_setup")]
        try:
            _write_setup(theirs[0], dumps(setup))
            self._report = shared_memory.create("accel_rl_report")
            self._descriptors.append(self._report)
            # A life pipe of its own: who is told of its end is a property of the open file.
            life_read, life = os.pipe()
            theirs.append(life_read)
            self._descriptors.append(life)
            self._states = shared_memory.create("accel_rl_states")
            self._descriptors.append(self._states)
            inherited = Descriptors(
                theirs[0], self._report, life_read, memory, factory, wake, started, self._states
            )
            countdown = [each for each in setup.countdown.values() if each is not None]
            self._process = _start(inherited, [*inherited, *countdown, *setup.ready.values()])
            self.pid = self._process.pid
            self.pidfd = os.pidfd_open(self.pid)
            self._descriptors.append(self.pidfd)
            processes[setup.worker] = self  # here, where Ctrl-C does not lose it
        except BaseException:
            # Ctrl-C, too, most of which come while the process is started: then there is only its
            # life pipe to end it.
            if hasattr(self, "_process"):
                self._process.kill()
                self._process.wait(KILL_SECONDS)
            self.free()
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)

    def describe(self) -> str:
        """Return its number, pid, CPUs and environments, for messages."""
        setup = self.setup
        columns = [each.columns for each in setup.spec.slices]
        environments = ", ".join(
            f"{r.start}-{r.stop - 1}" if len(r) > 1 else str(r.start) for r in columns
        )
        cpus = f"CPU {format_cpus(setup.cpus)}, " if setup.cpus else ""
        return f"worker {setup.worker} (pid {self.pid}, {cpus}environments {environments})"

    def take(self, begin: int = 0) -> dict[int, Any]:
        """Return what the worker has left, behind ``begin`` bytes, by environment, and clear it."""
        left = os.pread(self._states, os.fstat(self._states).st_size, 0)[begin:]
        found: dict[int, Any] = {}
        with io.BytesIO(left) as file:
            while file.tell() < len(left):
                found |= pickle.load(file)
        os.ftruncate(self._states, 0)
        return found

    def leave_request(self, request: bytes) -> None:
        """Leave the ``request`` that the worker carries out at the next order to `CALL`."""
        os.ftruncate(self._states, 0)
        os.pwrite(self._states, request, 0)

    def has_ended(self, timeout_seconds: float) -> bool:
        """Whether it ends within this time.

        Programs that its environments have started, and that their ``close`` has left, are then
        killed.
        """
        if self._process.returncode is None:
            poll = select.poll()
            poll.register(self.pidfd, select.POLLIN)
            if not poll.poll(1_000 * timeout_seconds):
                return False
            # Before the next call gives its pid, which is also that of its group, back to the
            # kernel. Somebody else may have waited for all children of this process.
            try:
                if os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOWAIT | os.WNOHANG):
                    self._kill_group()
            except ChildProcessError:
                self._status_is_lost = True
            self._process.wait(KILL_SECONDS)
        return True

    def kill(self) -> None:
        """Kill it, and the programs that its environments have started."""
        if self.has_ended(0.0):  # somebody else may have its pid by now
            return
        programs = []
        with suppress(ProcessLookupError, psutil.Error):
            os.kill(self.pid, signal.SIGSTOP)  # so that it starts none meanwhile
            # Those with a process group of their own, too.
            programs = psutil.Process(self.pid).children(recursive=True)
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._kill_group()
        for program in programs:
            with suppress(psutil.Error):
                program.kill()

    def end(self) -> None:
        """Kill it, if it has not ended, and wait until it is gone; for `KILL_SECONDS` at most.

        If its environments could not be closed, a warning says why.
        """
        self.kill()
        _, mark, report = self._read_report().rpartition(_REPORT)
        if mark and (said := json.loads(mark + report))["kind"] == "CloseError":
            _LOGGER.warning("%s: %s", self.describe(), said["message"])
        if not self.has_ended(KILL_SECONDS):
            _LOGGER.warning(
                "%s was killed and has not ended within %g s: a device or file system that its "
                "environments use hangs; it is left behind",
                self.describe(),
                KILL_SECONDS,
            )

    def tell_late_close(self) -> None:
        """Warn that this worker does not end by itself, which is about to be killed."""
        _LOGGER.warning(
            "%s did not close its environments in time%s, and is killed",
            self.describe(),
            self.place(),
        )

    def failure(self) -> WorkerError:
        """Return the error that says why this worker has ended."""
        self.has_ended(KILL_SECONDS)
        status = self._process.wait(KILL_SECONDS)
        whole = self._read_report()
        _, mark, report = whole.rpartition(_REPORT)
        if mark:
            said = json.loads(mark + report)
            kind = "" if said["kind"] == "SamplerError" else f"{said['kind']}: "
            message = f"{self.describe()}: {kind}{said['message']}"
            return WorkerError(message, said["traceback"])
        if self._status_is_lost:
            return WorkerError(
                f"{self.describe()} has ended{place_in_dump(report)}, and nobody can tell how: "
                f"this program ignores SIGCHLD, or has waited for all its children"
            )
        if status >= 0 and not whole:
            return WorkerError(
                f"{self.describe()} ended with exit status {status} before it ran accel_rl; if it "
                f"has not printed why: {_NO_PYTHON.format(sys.executable)}"
            )
        if status >= 0:
            return WorkerError(
                f"{self.describe()} ended with exit status {status} and without a report: an "
                f"environment ended the process, or closed files that are not its own"
            )
        if status == -signal.SIGKILL:
            return WorkerError(
                f"{self.describe()} was killed by SIGKILL; if it was the kernel, for want of "
                f"memory, use fewer environments"
            )
        name = signal.strsignal(-status) or "no name"
        return WorkerError(
            f"{self.describe()} was ended by signal {-status} ({name})"
            f"{place_in_dump(report)}: its simulator crashed, or somebody ended it"
        )

    def place(self) -> str:
        """Return file, line and function where the worker is, in brackets. Empty if unknown."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, TELL_PLACE)
        deadline, found = monotonic() + _TELL_SECONDS, ""
        while monotonic() < deadline:
            sleep(0.01)
            before, found = found, self._read_report().strip()
            if found and found == before:  # it was not read in the middle
                break
        return place_in_dump(found)

    def free(self) -> None:
        """Close the descriptors. Calling it again, from another thread, too, does nothing."""
        shared_memory.close_descriptors(self._descriptors)

    def disown(self) -> None:
        """In a fork: let go of the worker, which ends when the process that started it does."""
        self.free()
        if hasattr(self, "_process"):
            self._process.returncode = 0  # no child of this process: nothing to wait for

    def _read_report(self) -> str:  # again and again, after Ctrl-C
        """Return the worker's report; a line alone from its first moment on."""
        return os.pread(self._report, 1 << 17, 0).decode(errors="replace")

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def shortage(error: OSError, num_workers: int) -> SamplerError:
    """Return the error to raise ``from error``, which came while workers were created."""
    return SamplerError(
        f"{num_workers} workers cannot be started: {error.strerror}; raise the limits of this "
        f"process (`ulimit -n`, `ulimit -u`), use fewer workers (num_workers, with GA3C num_groups "
        f"or max_agents), or use {_SERIAL}"
    )


def allow_open_files(num_workers: int, num_groups: int) -> None:
    """Raise this process' limit of open files to the number that the workers and groups need."""
    if sys.platform != "linux":
        raise SamplerError(
            f"parallel samplers need Linux, and this is {sys.platform}; use {_SERIAL}"
        )
    import resource  # not on every system

    own = num_workers * _WORKER_DESCRIPTORS + num_groups * _GROUP_DESCRIPTORS
    needed = own + len(os.listdir("/proc/self/fd")) + 64
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def store_factory(factory: EnvFactory) -> int:
    """A file descriptor of memory with the pickled ``factory``, which all workers read."""
    descriptor = shared_memory.create("accel_rl_factory")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(dumps(factory))
    except BaseException as error:
        os.close(descriptor)
        if not isinstance(error, Exception):
            raise
        raise ValueError(
            f"the environment factory cannot be sent to worker processes: {error}; make it of "
            f"functions and plain values, and open files and devices inside it"
        ) from error
    return descriptor


def _start(inherited: Descriptors, kept_open: list[int]) -> subprocess.Popen[bytes]:
    """Start a worker's process, which never takes the signals that it leaves to its server."""
    try:
        with keeping_signals():
            return subprocess.Popen(
                # -P: no module of the working directory may hide one of the standard library.
                [sys.executable, "-P", "-m", "accel_rl.samplers.worker", *map(str, inherited)],
                stdin=subprocess.DEVNULL,
                env=_environment(),
                pass_fds=kept_open,
                process_group=0,
            )
    except (TypeError, OSError) as error:  # None, for one, is no path
        if isinstance(error, OSError) and error.errno in _SHORTAGES:
            raise
        raise SamplerError(
            f"no worker can be started: {_NO_PYTHON.format(sys.executable)}"
        ) from error


def _write_setup(descriptor: int, pickled: bytes) -> None:
    """Leave the start message. It is a file, since a write into a full pipe would wait."""
    # What else is in it, Python ignores.
    search_path = [each for each in sys.path if isinstance(each, str)]
    told = json.dumps([search_path, getattr(sys, "argv", [])]).encode()
    with open(descriptor, "wb", closefd=False) as file:
        file.write(struct.pack("<q", len(told)) + told + pickled)
    os.lseek(descriptor, 0, os.SEEK_SET)


def _environment() -> dict[str, str]:
    """The worker's variables. It takes what is put in front of PYTHONPATH out again."""
    environment = dict(os.environ)
    for name in _THREAD_LIMITS:
        environment.setdefault(name, "1")
    add_package_path(environment)
    return environment
