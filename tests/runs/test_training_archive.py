"""Damage of a checkpoint's file is noticed."""

import hashlib
import os
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from by_files import flip

from accel_rl.runs import archive
from accel_rl.runs.archive import DamagedError
from accel_rl.runs.checkpoint import load_checkpoint, save_checkpoint


def state() -> dict[str, Any]:
    parameters = {f"layer{n}.weight": torch.arange(300.0) + n for n in range(12)}
    return {
        "counts": {"steps": 7},
        "learner": {"parameters": parameters, "alike": [torch.zeros(500), torch.zeros(500)]},
        "sampler": torch.arange(200, dtype=torch.uint8),
        "recorder": {("loss", "entropy"): torch.ones(2)},
        "empty": torch.zeros(0),
    }


def tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from tensors(each)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return save_checkpoint(tmp_path, 7, state(), num_kept=3)


def assert_noticed_or_without_effect(path: Path) -> bool:
    """Returns whether it was noticed."""
    try:
        found = load_checkpoint(path)
    except DamagedError as error:
        assert str(path) in str(error)
        return True
    pairs = zip(tensors(found), tensors(state()), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert found["counts"] == {"steps": 7}
    return False


def test_flipped_bits_are_noticed_or_without_effect(path) -> None:
    data, draw = path.read_bytes(), random.Random(3)
    noticed = 0
    for _ in range(80):
        path.write_bytes(flip(data, draw.randrange(8 * len(data))))
        noticed += assert_noticed_or_without_effect(path)
    assert noticed > 60


@pytest.mark.nightly
def test_each_flipped_bit_of_the_archives_own_is_noticed_or_without_effect(path) -> None:
    """Headers, names, directory and seal, at which random flips seldom hit."""
    data = path.read_bytes()
    ours = [
        at for at in range(len(data)) if at > len(data) - 2500 or b"PK\3\4" in data[at - 50 : at]
    ]
    for at in ours:
        for bit in range(8):
            path.write_bytes(flip(data, 8 * at + bit))
            assert_noticed_or_without_effect(path)


def test_header_that_points_at_another_tensor_is_noticed(path) -> None:
    """The place of a tensor's data depends on its header, which the directory does not cover."""
    data = path.read_bytes()
    header = data.index(b"archive/data/3") - 30
    size = int.from_bytes(data[header + 28 : header + 30], "little")
    following = data.index(b"archive/data/4") - 30
    further = (size + following - header).to_bytes(2, "little")
    path.write_bytes(data[: header + 28] + further + data[header + 30 :])
    with pytest.raises(DamagedError, match="damaged"):
        load_checkpoint(path)


@pytest.mark.parametrize("share", [0, 0.001, 0.1, 0.5, 0.9, 0.99, 0.9999])
def test_cut_file_is_noticed(share: float, path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(DamagedError, match="damaged"):
        load_checkpoint(path)


@pytest.mark.parametrize("end", [b"\0", b"\0" * 200, b"PK\5\6" + bytes(18)])
def test_file_with_something_behind_it_is_noticed(end: bytes, path) -> None:
    path.write_bytes(path.read_bytes() + end)
    with pytest.raises(DamagedError, match="damaged"):
        load_checkpoint(path)


def test_file_without_its_seal_is_damaged(path) -> None:
    path.write_bytes(path.read_bytes()[:-48])
    with pytest.raises(DamagedError, match="damaged"):
        load_checkpoint(path)


def test_entries_that_are_not_asked_for_are_not_read(path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole.replace(bytes(range(200)), bytes(200)))
    assert load_checkpoint(path, ["counts", "learner"]).keys() == {
        "format",
        "counts",
        "learner",
    }
    with pytest.raises(DamagedError, match="damaged"):
        load_checkpoint(path, ["sampler"])


def test_tensor_that_begins_like_the_archives_directory_is_saved(tmp_path) -> None:
    begin = torch.tensor(list(b"PK\1\2 and more"), dtype=torch.uint8)
    path = save_checkpoint(tmp_path, 1, {"begin": begin}, num_kept=1)
    assert torch.equal(load_checkpoint(path)["begin"], begin)


def test_checkpoint_that_is_a_fifo_is_refused_at_once(tmp_path) -> None:
    os.mkfifo(tmp_path / "fifo.pt")
    with pytest.raises(OSError, match="not a regular file"):
        load_checkpoint(tmp_path / "fifo.pt")


@pytest.mark.parametrize("size", [0, 7, 8, 4095, 4096, 5000, 2 * 4096, 513 * 4096 + 9])
def test_digest_of_memory_is_that_of_the_sums_of_its_rows_and_columns(size: int) -> None:
    data = random.Random(size).randbytes(size)
    expected = hashlib.blake2b(digest_size=16)
    rows = [struct.unpack("<512Q", data[i : i + 4096]) for i in range(0, size - 4095, 4096)]
    for start in range(0, len(rows), 512):
        block = rows[start : start + 512]
        for lines in (block, zip(*block, strict=True)):
            for line in lines:
                expected.update((sum(line) % 2**64).to_bytes(8, "little"))
    expected.update(data[4096 * len(rows) :])
    memory = np.frombuffer(data, np.uint8)
    assert archive.memory_digest(memory) == expected.digest()


def test_two_changes_that_make_up_for_each_other_in_a_row_are_noticed() -> None:
    memory = np.zeros(4 * 4096, np.uint8)
    whole = archive.memory_digest(memory)
    memory[8], memory[16] = 1, 0
    one = archive.memory_digest(memory)
    memory[8], memory[16] = 0, 1
    assert len({whole, one, archive.memory_digest(memory)}) == 3
    memory[16], memory[4096 + 16] = 0, 1  # in its column
    assert archive.memory_digest(memory) not in (whole, one)


def test_large_tensor_is_checked_in_chunks(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(archive, "_CHUNK_BYTES", 1000)
    large = torch.arange(2500)
    path = save_checkpoint(tmp_path, 1, {"large": large}, num_kept=1)
    assert torch.equal(load_checkpoint(path)["large"], large)
    data = path.read_bytes()
    assert data.count(b"\x33\x08\0\0") == 1
    path.write_bytes(data.replace(b"\x33\x08\0\0", b"\x33\x09\0\0"))
    with pytest.raises(DamagedError, match="damaged"):
        load_checkpoint(path)
