"""The console that runs and tools print on, which outlives whoever reads it."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import IO, Any

from rich.console import Console

_GONE = (errno.EPIPE, errno.EIO)
"""what writing fails with once a pipe's reader (``| tee``, ``| head``) or a terminal is gone"""
_FULL = (errno.ENOSPC, errno.EDQUOT)
"""likewise where the output goes into a file: no reason to end what has a directory of its own"""


class LastingConsole(Console):
    """Falls silent when nobody can read it any more, where rich ends the program or fails."""

    def on_broken_pipe(self) -> None:
        self._fall_silent()

    def __exit__(self, exc_type: Any, exc_value: Any, traceback: Any) -> None:
        try:
            super().__exit__(exc_type, exc_value, traceback)  # every way of printing comes here
        except OSError as error:
            if error.errno in _FULL:
                with contextlib.suppress(OSError):
                    print(f"output is cut off here: {error.strerror}", file=sys.stderr)
            elif error.errno not in _GONE:
                raise
            self._fall_silent()

    def _fall_silent(self) -> None:
        self.quiet = True
        discard(self.file)


def discard(file: IO[str]) -> None:
    """Lets go nowhere what is still written to ``file``, or to the same place by standard output
    and error, such as what Python itself flushes in the end."""
    descriptors = [file.fileno()]
    for standard in (1, 2):
        with contextlib.suppress(OSError):  # it may be closed
            if os.path.sameopenfile(standard, file.fileno()):
                descriptors.append(standard)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in descriptors:
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def print_text(text: str) -> int:
    """Prints ``text``, all or as much as is wanted; returns the exit code."""
    try:
        print(text, flush=True)
    except BrokenPipeError:  # as in `--help | head`
        discard(sys.stdout)
    except OSError as error:
        discard(sys.stdout)
        print(f"error: standard output cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    return 0
