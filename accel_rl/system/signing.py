"""The user's secret key, and signatures made with it.

The key tells files that this user's runs wrote from files that came from somebody else. It lies in
the user's state folder, ``$XDG_STATE_HOME/accel_rl/key`` (``~/.local/state/accel_rl/key`` if the
variable is not set), and only its owner can read it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

KEY_BYTES = 32


class UntrustedError(ValueError):
    """A file of somebody else's names code. The command with ``trust=true`` would run that."""


def key_path() -> Path:
    """Return where the user's key lies."""
    state = os.environ.get("XDG_STATE_HOME", "")
    # The XDG specification has relative paths ignored.
    folder = Path(state) if os.path.isabs(state) else Path("~/.local/state").expanduser()
    return folder / "accel_rl" / "key"


def user_key() -> bytes | None:
    """Return the user's key, which is made at the first call.

    Returns:
        32 random bytes, the same for each program of this user on this machine. None if the state
        folder cannot be written or the key in it is not this user's alone.
    """
    try:
        path = key_path()
        if not path.exists():
            _make(path)
        return _read(path)
    except (OSError, RuntimeError):  # RuntimeError: this user has no home directory
        return None


def sign(key: bytes, data: bytes) -> str:
    """Return the signature of ``data``: HMAC-SHA256, in hexadecimal digits."""
    return hmac.new(key, data, hashlib.sha256).hexdigest()


def is_signed(key: bytes, signature: str, data: bytes) -> bool:
    """Return whether ``signature`` is what `sign` makes of ``data``."""
    return hmac.compare_digest(sign(key, data).encode(), signature.encode("utf-8", "replace"))


def _make(path: Path) -> None:
    """Write a new key to ``path``, whole or not at all; a key that is there stays."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished = path.with_name(f".key.{secrets.token_hex(8)}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _flags("O_NOFOLLOW", "O_CLOEXEC", "O_BINARY")
    descriptor = os.open(unfinished, flags, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
        try:
            os.link(unfinished, path)
        except FileExistsError:  # another program of this user was first
            pass
        except OSError:  # a file system where no file has two names
            if not os.path.lexists(path):
                unfinished.rename(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _read(path: Path) -> bytes | None:
    flags = os.O_RDONLY | _flags("O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "O_BINARY")
    descriptor = os.open(path, flags)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        # Windows has no such modes; there the folders of a user are private by themselves.
        is_own = not hasattr(os, "getuid") or (
            status.st_uid == os.getuid() and not status.st_mode & 0o077
        )
        if not (stat.S_ISREG(status.st_mode) and is_own):
            return None
        key = file.read(KEY_BYTES + 1)
    return key if len(key) == KEY_BYTES else None


def _flags(*names: str) -> int:
    return sum(getattr(os, name, 0) for name in names)
