"""Going on with a run: which checkpoint, and which options may differ from before."""

from __future__ import annotations

import contextlib
import copy
import platform
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from accel_rl.algos.replay_config import ReplayConfig
from accel_rl.config import TrainConfig
from accel_rl.options import format_value, list_options
from accel_rl.parallel import ALONE, Ranks, Team
from accel_rl.runs.checkpoint import (
    PART,
    check_folder,
    load_checkpoint,
    part_path,
    taking_from,
)
from accel_rl.runs.directory import hold, make_run_directory, run_place
from accel_rl.runs.files import delete_unfinished
from accel_rl.runs.saved import find_checkpoint, read_config
from accel_rl.runs.yaml_file import is_own
from accel_rl.system.states import decode_state
from accel_rl.training.evaluation import lacks_last_evaluation
from accel_rl.training.run import Run

_CHANGEABLE = ("course", "engine", "watching")
"""kinds of options that say how long, where and how watched a run is, not what is learned"""
_STEERING = frozenset(
    (
        *("lr", "lr_schedule", "max_gradient_norm", "value_coefficient", "entropy_coefficient"),
        *("gae_lambda", "clip_range", "clip_schedule", "target_kl", "epochs", "minibatch_size"),
        *("epsilon_final", "epsilon_steps", "epsilon_evaluation", "num_envs"),
    )
)
"""options of what is learned that fit any state of a learner"""
_FIXED = "learner.log_norms"
"""of those, one whose distances are from the parameters at the run's start"""


def load_last(config: TrainConfig, ranks: Ranks = ALONE) -> dict[str, Any]:
    """Load the last checkpoint of the run that ``config.resume`` names, for one learner.

    With another number of learners or environments than before, parameters, optimizer state and
    counts go on; what each learner had of its own begins anew: simulators, draws, replay.
    """
    assert config.resume is not None
    run_dir = run_place(config)
    before = read_config(run_dir, trust=config.trust)
    _refuse_changes(before, config)
    path = find_checkpoint(run_dir)
    saved = _without_foreign(config, run_dir, {**load_checkpoint(path), "path": path})
    with taking_from(path):
        steps = int(saved["counts"]["steps"])
        is_same = saved["num_learners"] == ranks.size
        is_same = is_same and saved["num_envs"] == config.sampler.num_envs
        parts = {rank: part_path(run_dir, of, rank) for rank, of in (saved["parts"] or {}).items()}
    if steps >= config.planned_steps and not lacks_last_evaluation(run_dir, config):
        raise ValueError(
            f"resume={run_dir}: this run has taken {steps:,} steps, all that total_steps="
            f"{config.total_steps} asks for; to go on, give a larger total_steps"
        )
    if not is_same:
        return _without_own(saved)
    missing = [n for n in range(1, ranks.size) if n not in parts or not parts[n].exists()]
    # In step, all begin anew or none: a learner with a replay would make updates alone.
    if missing and config.parallel.sync == "all_reduce":
        return {**_without_own(saved), "partless": missing}
    if ranks.is_first:
        return {**saved, "partless": missing}
    if ranks.rank in missing:
        return _without_own(saved)
    part = _without_foreign(config, run_dir, load_checkpoint(parts[ranks.rank]))
    return {**saved, **{name: part.get(name) for name in PART}}


def _without_foreign(config: TrainConfig, run_dir: Path, saved: dict[str, Any]) -> dict[str, Any]:
    """Return ``saved`` without its simulators if they may be somebody else's."""
    if saved["sampler"] is None or config.trust or is_own(run_dir / "config.yaml"):
        return saved
    return {**saved, "sampler": None, "recurrent_state": None, "is_foreign": True}


def _without_own(saved: dict[str, Any]) -> dict[str, Any]:
    """Return ``saved`` without the state that belongs to a single learner."""
    own = {"generator", "noise", "shuffling", "replay", "priorities", "begin", "reward_sums"}

    def common(state: Mapping[str, Any]) -> dict[str, Any]:
        kept = {name: value for name, value in state.items() if name not in own}
        return kept | ({"algorithm": common(kept["algorithm"])} if "algorithm" in kept else {})

    algorithm = common(saved["algorithm"])
    return {**saved, "sampler": None, "recurrent_state": None, "algorithm": algorithm}


def without_loaded(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a checkpoint that is needed after `Run.set_state`.

    The file is mapped no more: a replay is gigabytes of memory, or of disk where it is deleted.
    Of the algorithm names are left.
    """
    copied = ("learner", "algorithm", "torch_rng")
    left = {name: value for name, value in saved.items() if name not in copied}
    return {**copy.deepcopy(left), "algorithm": dict.fromkeys(saved["algorithm"])}


def describe_resumed(saved: Mapping[str, Any], config: TrainConfig, num_learners: int = 1) -> str:
    """Return a line: from where the run goes on, and what starts anew."""
    steps = int(saved["counts"]["steps"])
    line = f"goes on after {steps:,} steps"
    if isinstance(config.learner, ReplayConfig) and "replay" not in saved["algorithm"]:
        begin = steps + config.learner.learning_starts
        line += f" with an empty replay, so learning begins again after {begin:,}"
    if saved["num_learners"] != num_learners:
        return (
            f"{line}, with {num_learners} learner{'s' * (num_learners > 1)} in place of "
            f"{saved['num_learners']}; all "
            "environments start new episodes"
        )
    if saved["num_envs"] != config.sampler.num_envs:
        return (
            f"{line}, with {config.sampler.num_envs} environments in place of {saved['num_envs']}, "
            f"which all start new episodes"
        )
    if saved.get("partless"):
        line += f"; nothing was saved of learner {', '.join(map(str, saved['partless']))}"
        if saved["sampler"] is None:
            return f"{line}, so all environments start new episodes"
        line += ", whose environments start new episodes"
    if saved.get("is_foreign"):
        return (
            f"{line}; all environments start new episodes, because the run is not signed with your "
            f"key (it may be somebody else's, or comes from another machine or user); "
            f"if you trust it, trust=true restores it"
        )
    if saved["sampler"] is None:
        return f"{line}; all environments start new episodes, their state was not saved"
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
        may_change = option.kind in _CHANGEABLE or option.name in _STEERING
        may_change = may_change and option.key != _FIXED
        if option.default == value or may_change or option.key in ("resume", "run_dir", "trust"):
            continue
        raise ValueError(
            f"{option.key}={format_value(option.default)} cannot be given with "
            f"resume={config.resume}, which was begun with {format_value(value)}; leave it out, or "
            "begin a new run"
        )


def load_saved(
    config: TrainConfig, run_dir: Path, team: Team, stack: contextlib.ExitStack
) -> Mapping[str, Any] | None:
    """Load the last checkpoint of a resumed run, which is held while ``stack`` lasts; else None.

    ``run_dir``: its directory.
    """
    if config.resume is None:
        return None
    if team.ranks.is_first:
        stack.enter_context(hold(run_dir))
    check_is_shared(run_dir, team)
    check_folder(run_dir)
    saved = load_last(config, team.ranks)
    if team.ranks.is_first:
        for folder in (run_dir, run_dir / "checkpoints"):
            delete_unfinished(folder)  # the others write nothing before all have met
    return saved


def begin(
    run: Run, place: Path, saved: Mapping[str, Any] | None, stack: contextlib.ExitStack
) -> Path:
    """Go on from ``saved``, or make the run directory, held while ``stack`` lasts; returns it.

    ``place``: what `accel_rl.runs.directory.run_place` has returned.
    """
    config, team = run.config, run.team
    is_first = team.ranks.is_first
    if saved is not None:
        if is_first and run.is_apart:
            team.add_steps(int(saved["counts"]["steps"]))
        with taking_from(saved["path"]):
            run.set_state(saved)
        return place
    made = str(make_run_directory(config, datetime.now(), place)) if is_first else None
    run_dir = Path(team.share("run_dir", made))
    if is_first:
        stack.enter_context(hold(run_dir))
    check_is_shared(run_dir, team)
    if run.is_apart:
        team.meet("built")  # all with the initial parameters: nobody pushes before
    return run_dir


def check_is_shared(run_dir: Path, team: Team) -> None:
    """Raise ValueError if this learner does not see the first learner's run directory."""
    if not team.ranks.is_first and not run_dir.is_dir():
        raise ValueError(
            f"there is no {run_dir.absolute()} on {platform.node()}, but the first learner has "
            "its run directory there; give a run_dir on a file system that all machines see, as "
            "an absolute path"
        )
