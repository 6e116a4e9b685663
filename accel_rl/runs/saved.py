"""A run that was saved: its config and its checkpoints, read back from its directory."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from accel_rl.config import TrainConfig
from accel_rl.presets import PRESETS, find_preset
from accel_rl.runs.checkpoint import best_path, checkpoint_path, checkpoint_steps, list_checkpoints
from accel_rl.runs.yaml_file import CODE_OPTIONS, read_yaml
from accel_rl.system.functions import first_line


def read_config(run_dir: str | Path, *, trust: bool = False) -> TrainConfig:
    """Return the configuration of a saved run, with every option as it was.

    Options that are newer than the run have the values of its preset. Only a preset of the user's
    own (``algo=module:function``) is imported.

    Args:
        run_dir: directory of the run.
        trust: import that preset even if another person made the run.

    Raises:
        UntrustedError: the run has a preset of the user's own and is not signed with this user's
            key, and ``trust`` is false.
        ValueError: there is no such directory, it is not a run, or this version cannot read its
            ``config.yaml``.
    """
    return _read(Path(run_dir), trust, ("algo",))


def read_trusted_config(run_dir: str | Path, *, trust: bool) -> TrainConfig:
    """Return the config of the run in ``run_dir`` if code that it names may run."""
    return _read(Path(run_dir), trust, CODE_OPTIONS)


PACKAGED_WEIGHTS = "model.safetensors"
"""file of a package that holds the policy, in the place of checkpoints"""


def _read(run_dir: Path, trust: bool, imports: Collection[str]) -> TrainConfig:
    path = run_dir / "config.yaml"
    try:
        path.stat()  # not is_file(), which from Python 3.14 on takes what it cannot read for absent
    except (FileNotFoundError, NotADirectoryError) as error:
        if run_dir.is_dir():
            raise ValueError(f"{run_dir} holds no run: there is no config.yaml in it") from error
        raise ValueError(
            f"there is no run directory {run_dir}; name one that training has made"
        ) from error
    except OSError as error:
        raise ValueError(f"{run_dir} cannot be read: {error.strerror}") from error
    tree = read_yaml(path, trust=trust, imports=imports)
    if not isinstance(tree, DictConfig) or "algo" not in tree or "env" not in tree:
        raise ValueError(f"{path} is not the config of a training run of accel_rl")
    own = str(tree["algo"])
    if ":" not in own and own not in PRESETS:
        raise ValueError(
            f"{path}: algo={own} is unknown to this version of accel_rl, "
            f"which has {', '.join(PRESETS)}"
        )
    try:
        preset = find_preset(own)()
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    try:
        config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(preset), tree))
    except ConfigKeyError as error:
        raise ValueError(
            f"{path}: option {error.full_key} is unknown to this version of accel_rl; "
            "use the version that made the run"
        ) from error
    except (OmegaConfBaseException, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not valid: {first_line(error)}") from error
    assert isinstance(config, TrainConfig)
    # A file cannot vouch for itself.
    return dataclasses.replace(config, resume=None, trust=False)


def find_checkpoint(run_dir: Path, which: int | str | None = None) -> Path:
    """Return the path of a checkpoint: after ``which`` steps, the ``"best"``, or the last."""
    if which == "best":
        best = best_path(run_dir)
        if not os.path.lexists(best):
            raise ValueError(
                f"checkpoint=best: {run_dir} keeps none; a run keeps that of its best evaluation "
                "where evaluation_interval asks for evaluations and one has finished a game"
            )
        return best
    if isinstance(which, str):
        raise ValueError(f"checkpoint is {which!r}; it must be an integer, steps, or best")
    there = list_checkpoints(run_dir)
    if not there:
        if _is_package(run_dir):
            raise ValueError(
                f"{run_dir} is a package, which holds a policy and no checkpoint; name the run "
                "from which it was made"
            )
        raise ValueError(
            f"{run_dir} has no checkpoint yet; the run writes one every checkpoint_interval steps "
            "and at its end; start the run again if it failed before that"
        )
    if which is None:
        return there[-1]
    path = checkpoint_path(run_dir, which)
    if path not in there:
        known = ", ".join(str(checkpoint_steps(each)) for each in there)
        raise ValueError(f"{run_dir} has no checkpoint of step {which}; there are {known}")
    return path


def find_policy(run_dir: Path, which: int | str | None = None) -> Path:
    """Return the weights of a package, or a checkpoint as `find_checkpoint` does."""
    if not _is_package(run_dir):
        return find_checkpoint(run_dir, which)
    if which is not None:
        raise ValueError(
            f"checkpoint={which} has no effect, because {run_dir} is a package, which holds a "
            "single policy; leave it out"
        )
    return run_dir / PACKAGED_WEIGHTS


def _is_package(run_dir: Path) -> bool:
    has_checkpoints = os.path.lexists(run_dir / "checkpoints")
    return not has_checkpoints and os.path.lexists(run_dir / PACKAGED_WEIGHTS)
