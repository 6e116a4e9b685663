"""Ctrl-C, SIGTERM and SIGHUP: the first asks a run to stop cleanly, the second ends it at once,
where nobody else has started the run."""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from types import FrameType, TracebackType
from typing import Self

_LOGGER = logging.getLogger(__name__)

HANGUP: signal.Signals | None = getattr(signal, "SIGHUP", None)
"""comes when the terminal is closed or lost; Windows has none"""
SIGNALS = (signal.SIGINT, signal.SIGTERM, *([] if HANGUP is None else [HANGUP]))
OWN_CODE = 1000
"""larger than any signal's number"""
STOP_SECONDS = 600.0
"""for a process to save and end, once asked to; then it is killed. A replay may be large"""


def stop_signals() -> list[signal.Signals]:
    """Return the `SIGNALS` that stop this process. SIGHUP does not if it is ignored (nohup)."""
    return [x for x in SIGNALS if x != HANGUP or signal.getsignal(x) is not signal.SIG_IGN]


@contextmanager
def keeping_signals() -> Iterator[None]:
    """Block `SIGNALS` within. A process started here inherits that, until it takes them.

    Batch systems send them to all processes of a run. A process without handlers yet would die of
    them, and the run would fail instead of ending in order.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


LAUNCHER_VARIABLE = "ACCEL_RL_LAUNCHER"
"""environment variable in which our own launcher, or a sweep, says its process id"""


def is_started() -> bool:
    """Return whether a launcher, a sweep or torchrun started this process, and would kill it.

    Slurm and systemd signal all processes of a job, and the launcher passes the signal on, so a
    second signal does not ask for an end at once.
    """
    return LAUNCHER_VARIABLE in os.environ or "TORCHELASTIC_RUN_ID" in os.environ


_noted: list[int] = []
"""Ctrl-C that came within `noting_interrupts` and has ended nothing yet"""


@contextmanager
def noting_interrupts() -> Iterator[list[int]]:
    """Note each Ctrl-C within, for a `StopRequest` that is made later. Yield the list of them.

    KeyboardInterrupt may be raised where it is swallowed: while a library in C loads, or in a
    destructor. If Ctrl-C is ignored or has a handler of the host's, nothing changes.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield []
        return
    _noted.clear()
    signal.signal(signal.SIGINT, _note)
    try:
        yield _noted
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _noted.clear()


def _note(number: int, frame: FrameType | None) -> None:
    _noted.append(number)
    raise KeyboardInterrupt


class Interrupted(BaseException):
    """A signal came where nothing is worth saving yet; not an `Exception`, like Ctrl-C itself."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number)
        self.signal = number


class StopRequest:
    """Turns signals into a request that the training loop reads between two iterations.

    Until `hold` is called, a signal raises `Interrupted` wherever the program is, since there is
    nothing to save while simulators start. Workers end when this process does. A second signal ends
    the process, after a call of ``before_abort`` to restore the terminal. SIGHUP is never a second
    signal, since the shell and the kernel may both send it; if `is_started`, no signal is. After
    ``max_minutes`` the program itself asks. Outside the main thread, where Python allows no
    handlers, signals stay the host's.
    """

    def __init__(
        self,
        before_abort: Callable[[], None] = lambda: None,
        max_minutes: float | None = None,
    ) -> None:
        self._before_abort = before_abort
        self._deadline = math.inf if max_minutes is None else monotonic() + 60 * max_minutes
        self._looked_at = -math.inf
        self.received: signal.Signals | None = None
        self.is_own = False
        self._is_held = False
        self._before: dict[signal.Signals, object] = {}

    def hold(self) -> None:
        """Note later signals in ``received``, which the loop now reads."""
        self._is_held = True

    def is_asked(self) -> bool:
        """Return whether a stop was asked for, or time is over."""
        now = monotonic()
        if now >= self._deadline:
            self.ask()
        if now >= self._looked_at + 1:
            self._looked_at = now
            self._take_back()
        return self.received is not None

    @property
    def code(self) -> int:
        """The number for other learners: 0, a signal's number, or `OWN_CODE`."""
        if not self.is_asked():
            return 0
        return OWN_CODE if self.is_own else int(self.received or 0)

    def follow(self, code: int) -> None:
        """Stop as another learner does, whose ``code`` this is."""
        if code == OWN_CODE:
            self.ask()
        elif code and self.received is None:
            self.received = signal.Signals(code)

    def ask(self) -> None:
        """Ask for a stop from within the program, which sets ``is_own``."""
        if self.received is None:
            self.received, self.is_own = signal.SIGTERM, True

    def __enter__(self) -> Self:
        if _noted:
            raise KeyboardInterrupt
        if threading.current_thread() is threading.main_thread():
            self._before = {
                number: signal.signal(number, self._handle) for number in stop_signals()
            }
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, before in self._before.items():
            if before is not None:  # None: it was written in C
                signal.signal(number, before)  # type: ignore[arg-type]

    def _take_back(self) -> None:
        """Take back handlers of signals that other code, such as an environment, has changed."""
        for number in self._before:
            if signal.getsignal(number) != self._handle:
                signal.signal(number, self._handle)
                _LOGGER.warning("the handler of %s was changed, and is taken back", number.name)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and not self.is_own:
            if number == HANGUP or is_started():
                return
            self._before_abort()
            # Dies of the signal, so that a shell sees it; the kernel takes the workers along.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.received, self.is_own = signal.Signals(number), False
        if not self._is_held:
            raise Interrupted(self.received)
