"""Memory that processes share, as an anonymous file, and the descriptors by which they hold it.

The memory has no name that could be left behind or collide with another one, and goes with its last
holder. A child gets it as a descriptor. Another process of the same user opens it as a descriptor
of a process that has it.
"""

from __future__ import annotations

import os
from contextlib import suppress


def create(name: str, num_bytes: int = 0) -> int:
    """Return a descriptor of new memory."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    if num_bytes:
        os.ftruncate(descriptor, num_bytes)
    return descriptor


def open_of(pid: int, descriptor: int, flags: int = os.O_RDWR) -> int:
    """Open the file behind a ``descriptor`` of process ``pid``, and return a descriptor of it."""
    return os.open(f"/proc/{pid}/fd/{descriptor}", flags | os.O_CLOEXEC)


def close_descriptors(descriptors: list[int]) -> None:
    """Close all and empty the list. Each is closed once, even if several threads call this."""
    with suppress(IndexError):
        while True:
            os.close(descriptors.pop())


def round_up(value: int, multiple: int) -> int:
    """Return the smallest multiple that is not below ``value``."""
    return -(-value // multiple) * multiple
