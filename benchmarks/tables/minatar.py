"""Presets for the table of results on MinAtar: one for each algorithm, the same for all five games.

    accel_rl sweep config=benchmarks/tables/minatar.yaml seed=0 sweep_dir=sweeps/minatar \\
        env=minatar/asterix,minatar/breakout,... algo=benchmarks.tables.minatar:a2c,...

`benchmarks/tables/minatar_table.py` prints that command whole and draws the results. Actor-critics
and PQN take 3 M steps, Q-learning from a replay 1 M.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from accel_rl import presets
from accel_rl.algos import A2CConfig, DQNConfig, PPOConfig, PQNConfig
from accel_rl.algos.learner import LearnerConfig
from accel_rl.config import TrainConfig
from accel_rl.envs.minatar import PREFIX
from accel_rl.ga3c.learner import GA3CConfig

STEPS, REPLAY_STEPS = 3_000_000, 1_000_000
NUM_LEARNERS = 2
"""of the asynchronous algorithms; together they have as many environments as the others"""

# With the usual 1e-5 asterix is not learned: squares of gradients are far smaller there.
_EPS, _ENTROPY = 1e-8, 0.01
_RMSPROP = A2CConfig(
    lr=6e-3,
    lr_schedule="linear",
    value_coefficient=0.25,
    entropy_coefficient=_ENTROPY,
    max_gradient_norm=0.5,
    rmsprop_eps=_EPS,
    rmsprop_initial=1.0,
)
_PPO = PPOConfig(
    lr=1e-3,
    minibatch_size=256,
    clip_range=0.2,
    clip_schedule="constant",
    value_coefficient=0.25,
    entropy_coefficient=0.01,
    max_gradient_norm=0.5,
    normalize_advantage=True,
)
# Young and Tian 2019 (arXiv:1903.03176), but an update of four times the batch every 16 steps.
_DQN = DQNConfig(
    lr=5e-4,
    batch_size=128,
    training_intensity=8.0,
    learning_starts=5_000,
    buffer_size=100_000,
    target_update_interval=4_000,
    optimizer="adam",
    adam_eps=1.5e-4,
    epsilon_final=0.05,
    epsilon_steps=100_000,
)
# A distribution begins uniform, and each copy to the target network narrows it and moves its mean
# by `gamma`. So the range is around 0, and copies are frequent: see docs/algorithms/cat_dqn.md.
_ATOMS = replace(_DQN, num_atoms=61, v_min=-30.0, v_max=30.0, target_update_interval=1_000)
_QUANTILES = replace(_DQN, num_atoms=8, quantiles="implicit", target_update_interval=1_000)


def a2c() -> TrainConfig:
    return _synchronous(presets.a2c(), _RMSPROP, 32, 5)


def a3c() -> TrainConfig:
    return _asynchronous(presets.a3c(), _RMSPROP, 32, 5)


def paac() -> TrainConfig:
    """A2C with the loss and the rule of PAAC's code, but with A2C's rate, epsilon and entropy."""
    config: Any = presets.paac()
    learner = replace(config.learner, lr=6e-3, rmsprop_eps=_EPS, entropy_coefficient=_ENTROPY)
    return _synchronous(config, learner, 32, 5)


def ga3c() -> TrainConfig:
    """GA3C with a short queue, and A2C's batch, mean loss and falling rate."""
    config = presets.ga3c()
    assert isinstance(config.learner, GA3CConfig)
    learner = replace(
        config.learner,
        lr=6e-3,
        lr_schedule="linear",
        rmsprop_eps=_EPS,
        entropy_coefficient=_ENTROPY,
        max_gradient_norm=0.5,
        loss_reduction="mean",
        min_training_batch=160,
        training_queue_size=40,
        tuner=False,
    )
    return _of_minatar(config, learner, STEPS)


def ppo() -> TrainConfig:
    # With an eighth of the batch and a fifth of the rate, breakout stayed at 6.
    return _synchronous(presets.ppo(), replace(_PPO, lr=5e-3, minibatch_size=1024), 64, 128)


def appo() -> TrainConfig:
    learner = replace(_PPO, lr=5e-4, lr_schedule="constant")
    return _asynchronous(presets.appo(), learner, 32, 64)


def pqn() -> TrainConfig:
    learner = PQNConfig(lr=5e-4, lr_schedule="linear", minibatch_size=128, epsilon_final=0.05)
    return _synchronous(presets.pqn(), learner, 128, 32)


def dqn() -> TrainConfig:
    return _q_learning(presets.dqn(), _DQN)


def double_dqn() -> TrainConfig:
    return _q_learning(presets.double_dqn(), replace(_DQN, double=True))


def cat_dqn() -> TrainConfig:
    return _q_learning(presets.cat_dqn(), _ATOMS)


def rainbow() -> TrainConfig:
    learner = replace(_ATOMS, double=True, dueling=True, n_step=3, prioritized=True)
    return _q_learning(presets.rainbow(), replace(learner, priority_beta_steps=REPLAY_STEPS))


def iqn() -> TrainConfig:
    """``cat_dqn`` with eight implicit quantiles instead of atoms; nothing else differs."""
    return _q_learning(presets.iqn(), _QUANTILES)


def btr() -> TrainConfig:
    """``rainbow`` with what BTR has instead of its parts, and with the network of the others."""
    learner = replace(
        _QUANTILES,
        munchausen=True,
        noisy=True,
        dueling=True,
        n_step=3,
        prioritized=True,
        priority_alpha=0.2,
        priority_beta_steps=REPLAY_STEPS,
    )
    return replace(_q_learning(presets.btr(), learner), overlap=False)


def async_dqn() -> TrainConfig:
    return _asynchronous(presets.async_dqn(), _DQN, 16, 4, REPLAY_STEPS)


ALGORITHMS: dict[str, Callable[[], TrainConfig]] = {
    make.__name__: make
    for make in (
        a2c,
        paac,
        a3c,
        ga3c,
        ppo,
        appo,
        dqn,
        double_dqn,
        cat_dqn,
        rainbow,
        iqn,
        btr,
        async_dqn,
        pqn,
    )
}


def cell_of(config: Any) -> tuple[str, str] | None:
    """Algorithm and game of a run with these options; None if it is no part of the table."""
    module, _, algorithm = str(config["algo"]).rpartition(":")
    game = str(config["env"]).removeprefix(PREFIX)
    return (algorithm, game) if module == "benchmarks.tables.minatar" else None


def _synchronous(
    config: TrainConfig, learner: LearnerConfig, num_envs: int, horizon: int, steps: int = STEPS
) -> TrainConfig:
    config = _of_minatar(config, learner, steps)
    sampler = replace(
        config.sampler, num_envs=num_envs, horizon=horizon, num_groups=1, num_workers=0
    )
    return replace(config, sampler=sampler)


def _asynchronous(
    config: TrainConfig, learner: LearnerConfig, num_envs: int, horizon: int, steps: int = STEPS
) -> TrainConfig:
    own = num_envs // NUM_LEARNERS
    return replace(_synchronous(config, learner, own, horizon, steps), learners=NUM_LEARNERS)


def _q_learning(config: TrainConfig, learner: DQNConfig) -> TrainConfig:
    return _synchronous(config, learner, 16, 4, REPLAY_STEPS)


def _of_minatar(config: TrainConfig, learner: LearnerConfig, steps: int) -> TrainConfig:
    return replace(
        config,
        env="minatar/breakout",
        model="minatar" if not isinstance(learner, PQNConfig) else "pqn",
        total_steps=steps,
        schedule_steps=None,
        sampler=replace(config.sampler, decorrelation_steps=100),
        learner=learner,
    )


if __name__ == "__main__":
    print(",".join(f"benchmarks.tables.minatar:{name}" for name in ALGORITHMS))
