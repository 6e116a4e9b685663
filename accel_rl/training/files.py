"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


class WriteError(OSError):
    """A file could not be written; ``filename`` is its path."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """An OSError within is a `WriteError` of ``path``: Python's own may not say where."""
    try:
        yield
    except OSError as error:
        raise WriteError(error.errno, error.strerror or str(error), str(path)) from error


def explain(error: WriteError, choice: str) -> str:
    """What a write has failed with, for people. ``choice``: what else they could do."""
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    mend = "free some space there" if is_full else "change that"
    return f"cannot write {error.filename}: {error.strerror}; {mend}, or {choice}"


def write_whole(
    path: Path,
    data: bytes | memoryview | Callable[[BinaryIO], object],
    *,
    durable: bool = False,
    shared: bool = False,
) -> None:
    """Writes ``data`` to ``path`` so that a reader sees all of it or what was there before.

    ``data`` may be a function that writes it to a file. It goes to a temporary name beside
    ``path``, which is then moved. ``durable``: it is on the disk before the move, so that this
    holds over a power cut too. ``shared``: several processes, also of several machines, may do so
    at once.

    Raises:
        OSError: it could not be written; ``path`` is as it was and nothing is left behind.
    """
    writer = f".{platform.node()}-{os.getpid()}" if shared else ""
    temporary = path.with_name(f".{path.name}{writer}.part")
    with naming(path):
        try:
            with temporary.open("wb") as file:
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


def append_whole(path: Path, data: bytes) -> None:
    """Appends ``data`` to the file at ``path``, which is made where there is none.

    Raises:
        OSError: it could not be written (the disk is full, say); the file is as long as before.
    """
    with naming(path), path.open("ab", buffering=0) as file:
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
    """The lines of a text file that have their newline.

    A disk that was full, or a writer that is just at work, leaves a last one without.
    """
    text = path.read_text()
    return text[: text.rfind("\n") + 1].splitlines()
