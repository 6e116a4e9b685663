"""Checkpoints: what a run has learned so far, in files that are whole or absent.

``checkpoints/steps_000001000000.pt`` is a ``torch.save`` of tensors and plain values, so that
loading one never executes a pickle: ``torch.load(path, weights_only=True)``. It is a dict:

- ``format``: `FORMAT`.
- ``counts``: steps, frames, updates, episodes, training_seconds.
- ``learner``: ``parameters`` and whatever state the update rule has, by name, on the CPU.
- ``algorithm``: what it has besides, such as PPO's shuffling.
- ``num_learners``: of the run; ``parts``: by rank, after how many steps the others saved what is
  their own, if they did, in ``checkpoints/part_<steps>_learner_<rank>.pt``.
- ``recorder``, ``sampler``, ``evaluator``, ``torch_rng``: what is needed besides to go on as
  if the run had never stopped. ``sampler``: a `SamplerState` as bytes (uint8 ``[n]``), or None
  where the simulators were gone when it was written. ``recurrent_state``: ``[B, S]``, what the
  policy remembers of their environments, or None.

``checkpoints/best.pt``, where a run evaluates, is the policy of its best evaluation: ``format``,
``counts`` (steps), ``score``, and of ``learner`` the ``parameters``. No run goes on from it.
"""

from __future__ import annotations

import io
import math
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch

from accel_rl.parallel import FlatParameters
from accel_rl.training.files import write_whole

FORMAT = 3
"""raised when what a checkpoint holds changes"""
PART = ("algorithm", "sampler", "recurrent_state", "torch_rng")
"""what each learner has of its own"""


def checkpoint_path(run_dir: Path, steps: int) -> Path:
    """Where the checkpoint after ``steps`` steps lies; names sort by steps."""
    return run_dir / "checkpoints" / f"steps_{steps:012d}.pt"


def save_checkpoint(run_dir: Path, steps: int, state: dict[str, Any], *, num_kept: int) -> Path:
    """Writes a checkpoint; deletes all but the last ``num_kept``, and parts older than theirs.

    ``state`` holds tensors and plain values only. A CUDA tensor is read here, which waits for
    the device.

    Raises:
        OSError: it could not be written; the earlier ones are untouched.
    """
    path = checkpoint_path(run_dir, steps)
    _write(path, state)
    for old in list_checkpoints(run_dir)[:-num_kept]:
        old.unlink()
    _delete_old_parts(run_dir)
    return path


def best_path(run_dir: Path) -> Path:
    """Where the policy of the best evaluation lies."""
    return run_dir / "checkpoints" / "best.pt"


def save_if_best(run_dir: Path, steps: int, score: float, parameters: FlatParameters) -> None:
    """Keeps ``parameters`` where ``score`` is above that of what was kept before, if any.

    ``score``: of an evaluation after ``steps`` steps; with NaN nothing is kept, nor are parameters
    that are not finite. What cannot be read is replaced.

    Raises:
        OSError: it could not be written; what was there before is untouched.
    """
    path, before = best_path(run_dir), -math.inf
    with suppress(OSError, ValueError):
        before = load_checkpoint(path, mapped=True).get("score", before)
    if score > before and bool(parameters.parameter.isfinite().all()):
        policy = {"learner": {"parameters": parameters.to_named(parameters.parameter)}}
        _write(path, {"counts": {"steps": steps}, "score": score, **policy})


def part_path(run_dir: Path, steps: int, rank: int) -> Path:
    """Where the learner ``rank`` saves its part of a checkpoint, after ``steps`` steps of all."""
    return run_dir / "checkpoints" / f"part_{steps:012d}_learner_{rank}.pt"


def save_part(run_dir: Path, steps: int, rank: int, state: dict[str, Any], num_kept: int) -> None:
    """Writes what one learner but the first adds to a checkpoint, and deletes older parts of it.

    It keeps those that a checkpoint names, and the last ``num_kept`` and one more: the first
    learner may not be done with this one yet.

    Raises:
        OSError: it could not be written.
    """
    path = part_path(run_dir, steps, rank)
    _write(path, state)
    old = set(sorted(path.parent.glob(f"part_*_learner_{rank}.pt"))[: -num_kept - 1])
    named = _named_parts(run_dir) if old else None
    if named is not None:
        for part in old - named:
            part.unlink(missing_ok=True)  # the first learner deletes some, too


def _delete_old_parts(run_dir: Path) -> None:
    """Deletes what no checkpoint needs, also of learners that the run has no more."""
    parts = list((run_dir / "checkpoints").glob("part_*.pt"))
    named = _named_parts(run_dir) if parts else None
    if named is None:
        return
    steps = list_checkpoints(run_dir)[0].stem.removeprefix("steps_")
    oldest = min((part.name for part in named), default=f"part_{steps}")
    for part in parts:
        if part.name < oldest:
            part.unlink(missing_ok=True)


def _named_parts(run_dir: Path) -> set[Path] | None:
    """The parts that checkpoints name; None where one cannot be read: it may name any."""
    named: set[Path] = set()
    for path in list_checkpoints(run_dir):
        try:
            parts = load_checkpoint(path, mapped=True).get("parts") or {}
        except FileNotFoundError:  # deleted just now, by the first learner
            continue
        except (OSError, ValueError):
            return None
        named |= {part_path(run_dir, steps, rank) for rank, steps in parts.items()}
    return named


def check_folder(run_dir: Path) -> None:
    """Raise a ValueError if the folder of checkpoints is a link: they may be another run's."""
    folder = run_dir / "checkpoints"
    if folder.is_symlink():
        raise ValueError(
            f"{folder} is a link, and a run deletes old checkpoints in no other folder than its "
            f"own; move the folder that the link leads to in place of the link"
        )


def _write(path: Path, state: dict[str, Any]) -> None:
    check_folder(path.parent.parent)
    path.parent.mkdir(exist_ok=True)
    write_whole(path, partial(_save, {"format": FORMAT, **state}), durable=True)


def _save(state: dict[str, Any], file: BinaryIO) -> None:
    """Straight into the file: a saved replay may be as large as half of the memory."""
    writer = _Writer(file)
    try:
        torch.save(state, cast(BinaryIO, writer))
    except RuntimeError:
        if writer.error is None:
            raise
        raise writer.error from None  # of which torch makes a failure of its own file format


class _Writer(io.RawIOBase):
    """Writes to ``file``, and keeps the ``error`` with which that failed."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            raise


def list_checkpoints(run_dir: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted((run_dir / "checkpoints").glob("steps_*.pt"))


def load_checkpoint(path: Path, *, mapped: bool = False) -> dict[str, Any]:
    """What `save_checkpoint` wrote, its tensors on the CPU.

    ``mapped``: they are the file, so that a large replay takes no memory beside the copy that is
    made of it. While they are there the file may be replaced or deleted, but not overwritten.

    Raises:
        ValueError: the file is not a checkpoint of this version of accel_rl.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except OSError:
        raise
    except Exception as error:
        raise ValueError(
            f"{path} is not a checkpoint, or a broken one ({type(error).__name__})"
        ) from error
    if not isinstance(state, dict) or "format" not in state:
        raise ValueError(f"{path} is not a checkpoint of accel_rl")
    if state["format"] != FORMAT:
        raise ValueError(
            f"{path} is a checkpoint of another version of accel_rl (format {state['format']}, "
            f"this one reads {FORMAT}); use the version that the run's train.log names"
        )
    return state
