"""Standard input, output and error, without which a process may have been started."""

from __future__ import annotations

import os
import sys


def open_standard_descriptors() -> None:
    """Open /dev/null as standard input, output and error where these are closed.

    Otherwise the next sockets, pipes and shared memory would become descriptors 0 to 2, and
    whatever a program prints would be written into them.
    """
    descriptor = os.open(os.devnull, os.O_RDWR)
    while descriptor <= 2:
        os.set_inheritable(descriptor, True)
        descriptor = os.open(os.devnull, os.O_RDWR)
    os.close(descriptor)
    for number, (name, mode) in enumerate({"stdin": "r", "stdout": "w", "stderr": "w"}.items()):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))
