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
    """Those of `SIGNALS` that stop this process: SIGHUP does not where it is ignored (nohup)."""
    return [x for x in SIGNALS if x != HANGUP or signal.getsignal(x) is not signal.SIG_IGN]


@contextmanager
def keeping_signals() -> Iterator[None]:
    """Within, `SIGNALS` wait. In a process that is started here they wait until it takes them.

    Batch systems send them to all processes of a run. One that has no handlers yet would die of
    them, and the run would fail where it should end in order.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


LAUNCHER_VARIABLE = "ACCEL_RL_LAUNCHER"
"""environment variable in which our own launcher, or a sweep, says its process id"""


def is_started() -> bool:
    """Whether a launcher, a sweep or torchrun started this process, and kills it if need be.

    Who stops a whole job at once (Slurm, systemd) signals them and this process, and they pass the
    signal on: a second one does not mean that somebody has lost patience.
    """
    return LAUNCHER_VARIABLE in os.environ or "TORCHELASTIC_RUN_ID" in os.environ


_noted: list[int] = []
"""Ctrl-C that came within `noting_interrupts` and has ended nothing yet"""


@contextmanager
def noting_interrupts() -> Iterator[list[int]]:
    """Within, a `StopRequest` knows of a Ctrl-C that came before it. Yields the list of them.

    KeyboardInterrupt may be raised where it is swallowed: while a library in C loads, or in a
    destructor. Where Ctrl-C has a handler of the host's, or is ignored, all stays as it is.
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

    Until `hold` is called a signal raises `Interrupted` wherever the program is: while simulators
    start there is nothing to save. Workers need no word of it; they end when this process does.
    ``before_abort`` is called when the second one ends it, to put the terminal right. A SIGHUP is
    never the second one, since the shell and the kernel may both send it; where `is_started`, no
    signal is. After ``max_minutes`` the program itself asks.
    Outside the main thread, where Python allows no handlers, signals stay the host's affair.
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
        """From now on the loop reads ``received``."""
        self._is_held = True

    def is_asked(self) -> bool:
        """Whether somebody has asked for it, or time is over."""
        now = monotonic()
        if now >= self._deadline:
            self.ask()
        if now >= self._looked_at + 1:
            self._looked_at = now
            self._take_back()
        return self.received is not None

    @property
    def code(self) -> int:
        """As one learner tells the others: 0, a signal's number, or `OWN_CODE`."""
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
        """As if a signal had come, but from the program itself, as ``is_own`` tells."""
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
            signal.signal(number, before)  # type: ignore[arg-type]

    def _take_back(self) -> None:
        """Handle signals for which code of others, such as an environment, has put a handler."""
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
