"""A sweep that goes on with more runs, or longer ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from accel_rl.sweep.plan import PlannedRun, plan_again


def grow(sweep_dir: Path, runs: Sequence[PlannedRun], given: Mapping[str, str]) -> list[PlannedRun]:
    """The sweep in ``sweep_dir``, which has ``runs``, with the lists ``given`` in place of its own.

    Raises:
        ValueError: one of ``runs`` is not in it any more, would be shorter, or would be another.
    """
    shown = " ".join(f"{key}={text}" for key, text in given.items())
    grown = plan_again(sweep_dir, runs, given)
    by_name = {run.name: run for run in grown}
    for before in runs:
        after = by_name.get(before.name)
        if after is None:
            raise ValueError(
                f"with {shown} the run {before.name} would not be in the sweep any more; list what "
                "the sweep has, too"
            )
        old, new = before.config.total_steps, after.config.total_steps
        if new < old:
            raise ValueError(f"total_steps={new} is less than the sweep's; give {old} or more")
        if dataclasses.replace(after.config, total_steps=old) != before.config:
            raise ValueError(f"with {shown} the run {before.name} would have other options")
    return grown
