"""Numbers that stand for what a short run of each preset has learned.

Run as a program, it prints them for the checkout whose ``accel_rl`` is imported. Two checkouts on
one machine print the same text where a change left all arithmetic as it was:

    python tests/helpers/digests.py [NAME...] > digests.json
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from launched_runs import train
from saved_runs import Q_LEARNING, trained
from torch import Tensor

from accel_rl.presets import PRESETS
from accel_rl.runs.checkpoint import list_checkpoints, load_checkpoint

_ROLLOUTS = {"num_envs": "2", "total_steps": "80", "horizon": "10"}
_PPO = {"num_envs": "2", "total_steps": "128", "horizon": "32", "minibatch_size": "32"}
_REPLAY = {
    **dict(each.split("=", 1) for each in Q_LEARNING),
    "num_envs": "2",
    "total_steps": "80",
    "learning_starts": "40",
}
_SWING = {"env": "control_envs:Swing", "num_envs": "2"}
_OPTIONS = {
    **dict.fromkeys(("ppo", "appo", "ppo_baselines"), _PPO),
    **dict.fromkeys(("dqn", "async_dqn", "double_dqn", "cat_dqn", "rainbow"), _REPLAY),
    **dict.fromkeys(("qr_dqn", "iqn", "btr"), _REPLAY),
    "ppo_mujoco": {**_PPO, **_SWING},
    "pqn": {"num_envs": "4", "total_steps": "256", "horizon": "16", "minibatch_size": "32"},
    "sac": {**_REPLAY, **_SWING, "training_intensity": "8"},
    "r2d2": {
        "num_envs": "2",
        "total_steps": "800",
        "learning_starts": "744",
        "buffer_size": "2000",
    },
}
_SEQUENCES = {"memory": "lstm", "sequence_length": "6", "burn_in": "2", "batch_size": "12"}
_APART = {"ga3c"}
"""No two runs of GA3C are equal."""
_IN_STEP = ("a2c", "ppo", "dqn", "btr", "pqn", "sac", "r2d2")
_PICTURES = ("a2c", "pqn", "impala")


def _options(preset: str) -> dict[str, str]:
    common = {"evaluation_interval": "0", "log_interval": "1000", "env": "catch"}
    return {"algo": preset, **common, **_OPTIONS.get(preset, _ROLLOUTS)}


def cases() -> dict[str, Callable[[Path], Path]]:
    """Runs by name; each is made in the directory that it is given, which it returns."""
    return dict(_cases())


def _cases() -> Iterator[tuple[str, Callable[[Path], Path]]]:
    for preset in sorted(set(PRESETS) - _APART):
        options = _options(preset)
        yield preset, _alone(options)
        yield f"{preset} store", _alone({**options, "sync": "store"})
        if preset not in {"sac", "r2d2"}:
            memory = _SEQUENCES if _OPTIONS.get(preset) == _REPLAY else {"memory": "lstm"}
            yield f"{preset} lstm", _alone({**options, **memory})
    for preset in _IN_STEP:
        options = {**_options(preset), "num_envs": "4", "learners": "2"}
        yield f"{preset} two", partial(_launch, options)
    for preset in _PICTURES:
        yield f"{preset} pictures", _alone({**_options(preset), "env": "pong"})


def _alone(options: Mapping[str, str]) -> Callable[[Path], Path]:
    given = {"learners": "1", "sync": "all_reduce", **options}
    return lambda run_dir: trained(run_dir, *(f"{key}={value}" for key, value in given.items()))


def _launch(options: Mapping[str, str], run_dir: Path) -> Path:
    given = {"num_workers": "0", "decorrelation_steps": "0", "sync": "all_reduce", **options}
    train(run_dir, *(f"{key}={value}" for key, value in given.items()))
    return run_dir


def digest(run_dir: Path) -> dict[str, list[float]]:
    """Sums and norms of all parameters, and of the state of the update rule."""
    learner = load_checkpoint(list_checkpoints(run_dir)[-1])["learner"]
    parts = {"parameters": learner["parameters"]}
    parts["rule"] = {name: value for name, value in learner.items() if name != "parameters"}
    return {name: _summary(list(_tensors(part))) for name, part in parts.items()}


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor) and value.is_floating_point():
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each)


def _summary(tensors: list[Tensor]) -> list[float]:
    """Number of elements, sum, sum of magnitudes, of squares, and of fourth powers.

    Neither names nor the order of tensors change them but for the rounding of sums in float64.
    """
    values = [each.detach().double() for each in tensors]
    powers: list[Callable[[Tensor], Tensor]] = [
        torch.ones_like,
        lambda each: each,
        torch.abs,
        torch.square,
        lambda each: each**4,
    ]
    return [float(sum(power(each).sum() for each in values)) for power in powers]


def main(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = {
            name: digest(run(Path(folder) / name.replace(" ", "_")))
            for name, run in cases().items()
            if not names or name in names
        }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
