"""Presets for the studies of scale on MinAtar's breakout, each with its settings.

    python benchmarks/tables/studies.py STUDY

prints the presets of a study for ``accel_rl sweep algo=...``; without a study, their names.
`study_figures` draws what the sweeps give.

The studies repeat, at this size, claims of Stooke and Abbeel 2018 (arXiv:1803.02811) about many
simulators, large batches and several learners, and the question that GA3C (arXiv:1611.06256)
leaves open: what the age of its experience costs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from typing import Any

from accel_rl.config import TrainConfig
from benchmarks.tables import minatar

STEPS = 1_500_000
ENTROPY = 0.05
"""bonus of A2C and A3C, with which the recorded runs were made; `minatar` has a smaller one now"""


@dataclass(frozen=True)
class Setting:
    """One curve of a study. ``batch``: samples of an update; None: their number varies."""

    label: str
    batch: int | None
    make: Callable[[], TrainConfig]


@dataclass(frozen=True)
class Study:
    """Settings by the name of their preset; ``benchmarks/results/scale.md`` has the answer.

    ``title``: the finding. ``panels``: words of the labels that part the curves into panels.
    """

    title: str
    settings: dict[str, Setting]
    panels: tuple[str, ...] = ("",)

    def panel_of(self, label: str) -> str:
        return next(panel for panel in self.panels if panel in label)


def _a2c(num_envs: int, steps: int, learners: int = 1) -> TrainConfig:
    """The learning rate grows with the square root of the batch, as in the paper."""
    config: Any = minatar.a2c()
    learner = replace(
        config.learner,
        lr=config.learner.lr * sqrt(num_envs / 32),
        entropy_coefficient=ENTROPY,
        log_norms=True,
    )
    return _changed(config, learner, learners, steps, num_envs=num_envs)


def _a3c(learners: int) -> TrainConfig:
    """Each learner has 16 environments, and pushes and pulls at every update."""
    config: Any = minatar.a3c()
    lr = config.learner.lr * sqrt(16 / 32)
    learner = replace(config.learner, lr=lr, entropy_coefficient=ENTROPY)
    return _changed(config, learner, learners, 1_000_000, num_envs=16)


def _ppo(num_envs: int) -> TrainConfig:
    """The same rollout of 8,192 steps, from more environments for fewer steps."""
    config: Any = minatar.ppo()
    learner = replace(config.learner, log_norms=True)
    horizon = 8_192 // num_envs
    return _changed(config, learner, 1, STEPS, num_envs=num_envs, horizon=horizon)


def _dqn(batch_size: int, lr: float) -> TrainConfig:
    """Each step is learned from as often as with any other batch."""
    config: Any = minatar.dqn()
    learner = replace(
        config.learner,
        batch_size=batch_size,
        lr=lr,
        training_intensity=8.0,
        log_norms=True,
    )
    return _changed(config, learner, 1, 500_000)


def _ga3c(batch: int, queue: int, **correction: Any) -> TrainConfig:
    """``batch``: samples of an update; ``queue``: segments that may wait for the trainers."""
    config: Any = minatar.ga3c()
    lr = config.learner.lr * sqrt(batch / config.learner.min_training_batch)
    given = {"lr": lr, "min_training_batch": batch, "training_queue_size": queue, **correction}
    steps = 1_000_000 if batch > 20 else 600_000
    return _changed(config, replace(config.learner, **given), 1, steps)


def _changed(config: Any, learner: Any, learners: int, steps: int, **sampler: int) -> TrainConfig:
    sampling = replace(config.sampler, **sampler)
    changed: TrainConfig = replace(
        config, sampler=sampling, learner=learner, learners=learners, total_steps=steps
    )
    return changed


STUDIES = {
    "simulators_a2c": Study(
        "A2C with more simulators learns more slowly at first, and more in the end",
        {
            f"a2c_{n}": Setting(f"{n} simulators", n * 5, partial(_a2c, n, STEPS))
            for n in (16, 64, 256)
        },
    ),
    "simulators_ppo": Study(
        "PPO loses no score with more simulators and shorter rollouts",
        {f"ppo_{n}": Setting(f"{n} simulators", 1024, partial(_ppo, n)) for n in (16, 64, 256)},
    ),
    "batch_dqn": Study(
        "DQN learns as well with batches of 256 as of 32, and worse with 2,048",
        {
            f"dqn_{n}": Setting(f"batch of {n:,}", n, partial(_dqn, n, lr))
            for n, lr in ((32, 2.5e-4), (256, 7.5e-4), (2048, 15e-4))
        },
    ),
    "learners": Study(
        "Up to eight learners lose no score; by the store they start more slowly",
        {
            f"in_step_{n}": Setting(f"{n} in step", n * 80, partial(_a2c, 16 * n, 1_000_000, n))
            for n in (1, 2, 4, 8)
        }
        | {f"a3c_{n}": Setting(f"{n} by the store", 80, partial(_a3c, n)) for n in (2, 4, 8)},
        ("in step", "by the store"),
    ),
    "lag_ga3c": Study(
        "GA3C learns more with V-trace where a long queue makes experience old",
        {
            f"ga3c_{batch}_{queue}{name}": Setting(
                f"{batch} samples, queue of {queue:,}{shown}",
                None,
                partial(_ga3c, batch, queue, **options),
            )
            for batch, queue, name, shown, options in (
                (160, 40, "", "", {}),
                (160, 1_000, "", "", {}),
                (160, 1_000, "_vtrace", ", V-trace", {"vtrace": True}),
                (20, 8, "", "", {}),
                (20, 1_000, "", "", {}),
                (20, 1_000, "_vtrace", ", V-trace", {"vtrace": True}),
            )
        },
        ("160 samples", "20 samples"),
    ),
}


def __getattr__(name: str) -> Callable[[], TrainConfig]:
    """The preset of this name, of whichever study."""
    for study in STUDIES.values():
        if name in study.settings:
            return study.settings[name].make
    raise AttributeError(name)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in STUDIES:
        sys.exit(f"error: name one study of {', '.join(STUDIES)}")
    print(",".join(f"benchmarks.tables.studies:{name}" for name in STUDIES[sys.argv[1]].settings))
