"""Text on standard output and standard error, where the reader may be gone.

Names and messages of other people's files may hold escape sequences, with which terminals do more
than print. All output goes through `LastingConsole` or `complain`, which print these plainly. This
module loads no packages, so that help and errors are printed at once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shlex
import sys
from collections.abc import Sequence
from typing import IO

from accel_rl.system.signing import UntrustedError

GONE = (errno.EPIPE, errno.EIO)
"""errors of a write after a pipe's reader (``| tee``, ``| head``) or the terminal is gone"""
FULL = (errno.ENOSPC, errno.EDQUOT)
"""errors of a write into a file on a full disk, which do not end a run that writes elsewhere"""


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""characters that print nothing: all control characters but tab and newline, and those that turn
the direction of writing"""


def printable(text: str) -> str:
    """Return ``text`` with control characters written as in Python: ``\\x1b``."""
    return _CONTROL.sub(lambda found: ascii(found.group())[1:-1], text)


def complain(text: str) -> None:
    """Print ``text`` on standard error."""
    with contextlib.suppress(OSError):  # nobody may be there to read it
        print(printable(text), file=sys.stderr, flush=True)


def tell_error(error: Exception | str, arguments: Sequence[str] = ()) -> None:
    """Print the message of what ended this program.

    If it refused code, the command follows that allows it: ``arguments`` with ``trust=true``.
    """
    complain(f"error: {error}")
    if isinstance(error, UntrustedError) and arguments:
        # With -P nothing in the current directory comes before what is installed.
        complain(shlex.join(["python", "-P", "-m", "accel_rl", *arguments, "trust=true"]))


def discard(file: IO[str]) -> None:
    """Discard all later output to ``file``, and to standard output and error if they are the same
    file, such as what Python itself flushes in the end."""
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
    """Print ``text``, or as much of it as the reader takes; return the exit code."""
    try:
        print(text, flush=True)
    except BrokenPipeError:  # as in `--help | head`
        discard(sys.stdout)
    except OSError as error:
        discard(sys.stdout)
        print(f"error: standard output cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    return 0
