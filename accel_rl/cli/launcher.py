"""Starts the learners of a run on this machine, and sees to their end.

A learner is this program once more, told by environment variables which one it is, as torchrun
tells it. They find each other through a store in memory that this process holds.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

from accel_rl.envs.make import GIVEN
from accel_rl.parallel.group import TeamError
from accel_rl.parallel.meeting import STORE_VARIABLE, MachineStore
from accel_rl.parallel.team import LOST
from accel_rl.samplers.shared import dumps
from accel_rl.system.console import tell_error
from accel_rl.system.processes import add_package_path
from accel_rl.system.stopping import (
    HANGUP,
    LAUNCHER_VARIABLE,
    SIGNALS,
    STOP_SECONDS,
    is_started,
    keeping_signals,
    stop_signals,
)
from accel_rl.training.metrics import OnRow

_GIVEN_VARIABLE = "ACCEL_RL_GIVEN"
"""names the descriptor of memory with functions that a program has given for its learners"""
FAILURE_SECONDS = 60.0
"""for learners to end after one of them has failed. Shorter than `STOP_SECONDS`, because a learner
that hangs is the likely failure, and there is an earlier checkpoint. Also for the first learner to
save and end, after others that did not were killed"""
_STOPPED = [code for number in SIGNALS for code in (128 + number, -number)]
"""exit codes of learners that were asked to stop, and did; negative where a signal came before
their Python handled it"""


def launch(arguments: Sequence[str], num_learners: int) -> int:
    """Runs ``num_learners`` processes with these arguments to their end; returns the exit code.

    Ctrl-C, SIGTERM and SIGHUP are passed on to them; a second one kills them. When one fails the
    others are stopped.
    """
    store = MachineStore(timeout_seconds=FAILURE_SECONDS)
    learners = []
    with _signals() as received:
        try:
            for rank in range(num_learners):
                learners.append(_start(arguments, rank, num_learners, store))
            return _Watch(learners, store, received).until_end()
        finally:
            for learner in learners:  # none is left but after a failure here
                if learner.poll() is None:
                    learner.kill()
                    learner.wait()


@contextlib.contextmanager
def giving_to_learners(on_row: OnRow | None, *, quiet: bool) -> Iterator[None]:
    """Let learners that start within have the environments and the ``on_row`` of this program."""
    try:
        given = dumps((GIVEN, on_row, quiet))
    except Exception as error:
        raise ValueError(
            f"env or on_row cannot be carried to the processes of several learners: {error}; "
            f"define it without open files, locks and the like, or use one learner"
        ) from error
    with os.fdopen(os.memfd_create("accel_rl_given"), "wb") as memory:
        memory.write(pickle.dumps(sys.path) + given)
        memory.flush()
        os.environ[_GIVEN_VARIABLE] = str(memory.fileno())
        try:
            yield
        finally:
            del os.environ[_GIVEN_VARIABLE]


def take_given() -> tuple[OnRow | None, bool]:
    """Return what `giving_to_learners` had for this learner, and enter its environments."""
    descriptor = os.environ.pop(_GIVEN_VARIABLE, None)
    if descriptor is None:
        return None, False
    with open(f"/proc/self/fd/{descriptor}", "rb") as memory:  # each reads from the beginning
        os.close(int(descriptor))
        sys.path += [each for each in pickle.load(memory) if each not in sys.path]
        environments, on_row, quiet = pickle.load(memory)
    GIVEN.update(environments)
    return on_row, quiet


def _start(
    arguments: Sequence[str], rank: int, num_learners: int, store: MachineStore
) -> subprocess.Popen[bytes]:
    variables = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": num_learners,
        "LOCAL_WORLD_SIZE": num_learners,
        STORE_VARIABLE: store.address,
        LAUNCHER_VARIABLE: os.getpid(),
    }
    local = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "NCCL_DEBUG": "WARN"}
    environment = {**local, **os.environ}
    environment.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # else the store warns in stack traces
    environment |= {name: str(value) for name, value in variables.items()}
    add_package_path(environment)
    # A session of its own, so that Ctrl-C in the terminal comes through this process alone.
    command = [sys.executable, "-P", "-m", "accel_rl", *arguments]
    given = [int(os.environ[_GIVEN_VARIABLE])] if _GIVEN_VARIABLE in os.environ else []
    with keeping_signals():
        return subprocess.Popen(command, env=environment, start_new_session=True, pass_fds=given)


@contextlib.contextmanager
def _signals() -> Iterator[int]:
    """A descriptor that can be read when a signal has come, one byte for each: its number."""
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    is_main = threading.current_thread() is threading.main_thread()  # others hear of no signal
    numbers = stop_signals() if is_main else ()
    before = {number: signal.signal(number, lambda *_: None) for number in numbers}
    wakeup = signal.set_wakeup_fd(writing) if is_main else -1
    try:
        yield reading
    finally:
        if is_main:
            signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            if handler is not None:  # None: it was written in C
                signal.signal(number, handler)
        os.close(reading)
        os.close(writing)


class _Watch:
    """Waits for the ends of the learners, for signals, and for the end of torchrun's agent."""

    def __init__(
        self,
        learners: Sequence[subprocess.Popen[bytes]],
        store: MachineStore,
        received: int,
    ) -> None:
        self._learners = learners
        self._store = store
        self._received = received
        self._running = dict(enumerate(learners))
        self._deadline: float | None = None  # set once they were asked to end
        self._has_failed = self._has_killed = False

    def until_end(self) -> int:
        """The exit code of the whole."""
        watched = [(learner.pid, "") for learner in self._learners]
        if "TORCHELASTIC_RUN_ID" in os.environ:
            watched.append((os.getppid(), "agent"))
        with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
            selector.register(self._received, selectors.EVENT_READ)
            for pid, name in watched:
                descriptor = os.pidfd_open(pid)
                stack.callback(os.close, descriptor)
                selector.register(descriptor, selectors.EVENT_READ, name)
            while self._running:
                self._look(selector)
        if self._has_failed:
            return 1
        codes = [learner.returncode for learner in self._learners]
        return max(code if code >= 0 else 128 - code for code in codes)

    def _look(self, selector: selectors.BaseSelector) -> None:
        timeout = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        for key, _ in selector.select(timeout):
            if key.fd == self._received:
                for number in os.read(self._received, 64):
                    may_come_twice = number == HANGUP or is_started()
                    if self._deadline is None or not may_come_twice:
                        self._stop(number)
                continue
            selector.unregister(key.fd)
            if key.data == "agent":
                self._stop(signal.SIGTERM)
        for rank, learner in list(self._running.items()):
            if learner.poll() is not None:
                del self._running[rank]
                self._after_end(rank, learner)
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._end_late()

    def _after_end(self, rank: int, learner: subprocess.Popen[bytes]) -> None:
        if learner.returncode == 0:
            return
        with contextlib.suppress(TeamError):  # one that was stopped keeps the store
            self._store.set(f"{LOST}/{rank}", "null")  # nobody is to wait for it
        if learner.returncode in _STOPPED:
            if self._deadline is None:  # asked by itself, maybe too early for telling the others
                self._stop(signal.SIGTERM)
            return
        code = learner.returncode
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else ""
        what = f"learner {rank} (pid {learner.pid}) {how or f'ended with exit code {code}'}"
        if self._deadline is not None:
            if learner.returncode < 0 and not self._has_killed:
                tell_error(f"{what} while it was stopping")
            return
        self._has_failed = True
        self._stop(signal.SIGTERM, FAILURE_SECONDS)
        if learner.returncode != 1:  # then it has said why itself
            tell_error(f"{what}; the others are stopped")

    def _stop(self, number: int, seconds: float = STOP_SECONDS) -> None:
        """Asks all to end; asked again, kills them."""
        if self._deadline is not None:
            self._kill(self._running)
            return
        self._deadline = time.monotonic() + seconds
        for learner in self._running.values():
            learner.send_signal(number)

    def _end_late(self) -> None:
        """Kills all but the first, which may only have waited for them; later that one, too."""
        others = {rank: learner for rank, learner in self._running.items() if rank != 0}
        if 0 in self._running and others:
            self._kill(others)
            self._deadline = time.monotonic() + FAILURE_SECONDS
        else:
            self._kill(self._running)

    def _kill(self, learners: Mapping[int, subprocess.Popen[bytes]]) -> None:
        self._has_killed = True
        for rank, learner in learners.items():
            tell_error(f"learner {rank} (pid {learner.pid}) had to be killed")
            learner.kill()
            learner.wait()


def end_with_parent() -> None:
    """From now on the end of the parent process is taken for a SIGTERM, and in the end a SIGKILL.

    Launchers give their learners sessions of their own, so that no signal of a terminal and no end
    of a session reaches them, and a launcher that was killed cannot pass any on.
    """
    parent = os.pidfd_open(os.getppid())
    if os.environ.get(LAUNCHER_VARIABLE, str(os.getppid())) != str(os.getppid()):
        sys.exit(128 + signal.SIGTERM)  # it was gone before we looked

    def watch() -> None:
        select.select([parent], [], [])
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(STOP_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()
