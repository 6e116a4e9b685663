"""Presets for the studies of scale on MinAtar's breakout, each with its settings.

    python benchmarks/tables/studies.py STUDY

prints the presets of a study for ``launch/sweep.py algo=...``; without a study, their names.
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
COSINE_INTERVAL = 10


@dataclass(frozen=True)
class Setting:
    """One curve of a study. ``batch``: samples of an update; None: their number varies."""

    label: str
    batch: int | None
    make: Callable[[], TrainConfig]


@dataclass(frozen=True)
class Study:
    """A question, the settings by which it is asked, by the name of their preset, and the answer.

    ``finding``: what the recorded runs say, or nothing if there are none.
    """

    title: str
    settings: dict[str, Setting]
    question: str
    finding: str = ""


def _a2c(num_envs: int, steps: int, learners: int = 1) -> TrainConfig:
    """The learning rate grows with the square root of the batch, as in the paper."""
    config: Any = minatar.a2c()
    learner = replace(
        config.learner,
        lr=config.learner.lr * sqrt(num_envs / 32),
        entropy_coefficient=ENTROPY,
        gradient_cosine_interval=COSINE_INTERVAL,
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
    learner = replace(config.learner, gradient_cosine_interval=COSINE_INTERVAL)
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
        gradient_cosine_interval=COSINE_INTERVAL,
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
        "A2C with more simulators",
        {
            f"a2c_{n}": Setting(f"{n} simulators", n * 5, partial(_a2c, n, STEPS))
            for n in (16, 64, 256)
        },
        """\
The paper trains A2C with 16 to 512 simulators, and raises the learning rate with the square root
of the batch. Scores after equal numbers of steps stay the same in most games. Here the entropy
bonus is 0.05, which is more than is best for breakout.
""",
        """\
As in the paper, more simulators cost no score. Here they even add to it: after 1.5 M steps 256
have 17.6, 64 have 14.9 and 16 have 11.6. The 256 are slower at first: in 200,000 steps they make
160 updates, the 16 make 2,500. The cosine agrees with the paper too: near 0.71, the value of pure
noise, with few simulators, and above it with 256. By the estimate from the 256, gradients of less
than about 2,000 samples are mostly noise here, so more samples do as much good as more updates.
On the same core the run with 256 simulators takes a third of the time.
""",
    ),
    "simulators_ppo": Study(
        "PPO with more simulators and shorter rollouts",
        {f"ppo_{n}": Setting(f"{n} simulators", 1024, partial(_ppo, n)) for n in (16, 64, 256)},
        """\
The paper goes from 8 simulators with rollouts of 256 steps to 512 with rollouts of 4, and changes
nothing else. Here a rollout always has 8,192 steps in all.
""",
        """\
After 1.5 M steps 256 simulators have 21.5, 64 have 19.4 and 16 have 17.0. So more of them cost no
score, as in the paper. There is one seed each, too few to say that more are better.
""",
    ),
    "batch_dqn": Study(
        "DQN with larger batches",
        {
            f"dqn_{n}": Setting(f"batch of {n:,}", n, partial(_dqn, n, lr))
            for n, lr in ((32, 2.5e-4), (256, 7.5e-4), (2048, 15e-4))
        },
        """\
The paper raises the batch of DQN from 32 to 512 and 1,024, and its learning rate to three and six
times. Here the same rates belong to batches of 32, 256 and 2,048. For each step of the game, as
many samples are learned from with every batch.
""",
        """\
After 0.5 M steps a batch of 32 has 10.8, one of 256 has 8.9 and one of 2,048 has 5.2. Up to 256 the
curves go together, and the run takes half of the time. A batch of 2,048 makes an eighth of the
updates of 256, and learns more slowly. That agrees with the noise scale: at 240 to 360 samples a
gradient has as much noise as signal, and with 2,048 little noise is left that more samples could
remove. The rate, six times as high, may have a part in it. There is one seed each.
""",
    ),
    "learners": Study(
        "Learners of 16 simulators each, in step and through the store",
        {
            f"in_step_{n}": Setting(f"{n} in step", n * 80, partial(_a2c, 16 * n, 1_000_000, n))
            for n in (1, 2, 4, 8)
        }
        | {f"a3c_{n}": Setting(f"{n} by the store", 80, partial(_a3c, n)) for n in (2, 4, 8)},
        """\
Learners with 16 simulators each either add up their gradients at each update (A2C), which is one
learner with a larger batch, or push to and pull from the store at their own pace (A3C). In the
paper A3C has 1 to 32 such learners. Here all learners share one core. In step the learning rate
grows with the square root of their number; through the store it stays. The entropy bonus is 0.05.
""",
        """\
After 1 M steps, two seeds each, learners in step have 10.0 (one), 14.3 (two), 12.0 (four) and 12.3
(eight); learners through the store have 10.0 (two), 10.7 (four) and 11.3 (eight). So at the end
more learners cost no score in either way, up to eight. Through the store they are slower at first:
at half of the steps eight have 7.4, where those in step have 9 to 10. The steps a second say
nothing about speed on several cores.
""",
    ),
    "lag_ga3c": Study(
        "GA3C: the age of experience, and corrections for it",
        {
            f"ga3c_{batch}_{queue}{name}": Setting(
                f"{batch} samples, queue of {queue:,}{shown}",
                None,
                partial(_ga3c, batch, queue, **options),
            )
            for batch, queue, name, shown, options in (
                (160, 40, "", "", {}),
                (160, 1_000, "", "", {}),
                (160, 1_000, "_ratio", ", ratio", {"max_importance_ratio": 1.0}),
                (160, 1_000, "_vtrace", ", V-trace", {"vtrace": True}),
                (20, 8, "", "", {}),
                (20, 1_000, "", "", {}),
                (20, 1_000, "_ratio", ", ratio", {"max_importance_ratio": 1.0}),
                (20, 1_000, "_vtrace", ", V-trace", {"vtrace": True}),
            )
        },
        """\
GA3C ([Babaeizadeh et al. 2017](https://arxiv.org/abs/1611.06256)) learns from segments that
waited in a queue, so that the policy that acted is some updates old. A longer queue makes them
older. A ratio of probabilities or V-trace corrects for it. Runs with batches of 20 samples, as in
the paper, take 600,000 steps, the others a million.
""",
        """\
With 160 samples trainers are fast enough here: the queue stays empty and experience is 2 updates
old, whatever the queue could hold. Scores between 5.8 and 12.4 then show how much one run differs
from another. With 20 samples and room for 1,000 segments the queue is full after 200,000 steps,
and experience is 250 updates old from then on (the column has the mean of the whole run). Without
a correction the score then stays at 2 to 6; with the ratio it rises to 9.0 and with V-trace to
10.4. So the corrections do what they are for. With a queue of 8, where experience is 13 updates
old, the run stayed at 5, so one seed does not tell what age alone costs.
""",
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
