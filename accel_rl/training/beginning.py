"""What a run begins with: a directory of its own, or a checkpoint in that of the run resumed."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from accel_rl.config import TrainConfig
from accel_rl.parallel import Team
from accel_rl.runs.archive import DamagedError
from accel_rl.runs.checkpoint import check_folder, taking_from
from accel_rl.runs.directory import hold, make_run_directory
from accel_rl.runs.files import delete_unfinished
from accel_rl.training.build import Parts
from accel_rl.training.iterate import is_apart
from accel_rl.training.resume import load_last, way_out


def load_saved(
    config: TrainConfig, team: Team, stack: contextlib.ExitStack
) -> Mapping[str, Any] | None:
    """The last checkpoint of the run that ``config`` resumes, held while ``stack`` lasts; or None.

    Raises:
        ValueError: there is none to go on from, or not all learners see its directory.
    """
    if config.resume is None:
        return None
    run_dir = Path(config.resume)
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
    config: TrainConfig,
    saved: Mapping[str, Any] | None,
    parts: Parts,
    team: Team,
    stack: contextlib.ExitStack,
) -> Path:
    """Go on from ``saved``, or make the run directory, held while ``stack`` lasts; returns it.

    Raises:
        ValueError: the directory cannot be made, or not all learners see it, or ``saved`` is of
            another model or rule.
        TeamError: another learner is gone.
    """
    is_first = team.ranks.is_first
    if saved is not None:
        if is_first and is_apart(config, team):
            team.add_steps(int(saved["counts"]["steps"]))
        try:
            with taking_from(saved["path"]):
                parts.set_state(saved, team)
        except DamagedError as error:
            raise DamagedError(f"{error}; {way_out(saved['path'])}") from error
        return Path(str(config.resume))
    made = str(make_run_directory(config, datetime.now())) if is_first else None
    run_dir = Path(team.share("run_dir", made))
    if is_first:
        stack.enter_context(hold(run_dir))
    check_is_shared(run_dir, team)
    if is_apart(config, team):
        team.meet("built")  # all with the initial parameters: nobody pushes before
    return run_dir


def check_is_shared(run_dir: Path, team: Team) -> None:
    """Raises ValueError where this learner does not see the first one's run directory."""
    if not team.ranks.is_first and not run_dir.is_dir():
        raise ValueError(
            f"there is no {run_dir.absolute()} on {platform.node()}, but the first learner has "
            "its run directory there; give a run_dir on a file system that all machines see, as "
            "an absolute path"
        )
