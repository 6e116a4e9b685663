"""Groups of saved runs that differ in the seed alone, and their mean curves.

A curve is a column of ``metrics.csv`` over the run: the raw score, mean of the last 100 games, or
any other column.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from accel_rl.config import TrainConfig
from accel_rl.options import Kind, list_options
from accel_rl.presets import find_preset, parameters_of
from accel_rl.runs.saved import read_config
from accel_rl.runs.tables import read_rows
from accel_rl.runs.yaml_file import exact_text
from accel_rl.tools.intervals import FEWEST_RUNS, Estimate, Values, interval_of_mean

Axis = Literal["steps", "frames", "minutes"]

NUM_POINTS = 200
SCORE = "episode_return_raw_mean"
COLUMNS: dict[Axis, tuple[str, float]] = {
    "steps": ("steps", 1.0),
    "frames": ("frames", 1.0),
    "minutes": ("training_seconds", 1 / 60),
}
_SAME: tuple[Kind, ...] = ("identity",)
"""kinds of options in which runs of one group may differ"""
_SPEED: tuple[Kind, ...] = ("engine", "watching")
"""kinds that change how fast a run is, but not what it learns; with GA3C they change that, too"""


class NoValueError(ValueError):
    """A run has no number yet in the column that was asked for."""


@dataclass(frozen=True)
class SavedCurve:
    """The curve of one run: ``x`` and ``y`` are ``[n]``, where the column has a number."""

    run_dir: Path
    config: TrainConfig
    x: Values
    y: Values


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but the seed, one for each seed.

    Attributes:
        label: the options in which other groups of the environment differ, or else the algorithm.
        env: name of the environment.
        seeds: seed of each run.
        x: ``[200]``, where all runs have a value.
        y: ``[runs, 200]``.
        runs: directory of each run.
        left_out: older runs of these seeds.
    """

    label: str
    env: str
    seeds: tuple[int, ...]
    x: Values
    y: Values
    runs: tuple[Path, ...]
    left_out: tuple[Path, ...]

    @property
    def mean(self) -> Values:
        """Mean over the runs: ``[200]``."""
        mean: Values = self.y.mean(0)
        return mean

    @cached_property
    def interval(self) -> tuple[Values, Values]:
        """Ends of the interval of the mean, ``[200]`` each: NaN for one run, the range of two."""
        return interval_of_mean(self.y)

    @property
    def end(self) -> Estimate:
        """The mean at the end of the curve, with its interval."""
        value, low, high = (float(each[-1]) for each in (self.mean, *self.interval))
        return Estimate(value, low, high, is_range=len(self.y) < FEWEST_RUNS)


def find_runs(named: Sequence[str | Path]) -> list[Path]:
    """Return the run directories that are named, and the runs of sweeps that are named."""
    runs: list[Path] = []
    for folder in map(Path, named):
        of_sweep = sorted(path.parent for path in folder.glob("runs/*/config.yaml"))
        runs += of_sweep or [folder]
    if not runs:
        raise ValueError("no run is named; name directories of runs or sweeps, as in runs/pong-*")
    resolved = [run.resolve() for run in runs]
    for run, path in zip(runs, resolved, strict=True):
        if resolved.count(path) > 1:
            raise ValueError(f"{run} is named twice")
    return runs


def read_curves(
    run_dirs: Sequence[Path], axis: Axis, column: str = SCORE, *, trust: bool = False
) -> tuple[list[SavedCurve], list[Path]]:
    """Return the curves of ``column``, and the runs that have no value yet; see `read_curve`."""
    curves, without_value = [], []
    for run_dir in run_dirs:
        try:
            curves.append(read_curve(run_dir, axis, column, trust=trust))
        except NoValueError:
            without_value.append(run_dir)
            if len(without_value) == len(run_dirs):
                raise
    return curves, without_value


def read_curve(
    run_dir: Path, axis: Axis, column: str = SCORE, *, trust: bool = False
) -> SavedCurve:
    """Return the curve of ``column`` in ``run_dir``; the run may still be going on."""
    config = read_config(run_dir, trust=trust)
    x_column, unit = COLUMNS[axis]
    rows = read_rows(run_dir / "metrics.csv", x_column)
    if rows and column not in rows[0]:
        known = ("scores", *rows[0])
        near = [name for name in known if column in name] or get_close_matches(column, known)
        hint = f"did you mean {' or '.join(near[:3])}? " if near else ""
        raise ValueError(
            f"what={column} is no column of {run_dir}; {hint}`head -1 {run_dir}/metrics.csv` shows "
            "all"
        )
    points = [(row[x_column] * unit, row[column]) for row in rows if math.isfinite(row[column])]
    if not points:
        hint = ", or see whether the environment tells it" * column.startswith("episode_info_")
        raise NoValueError(
            f"{run_dir} has no {name_value(column)} in its metrics.csv yet; let it train on{hint}"
        )
    x, y = np.array(points).T
    return SavedCurve(run_dir, config, x, y)


def name_value(column: str) -> str:
    """Return the name of what a run lacks if ``column`` has no number."""
    return "finished game" if column == SCORE else f"value of {column}"


def label_runs(configs: Sequence[TrainConfig], same: Container[str]) -> list[str]:
    """Return for each config the options in which they differ, without those named ``same``.

    If algorithms differ, options that all runs of each algorithm agree about are left out.
    """
    options = [option_texts(config, same) for config in configs]
    keys = list(dict.fromkeys(key for each in options for key in each))
    differing = [key for key in keys if len({each.get(key) for each in options}) > 1]
    algos = [config.algo for config in configs]
    told = [
        key
        for key in differing
        if key == "algo"
        or len({(algo, each.get(key)) for algo, each in zip(algos, options, strict=True)})
        > len({*algos})
    ]
    names = [key.rpartition(".")[2] for key in keys]
    short = {
        key: name if names.count(name) == 1 else key for key, name in zip(keys, names, strict=True)
    }
    return [
        ", ".join(
            values[key] if key == "algo" else f"{short[key]}={values[key]}"
            for key in told
            if key in values
        )
        or config.algo
        for config, values in zip(configs, options, strict=True)
    ]


def option_texts(config: TrainConfig, same: Container[str] = ()) -> dict[str, str]:
    """Return options as text, without those in ``same``; ``learners`` is the number of learners."""
    values = {option.key: exact_text(option.default) for option in list_options(config)}
    values["learners"] = str(config.num_learners)
    return {key: value for key, value in values.items() if key not in same}


def command_of(config: TrainConfig) -> str:
    """Return the command of a run, with what differs from the nearer of its preset's settings."""
    make, named = find_preset(config.algo), ("algo", "env", "seed", "run_dir")
    presets = [make(), *([make(is_image=False)] if "is_image" in parameters_of(make) else ())]
    others = []
    for preset in (option_texts(each) for each in presets):
        given = option_texts(config, named).items()
        others.append(
            "".join(f" {key}={value}" for key, value in given if value != preset.get(key))
        )
    first = f"algo={config.algo} env={config.env} seed={config.seed}"
    return f"accel_rl train {first}{min(others, key=len)}"


def make_groups(curves: Sequence[SavedCurve], axis: Axis, column: str = SCORE) -> list[Group]:
    """Return groups of runs whose options differ in seed and `info_keys` alone, with labels.

    Over steps and frames, options that change only the speed and what is recorded may differ, too,
    unless ``column`` is a speed or a share of the time. Of runs with the same seed the newest
    counts, since they are no independent samples.
    """
    members: dict[tuple[str, str], list[SavedCurve]] = {}
    configs = [curve.config for curve in curves]
    is_apart = (
        axis == "minutes"
        or column.endswith(("_seconds", "_per_second", "_share"))
        or any(not config.learner.in_rollouts for config in configs)  # as GA3C
    )
    kinds = _SAME if is_apart else _SAME + _SPEED
    options = (option for config in configs for option in list_options(config))
    same = {option.key for option in options if option.kind in kinds} | {"info_keys"}
    for env in dict.fromkeys(config.env for config in configs):
        of_env = [curve for curve in curves if curve.config.env == env]
        for curve, label in zip(of_env, label_runs([c.config for c in of_env], same), strict=True):
            members.setdefault((env, label), []).append(curve)
    return [_make_group(label, group, axis) for (_, label), group in members.items()]


def _make_group(label: str, members: list[SavedCurve], axis: Axis) -> Group:
    def written(curve: SavedCurve) -> tuple[float, str]:
        return (curve.run_dir / "config.yaml").stat().st_mtime, curve.run_dir.name

    newest = {curve.config.seed: curve for curve in sorted(members, key=written)}
    curves = [curve for curve in members if curve is newest[curve.config.seed]]
    first, last = max(curve.x[0] for curve in curves), min(curve.x[-1] for curve in curves)
    if first > last:
        early = min(curves, key=lambda curve: curve.x[-1])
        late = max(curves, key=lambda curve: curve.x[0])
        raise ValueError(
            f"{early.run_dir} ends after {format_x(last, axis)} {axis}, before {late.run_dir} has "
            f"its first value, after {format_x(first, axis)}; train on, or leave one out"
        )
    x = np.linspace(first, last, NUM_POINTS)
    y = np.array([np.interp(x, curve.x, curve.y) for curve in curves])
    return Group(
        label=label,
        env=curves[0].config.env,
        seeds=tuple(curve.config.seed for curve in curves),
        x=x,
        y=y,
        runs=tuple(curve.run_dir for curve in curves),
        left_out=tuple(each.run_dir for each in members if each is not newest[each.config.seed]),
    )


def by_env(groups: Sequence[Group]) -> list[list[Group]]:
    """Return the groups of each environment."""
    envs = dict.fromkeys(group.env for group in groups)
    return [[group for group in groups if group.env == env] for env in envs]


def headline(groups: Sequence[Group], axis: Axis) -> str:
    """Return a sentence that says which of the ``groups`` of an environment scores most."""
    best = max(groups, key=lambda group: group.end.value)
    others = f", the best of {len(groups)} settings" if len(groups) > 1 else ""
    x = format_x(best.x[-1], axis)
    return f"{best.env}: {best.label} scores {best.end} after {x} {axis}{others}"


def format_x(x: float, axis: Axis) -> str:
    """Return a place on ``axis`` as text."""
    return f"{x:,.1f}" if axis == "minutes" else f"{x:,.0f}"
