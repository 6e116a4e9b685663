"""Files that are there whole or not at all, and are never written or read through a link.

What is being written lies beside it as ``.NAME.<16 hexadecimal digits>.part``.
"""

from __future__ import annotations

import errno
import gc
import logging
import os
import re
import secrets
import stat
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_LOGGER = logging.getLogger(__name__)

MOST_TABLE_BYTES = 1 << 30
"""of a table of metrics that is read"""

_UNFINISHED = re.compile(r"\..+\.[0-9a-f]{16}\.part", re.DOTALL)


class WriteError(OSError):
    """A file could not be written; ``filename`` is its path."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Raise an OSError within as a `WriteError` of ``path``: Python's own may not name the file."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno == errno.ELOOP:  # what O_NOFOLLOW says of a link
            reason = "it is a link, and nothing is written through one"
        raise WriteError(error.errno, reason, str(path)) from error


def no_link(path: str, flags: int) -> int:
    """Open ``path`` unless it is a link: an ``opener`` for `open`."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)  # Windows has none


def explain(error: WriteError, choice: str) -> str:
    """Return a sentence about a failed write; ``choice`` is another way out."""
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    mend = "free some space there" if is_full else "change that"
    return f"cannot write {error.filename}: {error.strerror}; {mend}, or {choice}"


def write_whole(
    path: Path,
    data: bytes | memoryview | Callable[[BinaryIO], object],
    *,
    durable: bool = False,
) -> None:
    """Write ``data`` to ``path`` so that a reader sees all of it or what was there before.

    It goes to a new file of a random name beside ``path``, which is then moved, so several
    processes may write at once, and a link at ``path`` is replaced, not followed.

    Args:
        data: its content, or a function that writes it to a file.
        durable: it is on the disk before the move, so that this holds over a power cut too.

    Raises:
        OSError: it could not be written; ``path`` is as it was and nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    with naming(path):
        file = open(temporary, "xb", opener=no_link)
        try:
            with file:
                if callable(data):
                    data(file)
                else:
                    file.write(data)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            temporary.replace(path)
            if durable:
                _sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def delete_unfinished(folder: Path) -> None:
    """Delete what `write_whole` has left in ``folder`` where its process was killed.

    Nobody may be writing there. Only regular files are deleted. What cannot be deleted stays.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if _UNFINISHED.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with suppress(OSError):
                    os.unlink(entry)


def append_whole(path: Path, data: bytes) -> None:
    """Append ``data`` to the file at ``path``, which is made if it is missing.

    Raises:
        OSError: it could not be written (the disk is full, it is a link); the file is as before.
    """
    with naming(path), open(path, "ab", buffering=0, opener=no_link) as file:
        size, left = file.tell(), memoryview(data)
        try:
            while left:
                left = left[file.write(left) :]
        except OSError:
            with suppress(OSError):  # of what is no file
                file.truncate(size)
            raise


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # Windows opens no folders
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def whole_lines(path: Path) -> list[str]:
    """Return the lines of a text file that end with a newline.

    A disk that was full, or a writer that is just at work, leaves a last one without.
    """
    text = read_text(path)
    return text[: text.rfind("\n") + 1].splitlines()


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; a FIFO or a device in its place is not waited for."""
    no_wait = getattr(os, "O_NONBLOCK", 0)
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | no_wait))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return file


def read_text(path: Path) -> str:
    """Read the text of a regular file, in UTF-8."""
    return read_bytes(path, MOST_TABLE_BYTES).decode()


def read_bytes(path: Path, most: int) -> bytes:
    """Read a regular file of at most ``most`` bytes; a larger one would fill the memory."""
    with open_regular(path) as file:
        is_larger = os.fstat(file.fileno()).st_size > most
        data = b"" if is_larger else file.read(most + 1)  # some files of the system say 0
    if is_larger or len(data) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most >> 20} MiB", str(path))
    return data


def draw_or_warn(draw: Callable[[], object], path: Path, *, is_last: bool = False) -> bool:
    """Call ``draw``, which draws the picture ``path``; log a warning and return False if it fails.

    Matplotlib is to be imported in ``draw``, since its import may fail, too. A picture leaves
    nothing in memory: its objects refer to each other, and in a run that makes few others Python
    would look for them only after dozens of pictures. The search takes as long as half a picture,
    so the last one of a run, for which ``is_last`` is true, goes without.
    """
    try:
        draw()
        if not is_last:
            gc.collect()
    except Exception as error:
        _LOGGER.warning("%s was not drawn: %s: %s", path, type(error).__name__, error)
        _LOGGER.info("%s", traceback.format_exc())
        return False
    return True
