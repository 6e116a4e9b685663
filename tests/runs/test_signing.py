"""The user's key: made once, private, and of no use to others."""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import subprocess
import sys
from pathlib import Path

import pytest
from by_others import SPOILED_KEYS

from accel_rl.system.signing import is_signed, key_path, sign, user_key


@pytest.fixture(autouse=True)
def state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def test_user_key_is_made_once_and_for_its_owner_alone() -> None:
    key = user_key()
    assert key is not None and len(key) == 32
    assert user_key() == key
    assert key_path().stat().st_mode & 0o777 == 0o600
    assert os.listdir(key_path().parent) == ["key"]


@pytest.mark.processes
def test_user_key_of_programs_that_start_together_is_the_same() -> None:
    code = "from accel_rl.system.signing import user_key; print(user_key().hex())"
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(4)
    ]
    keys = {process.communicate(timeout=60)[0] for process in started}
    assert len(keys) == 1 and len(keys.pop().strip()) == 64


@pytest.mark.parametrize("kind", SPOILED_KEYS)
def test_user_key_that_others_may_know_is_not_used(kind: str) -> None:
    user_key()
    SPOILED_KEYS[kind](key_path())
    assert user_key() is None


def test_user_key_on_a_file_system_without_hard_links_is_made_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    key = user_key()
    assert key is not None and user_key() == key
    assert os.listdir(key_path().parent) == ["key"]


def test_user_key_without_a_state_folder_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert user_key() is None


def test_is_signed_refuses_another_key_or_other_data() -> None:
    signature = sign(b"k" * 32, b"abc")
    assert signature == hmac.new(b"k" * 32, b"abc", hashlib.sha256).hexdigest()
    assert is_signed(b"k" * 32, signature, b"abc")
    assert not is_signed(b"l" * 32, signature, b"abc")
    assert not is_signed(b"k" * 32, signature, b"abd")
    assert not is_signed(b"k" * 32, "\udcff", b"abc")
