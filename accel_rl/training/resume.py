"""Going on with a run: which checkpoint, and which options may differ from before."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accel_rl.config import TrainConfig
from accel_rl.samplers.states import decode_state
from accel_rl.training.checkpoint import load_checkpoint
from accel_rl.training.command_line import PARALLEL_ONLY
from accel_rl.training.options import format_value, list_options
from accel_rl.training.saved_run import latest_checkpoint, read_config

CHANGEABLE = {
    "total_steps",
    "schedule_steps",
    "device",
    "serial",
    "log_interval",
    "checkpoint_interval",
    "num_checkpoints",
    "evaluation_interval",
    "evaluation_steps",
    "evaluation_envs",
    *PARALLEL_ONLY,
}
"""options that say how long, where and how watched a run is, not what is learned"""


def load_last(config: TrainConfig) -> dict[str, Any]:
    """The last checkpoint of the run that ``config.resume`` names.

    Raises:
        ValueError: that is no run of this version, it has no checkpoint that can be read, it has
            taken all its steps, or ``config`` differs from its own in more than `CHANGEABLE`.
    """
    assert config.resume is not None
    run_dir = Path(config.resume)
    _refuse_changes(read_config(run_dir), config)
    path = latest_checkpoint(run_dir)
    try:
        saved = load_checkpoint(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        if "broken" not in str(error):
            raise
        raise ValueError(f"{error}; delete it, and the run goes on from the one before") from error
    steps = int(saved["counts"]["steps"])
    if steps >= config.planned_steps:
        raise ValueError(
            f"resume={run_dir}: this run has taken {steps:,} steps, all that total_steps="
            f"{config.total_steps} asks for; to go on, give a larger total_steps"
        )
    return saved


def describe_resumed(saved: Mapping[str, Any]) -> str:
    """One line for people: from where the run goes on, and what starts anew."""
    line = f"goes on after {int(saved['counts']['steps']):,} steps"
    if "begin" in saved["algorithm"] and "replay" not in saved["algorithm"]:
        line += " with an empty replay, so learning waits for learner.min_steps"
    if saved["sampler"] is None:
        return f"{line}; all environments start new episodes, they were gone when it was saved"
    environments = decode_state(saved["sampler"].numpy().tobytes())["environments"]
    num_new = sum(state is None for state in environments)
    if num_new:
        line += (
            f"; {num_new} of {len(environments)} environments start new episodes, they cannot tell "
            "their state (get_state, set_state)"
        )
    return line


def _refuse_changes(before: TrainConfig, config: TrainConfig) -> None:
    values = {option.key: option.default for option in list_options(before)}
    for option in list_options(config):
        value = values[option.key]
        if option.default == value or option.key in CHANGEABLE | {"resume", "run_dir"}:
            continue
        raise ValueError(
            f"{option.key}={format_value(option.default)} cannot be given with "
            f"resume={config.resume}, which was begun with {format_value(value)}; leave it out, or "
            "begin a new run"
        )
