"""Damage of a checkpoint's file is noticed."""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from by_files import flip

from accel_rl.runs.checkpoint import DamagedError, load_checkpoint, save_checkpoint


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
    assert noticed > 40


@pytest.mark.nightly
def test_flipped_bit_in_each_byte_of_the_archives_own_is_noticed_or_without_effect(path) -> None:
    """Headers, names and directory, at which random flips seldom hit."""
    data = path.read_bytes()
    ours = [
        at for at in range(len(data)) if at > len(data) - 2500 or b"PK\3\4" in data[at - 50 : at]
    ]
    for at in ours:
        path.write_bytes(flip(data, 8 * at + at % 8))
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


def test_checkpoint_that_is_a_fifo_is_refused_at_once(tmp_path) -> None:
    os.mkfifo(tmp_path / "fifo.pt")
    with pytest.raises(DamagedError, match="not a regular file"):
        load_checkpoint(tmp_path / "fifo.pt")
