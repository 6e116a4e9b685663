"""Reading the files of a run, which may come from somebody else."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; a FIFO or a device in its place is not waited for.

    Raises:
        OSError: the file cannot be opened, or it is not a regular file.
    """
    file = open(path, "rb", opener=_open_now)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return file


def read_text(path: Path) -> str:
    """Read the text of a regular file, in UTF-8.

    Raises:
        OSError: the file cannot be read, or it is not a regular file.
        UnicodeDecodeError: the file is not text.
    """
    with open_regular(path) as file:
        return file.read().decode()


def _open_now(name: str, flags: int) -> int:
    return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))
