"""Single keys that people type while a run goes on, without Enter.

They are read only in the foreground of a terminal. The terminal's settings come back with `close`,
and while the process is suspended by Ctrl-Z.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from time import monotonic
from types import FrameType
from typing import Any

if sys.platform != "win32":
    import termios

    _ERRORS: tuple[type[Exception], ...] = (OSError, termios.error)

KEYS_VARIABLE = "ACCEL_RL_KEYS"
"""environment variable with which the launcher tells the first learner that it reads keys"""
_SECONDS = 0.1
"""between two looks at the terminal"""


class Keys:
    """Reads keys from a terminal that does not echo them meanwhile; Ctrl-C stays Ctrl-C.

    Args:
        descriptor: The terminal. If it is none, or another process group has its foreground, there
            are no keys.

    Attributes:
        are_read: Whether the terminal is set so that keys are read.
    """

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        self._before: list[Any] | None = None
        self._next = 0.0
        self._suspend_before: Any = None
        self._take()
        is_main = threading.current_thread() is threading.main_thread()
        if self.are_read and is_main:
            self._suspend_before = signal.signal(signal.SIGTSTP, self._suspend)

    @property
    def are_read(self) -> bool:
        return self._before is not None

    def read(self) -> str:
        """Return what was typed since the last call; it never waits."""
        if monotonic() < self._next:
            return ""
        self._next = monotonic() + _SECONDS
        self._take()  # a shell that resumes a process has the terminal set as it likes
        if not self.are_read or not self._is_in_foreground():
            return ""
        with contextlib.suppress(*_ERRORS):
            return os.read(self._descriptor, 64).decode(errors="ignore")
        return ""

    def close(self) -> None:
        """Give the terminal its settings back. Calling it again does nothing."""
        self._give_back()
        if self._suspend_before is not None:
            signal.signal(signal.SIGTSTP, self._suspend_before)
            self._suspend_before = None

    def _is_in_foreground(self) -> bool:
        """Whether this process may set the terminal; in the background that would suspend it."""
        if sys.platform == "win32":
            return False
        with contextlib.suppress(OSError):
            return os.tcgetpgrp(self._descriptor) == os.getpgrp()
        return False

    def _take(self) -> None:
        if not self._is_in_foreground():
            return
        with contextlib.suppress(*_ERRORS):
            settings = termios.tcgetattr(self._descriptor)
            if not settings[3] & termios.ICANON:
                return
            self._before = [*settings[:6], list(settings[6])]
            settings[3] &= ~(termios.ICANON | termios.ECHO)
            settings[6][termios.VMIN] = settings[6][termios.VTIME] = 0  # reading never waits
            termios.tcsetattr(self._descriptor, termios.TCSANOW, settings)

    def _give_back(self) -> None:
        if self._before is not None and self._is_in_foreground():
            with contextlib.suppress(*_ERRORS):
                termios.tcsetattr(self._descriptor, termios.TCSANOW, self._before)
        self._before = None

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        self._give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)  # until somebody resumes this process
        signal.signal(signal.SIGTSTP, self._suspend)
