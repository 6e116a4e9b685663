"""Attacks by another user of the same machine, tried as user 65534 (nobody); only root can."""

from __future__ import annotations

import encodings.idna  # noqa: F401  # of names of hosts; nobody may not be able to load it
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

NOBODY = 65534
NUM_DESCRIPTORS = 58
"""of each process that `open_descriptors_of` tries"""
_OPEN = """
for pid; do for i in $(seq 3 60); do true <> /proc/$pid/fd/$i && echo $pid/fd/$i; done; done
"""


def open_descriptors_of(pids: Sequence[int]) -> tuple[list[str], int]:
    """Try to open descriptors of processes as nobody; return what opened, and how many did not."""
    ended = subprocess.run(
        ["/bin/sh", "-c", _OPEN, "sh", *map(str, pids)],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
    )
    return ended.stdout.split(), ended.stderr.count("Permission denied")


def make_readable(key: Path) -> None:
    key.chmod(0o644)


def make_short(key: Path) -> None:
    key.write_bytes(b"short")


def make_link(key: Path) -> None:
    key.unlink()
    elsewhere = key.with_name("elsewhere")
    elsewhere.write_bytes(bytes(32))
    key.symlink_to(elsewhere)


def make_pipe(key: Path) -> None:
    key.unlink()
    os.mkfifo(key, 0o600)


SPOILED_KEYS: dict[str, Callable[[Path], None]] = {
    "readable by others": make_readable,
    "short": make_short,
    "a link": make_link,
    "a pipe": make_pipe,
}
"""what others may know or have replaced; a user's key that is so is not used"""
