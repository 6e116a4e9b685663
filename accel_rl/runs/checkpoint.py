"""Checkpoints: what a run has learned so far, in files that are whole or absent.

``checkpoints/steps_000001000000.pt`` is a ``torch.save`` of tensors and plain values, so that
loading one never executes a pickle: ``torch.load(path, weights_only=True)``. It is a ZIP file,
whose checksums are compared before anything of it is used. It holds a dict:

- ``format``: `FORMAT`.
- ``counts``: `COUNTS`.
- ``learner``: ``parameters`` and whatever state the update rule has, by name, on the CPU.
- ``algorithm``: what it has besides, such as PPO's shuffling.
- ``num_learners``, ``num_envs``: of the run; ``parts``: by rank, after how many steps the others
  saved what is their own, if they did, in ``checkpoints/part_<steps>_learner_<rank>.pt``.
- ``recorder``, ``sampler``, ``evaluator``, ``torch_rng``: what is needed besides to go on as
  if the run had never stopped. ``sampler``: a `SamplerState` as bytes (uint8 ``[n]``), or None
  where the simulators were gone when it was written. ``recurrent_state``: ``[B, S]``, what the
  policy remembers of their environments, or None.

``checkpoints/best.pt``, where a run evaluates, is the policy of its best evaluation: ``format``,
``counts`` (steps), ``score``, and of ``learner`` the ``parameters``. No run goes on from it.
"""

from __future__ import annotations

import math
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from accel_rl.parallel import FlatParameters, TeamError
from accel_rl.runs.files import open_regular, write_whole

FORMAT = 6
"""raised when what a checkpoint holds changes"""
NUM_KEPT = 3
"""checkpoints of a run"""
COUNTS = ("steps", "frames", "updates", "episodes", "training_seconds")
_NAME = re.compile(r"steps_[0-9]{12,}\.pt")
PART = ("algorithm", "sampler", "recurrent_state", "torch_rng")
"""what each learner has of its own"""


class DamagedError(ValueError):
    """A file is damaged, or no checkpoint at all."""


def checkpoint_path(run_dir: Path, steps: int) -> Path:
    """Return the path of the checkpoint after ``steps`` steps; names sort by steps."""
    return run_dir / "checkpoints" / f"steps_{steps:012d}.pt"


def checkpoint_steps(path: Path) -> int:
    """Return the number of steps in a checkpoint's name."""
    return int(path.stem.removeprefix("steps_"))


def save_checkpoint(run_dir: Path, steps: int, state: dict[str, Any]) -> Path:
    """Write a checkpoint; delete all but the last `NUM_KEPT`, and parts older than theirs.

    ``state`` holds tensors and plain values only. A CUDA tensor is read here, which waits for
    the device.

    Raises:
        OSError: it could not be written; the earlier ones are untouched.
    """
    path = checkpoint_path(run_dir, steps)
    write_whole(path, _content(path, state), durable=True)
    for old in list_checkpoints(run_dir)[:-NUM_KEPT]:
        old.unlink()
    _delete_old_parts(run_dir)
    return path


def best_path(run_dir: Path) -> Path:
    """Return the path of the policy of the best evaluation."""
    return run_dir / "checkpoints" / "best.pt"


def save_if_best(
    run_dir: Path,
    steps: int,
    score: float,
    parameters: FlatParameters,
    others: Mapping[str, Any] = {},  # never changed
) -> None:
    """Keep ``parameters`` if ``score`` is higher than that of the policy that was kept before.

    A policy without a score or with parameters that are not finite is not kept. A file that cannot
    be read is replaced.

    Raises:
        OSError: it could not be written; the file before is untouched.
    """
    path, before = best_path(run_dir), -math.inf
    with suppress(Exception):
        before = float(_load(path, is_checked=False).get("score", before))
    if score > before and bool(parameters.parameter.isfinite().all()):
        policy = {"learner": {"parameters": parameters.to_named(parameters.parameter)}}
        state = {"counts": {"steps": steps}, "score": score, **policy, **others}
        write_whole(path, _content(path, state), durable=True)


def part_path(run_dir: Path, steps: int, rank: int) -> Path:
    """Return the path of one learner's part of a checkpoint, after ``steps`` steps of all."""
    return run_dir / "checkpoints" / f"part_{steps:012d}_learner_{rank}.pt"


def save_part(run_dir: Path, steps: int, rank: int, state: dict[str, Any]) -> None:
    """Write the part of a learner that is not the first, and delete its older parts.

    Parts that a checkpoint names stay, and the last `NUM_KEPT` and one more: the first
    learner may not be done with this one yet.
    """
    path = part_path(run_dir, steps, rank)
    write_whole(path, _content(path, state), durable=True)
    old = set(sorted(path.parent.glob(f"part_*_learner_{rank}.pt"))[: -NUM_KEPT - 1])
    named = _named_parts(run_dir) if old else None
    if named is not None:
        for part in old - named:
            part.unlink(missing_ok=True)  # the first learner deletes some, too


def _delete_old_parts(run_dir: Path) -> None:
    """Delete parts that no checkpoint needs, also of learners that the run has no more."""
    parts = list((run_dir / "checkpoints").glob("part_*.pt"))
    named = _named_parts(run_dir) if parts else None
    if named is None:
        return
    steps = checkpoint_steps(list_checkpoints(run_dir)[0])
    oldest = min((part.name for part in named), default=f"part_{steps:012d}")
    for part in parts:
        if part.name < oldest:
            part.unlink(missing_ok=True)


def _named_parts(run_dir: Path) -> set[Path] | None:
    """Return the parts that checkpoints name; None if one cannot be read, which may name any."""
    named: set[Path] = set()
    for path in list_checkpoints(run_dir):
        try:
            parts = _load(path, is_checked=False).get("parts") or {}
        except FileNotFoundError:  # deleted just now, by the first learner
            continue
        except Exception:  # one of the many of `_load`
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


def _content(path: Path, state: dict[str, Any]) -> Callable[[BinaryIO], None]:
    """Return what `write_whole` takes for ``state``; the folder is made if it is missing."""
    check_folder(path.parent.parent)
    path.parent.mkdir(exist_ok=True)

    def save(file: BinaryIO) -> None:
        try:
            torch.save({"format": FORMAT, **state}, file)
        except RuntimeError as error:  # torch makes one of its own file format of a full disk
            raise error.__context__ if isinstance(error.__context__, OSError) else error from None

    return save


def list_checkpoints(run_dir: Path) -> list[Path]:
    """Return the checkpoints of a run, oldest first."""
    folder = run_dir / "checkpoints"
    try:
        names = os.listdir(folder)  # Path.glob takes a folder that it may not read for an empty one
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not os.path.lexists(folder):
            return []
        raise ValueError(f"{folder} cannot be read: {error.strerror}") from error
    return sorted(folder / name for name in names if _NAME.fullmatch(name))


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Return what `save_checkpoint` wrote, its tensors on the CPU, after a check for damage.

    Tensors are the mapped file, so that a large replay takes no memory beside the copy that is
    made of it. While they exist the file may be replaced or deleted, but not overwritten.

    Raises:
        DamagedError: the file cannot be read, is damaged, or is no checkpoint. The message names
            the next one that can be used.
        ValueError: the file is a checkpoint of another version of accel_rl.
    """
    try:
        state = _load(path, is_checked=True)
        found = state["format"]
    except Exception as error:  # the disk's, the ZIP reader's, or one of torch's many
        if isinstance(error, OSError):
            what = f"cannot be read: {error.strerror or error}; make it readable; if that fails,"
        else:
            what = f"is not a checkpoint, or is damaged ({type(error).__name__});"
        raise DamagedError(f"{path} {what} {_remedy(path)}") from error
    if found != FORMAT:
        raise ValueError(
            f"{path} is a checkpoint of another version of accel_rl (format {found}, this one "
            f"reads {FORMAT}); use the version that the run's train.log names"
        )
    return state


def _load(path: Path, *, is_checked: bool) -> dict[str, Any]:
    """Return the content of a file, or raise one of many errors.

    Args:
        is_checked: read every byte, to compare the checksums of all records.
    """
    with open_regular(path) as file:
        with zipfile.ZipFile(file) as archive:
            for record in archive.infolist():
                if record.compress_type != zipfile.ZIP_STORED:  # it may grow a thousandfold
                    raise ValueError(f"{record.filename} is compressed")
            if is_checked and (name := archive.testzip()) is not None:
                raise ValueError(f"{name} was changed")
        name = f"/dev/fd/{file.fileno()}"  # the same file, also where another has taken its name
        with warnings.catch_warnings(action="ignore"):  # of tensors that are refused
            state: dict[str, Any] = torch.load(
                name if os.path.exists(name) else path,
                map_location="cpu",
                weights_only=True,
                mmap=True,
            )
    if type(state) is not dict or not all(map(_is_plain, leaves(state))):
        raise ValueError("it holds something else than plain values and tensors")
    return state


def leaves(state: object) -> Iterator[object]:
    """Yield all keys and values in ``state``, at any depth, that are no containers."""
    seen: set[int] = set()
    todo = [state]
    while todo:
        value = todo.pop()
        if not isinstance(value, dict | list | tuple):
            yield value
        elif id(value) not in seen:  # it may hold itself
            seen.add(id(value))
            todo += [*value, *value.values()] if isinstance(value, dict) else value


def _is_plain(value: object) -> bool:
    """Return whether ``value`` is of a type of checkpoints, and no larger than its memory."""
    if not isinstance(value, Tensor):
        return type(value) in (int, float, str, bytes, bool, type(None))
    if type(value) is not Tensor or value.layout is not torch.strided or value.is_quantized:
        return False
    # Strides of 0 make a terabyte of one number.
    is_whole = value.numel() * value.element_size() <= value.untyped_storage().nbytes()
    return value.device.type == "cpu" and not value.is_nested and is_whole


def _remedy(damaged: Path) -> str:
    """Return what to do about a damaged checkpoint."""
    run_dir = damaged.parent.parent
    if damaged not in (best := best_path(run_dir), *(known := list_checkpoints(run_dir))):
        if damaged.name.startswith("part_"):
            return "delete it, and environments start new episodes"
        return "name a run's directory, or a checkpoint in it"
    for path in (*reversed(known), best):
        with suppress(Exception):
            if path != damaged and _load(path, is_checked=True)["format"] == FORMAT:
                if path == best:
                    return "give checkpoint=best for the policy; no run goes on from that"
                return (
                    f"give checkpoint={checkpoint_steps(path)}, or delete what was saved after "
                    f"{path.name}, and resume goes on from that"
                )
    return "there is no other checkpoint that can be read, so begin a new run"


@contextmanager
def taking_from(path: Path) -> Iterator[None]:
    """Raise errors within as errors of the content of the checkpoint at ``path``.

    Raises:
        DamagedError: there was an error that no message was written for.
        ValueError: there was another error; the message names ``path``.
    """
    try:
        yield
    except (DamagedError, OSError, TeamError, torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    except Exception as error:  # a value of any type may stand in the place of any other
        reason = str(error).partition("\n")[0]
        raise DamagedError(
            f"{path} is damaged: what it holds cannot be used ({type(error).__name__}: {reason})"
        ) from error
