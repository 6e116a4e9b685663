"""What runs leave behind, read so that two of them can be compared."""

import csv
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from accel_rl.runs.checkpoint import list_checkpoints, load_checkpoint
from accel_rl.system.states import decode_state


def table(path: Path) -> list[dict[str, str]]:
    """A table without the columns that depend on time."""
    with path.open() as file:
        return [
            {
                name: value
                for name, value in row.items()
                if not name.endswith(("_seconds", "_share", "_per_second"))
            }
            for row in csv.DictReader(file)
        ]


def assert_same(one: Any, other: Any) -> None:
    """Equal to the bit, but for times."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one.keys() - {"training_seconds"}:
            assert_same(one[name], other[name])
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, other)
    else:
        assert one == other


def last_checkpoint(run_dir: Path) -> dict[str, Any]:
    """Its sampler decoded, without the count of how often it was started, and without times."""
    saved = load_checkpoint(list_checkpoints(run_dir)[-1])
    saved["sampler"] = decode_state(saved["sampler"].numpy().tobytes())
    states = saved["sampler"].pop("environments")
    saved["sampler"]["environments"] = {b: decode_state(state) for b, state in enumerate(states)}
    del saved["sampler"]["generation"]
    return saved


def forget_last_checkpoint(run_dir: Path, copy: Path) -> Path:
    """A copy of a run as one killed after its last checkpoint but one would have left it."""
    shutil.copytree(run_dir, copy)
    list_checkpoints(copy)[-1].unlink()
    return copy


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a table as they are written."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def numbers_of(path: Path) -> list[dict[str, float]]:
    """The rows of a table of numbers."""
    return [{name: float(text) for name, text in row.items()} for row in rows_of(path)]


def parameters_of(run_dir: Path) -> dict[str, torch.Tensor]:
    """Of the network, by name, in the last checkpoint."""
    return load_checkpoint(list_checkpoints(run_dir)[-1])["learner"]["parameters"]
