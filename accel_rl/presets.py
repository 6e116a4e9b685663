"""The presets that ``algo=NAME`` chooses from: each paper's settings as a `TrainConfig`.

They are functions; the command line overrides single options of what they return
(`accel_rl.cli.parse`). Those that take ``num_envs`` or ``batch_size`` follow their
paper's rule for scaling when these are given. Those that take ``is_image`` have other settings if
observations are no images; ``has_memory`` tells whether ``memory`` is given.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import ceil, exp, log
from typing import Any

from accel_rl.algos import A2CConfig, DQNConfig, LearnerConfig, PPOConfig, PQNConfig, SACConfig
from accel_rl.algos.ppo import MujocoPPOConfig
from accel_rl.config import TrainConfig
from accel_rl.envs import AtariConfig, EnvSpec
from accel_rl.ga3c.learner import GA3CConfig
from accel_rl.parallel import ParallelConfig
from accel_rl.samplers import SamplerConfig
from accel_rl.spaces import Leaf, leaves_of, without_mask
from accel_rl.system.functions import FAILURES, find_function, place_of

_SAMPLER = SamplerConfig(
    # The paper decorrelates start states without giving a number; 2,000 random steps are several
    # games of most titles.
    decorrelation_steps=2_000,
    affinity="rotate",
    on_worker_failure="restart",
)

_SMALL = replace(_SAMPLER, num_groups=1, num_workers=0, decorrelation_steps=0)
"""of tasks whose simulators take less time than a message to another process"""
_SMALL_A2C = A2CConfig(
    lr=3e-3,
    lr_schedule="linear",
    gae_lambda=0.9,
    entropy_coefficient=0.0,
    value_coefficient=0.5,
    normalize_advantage=True,
    rmsprop_decay=0.99,
    rmsprop_eps=1e-5,
)
_SMALL_PQN = PQNConfig(lr=1e-3, lr_schedule="linear", q_lambda=0.9, epochs=4, minibatch_size=64)
_SMALL_PPO: dict[str, Any] = {
    "lr": 3e-4,
    "entropy_coefficient": 0.0,
    "max_gradient_norm": 0.5,
    "normalize_advantage": True,
    "normalize_observation": True,
    "normalize_reward": True,
    "epochs": 10,
    "minibatch_size": 64,
}
"""for MuJoCo, too"""
_SMALL_ATOMS = {"num_atoms": 51, "v_min": -100.0, "v_max": 100.0}
"""for the usual rewards of such tasks, up to 1 a step with a discount of 0.99"""
_TENSORFLOW: dict[str, Any] = {"rmsprop_decay": 0.99, "rmsprop_initial": 1.0}
"""RMSProp as in TensorFlow"""
_A2C_SAMPLER = replace(_SAMPLER, num_envs=16, horizon=5)
PPO_BATCH = 2_048
Q_HORIZON = 4


def a2c(is_image: bool = True) -> TrainConfig:
    """A2C as in Stooke and Abbeel 2018 (arXiv:1803.02811)

    16 simulators, horizon 5, A3C-Net; the learning rate grows with the square root of num_envs
    (section 5.1). 25 M steps is the length of the paper's policy-gradient runs (table 1).

    Observations that are no images have settings for small tasks: 4 simulators in the process that
    learns, horizon 16, learning rate 3e-3 falling to 0, normalised advantages, no entropy bonus.

    Deviations: a time limit and a lost extra life are treated otherwise than in the published code,
    and the square-root rule has no exception at 512 simulators. docs/algorithms/a2c.md lists all.
    """
    if not is_image:
        return _small("a2c", 4, 16, _SMALL_A2C)
    return TrainConfig(algo="a2c", total_steps=25_000_000, sampler=_A2C_SAMPLER)


def a2c_baselines() -> TrainConfig:
    """A2C with the settings of OpenAI's baselines, to compare with its published curves

    84x84 images, the network of Mnih et al. 2015, RMSProp as in TensorFlow, learning rate falling
    to 0 over 10 M steps, of which a shorter run has the first part.

    Deviations: random first steps, time limits, and the actions that start a game.
    docs/algorithms/a2c.md lists all.
    """
    return TrainConfig(
        algo="a2c_baselines",
        model="nature",
        total_steps=10_000_000,
        schedule_steps=10_000_000,
        sampler=_A2C_SAMPLER,
        atari=AtariConfig(observation_size="84x84"),
        learner=A2CConfig(
            lr=7e-4,
            lr_schedule="linear",
            value_coefficient=0.5,
            entropy_coefficient=0.01,
            max_gradient_norm=0.5,
            rmsprop_eps=1e-5,
            **_TENSORFLOW,
        ),
    )


def a3c(is_image: bool = True) -> TrainConfig:
    """A3C as in Stooke and Abbeel 2018 (arXiv:1803.02811): asynchronous learners of A2C

    Each of ``learners`` has 16 simulators of its own and A2C's settings; RMSProp's running mean is
    shared like the parameters. The paper has 3 learners.

    Deviations: those of a2c; all arrays of a chunk have one lock; steps of all learners are
    counted. docs/algorithms/a3c.md lists all.
    """
    return replace(a2c(is_image), algo="a3c", parallel=ParallelConfig(sync="store"))


def paac(num_envs: int = 32, is_image: bool = True) -> TrainConfig:
    """PAAC (Clemente et al. 2017, arXiv:1705.04862): A2C in which all environments wait for all

    The settings of the published code: one group, learning rate 0.0007 x num_envs falling to 0 over
    80 M steps, RMSProp with epsilon 0.1 inside the root, the loss times 5, gradient norm 3, entropy
    0.02, 84x84 images, the NIPS network (the larger one is model=paac_nature), whole games, nothing
    pressed at their start.

    Deviations: random first steps, time limits, how images are reduced, initial biases; and where
    code and paper differ, as in gradient norm and entropy, the preset follows the code.
    docs/algorithms/paac.md lists all.
    """
    if not is_image:
        return replace(a2c(is_image), algo="paac")
    return TrainConfig(
        algo="paac",
        model="nips",
        total_steps=80_000_000,
        schedule_steps=80_000_000,
        sampler=replace(_SAMPLER, num_envs=num_envs, horizon=5, num_groups=1),
        atari=AtariConfig(observation_size="84x84", episodic_lives=False, press_fire=False),
        learner=A2CConfig(
            lr=float(f"{7e-4 * num_envs:.6g}"),
            lr_schedule="linear",
            loss_reduction="sum_over_time",
            entropy_coefficient=0.02,
            max_gradient_norm=3.0,
            rmsprop_eps=0.1,
            **_TENSORFLOW,
        ),
    )


def ga3c(num_envs: int = 32, is_image: bool = True) -> TrainConfig:
    """GA3C (Babaeizadeh et al. 2017, arXiv:1611.06256): agents, predictors and trainers

    The settings of the paper and the published code: 32 agents of one environment each, 2
    predictors, 2 trainers and a tuner of these numbers; segments of up to 5 steps, the sum of the
    loss over a batch of at least 20 samples, RMSProp with epsilon 0.1 inside the root and learning
    rate 3e-4; 84x84 images, the NIPS network, whole games. num_groups agents share the
    environments.

    Observations that are no images have settings for small tasks, near those of a2c: 4 agents of 4
    environments, horizon 8, a predictor, a trainer, a queue of 8 segments, no tuner.

    Deviations: the last step of an episode is trained on, updates make new versions of the
    parameters, and the tuner, images, start and end of games differ from the published code.
    docs/algorithms/ga3c.md lists all.
    """
    if not is_image:
        return TrainConfig(
            algo="ga3c",
            total_steps=200_000,
            sampler=SamplerConfig(num_envs=16, num_groups=4, horizon=8),
            learner=GA3CConfig(
                lr=1e-3,
                lr_schedule="linear",
                loss_reduction="mean",
                entropy_coefficient=0.0,
                max_gradient_norm=0.5,
                rmsprop_decay=0.9,
                rmsprop_eps=1e-6,
                rmsprop_initial=0.0,
                num_predictors=1,
                num_trainers=1,
                min_training_batch=32,
                training_queue_size=8,
                tuner=False,
            ),
        )
    return TrainConfig(
        algo="ga3c",
        model="nips",
        total_steps=100_000_000,
        sampler=replace(
            _SAMPLER, num_envs=num_envs, horizon=5, num_groups=num_envs, affinity="auto"
        ),
        atari=AtariConfig(observation_size="84x84", episodic_lives=False, press_fire=False),
        learner=GA3CConfig(),
    )


def impala(num_envs: int = 32, is_image: bool = True) -> TrainConfig:
    """IMPALA (Espeholt et al. 2018, arXiv:1802.01561): A2C one update behind, with V-trace

    The paper's settings for Atari: updates of 32 environments x 20 steps whose loss is a sum over
    these, RMSProp with epsilon 0.01 inside the root, learning rate 6e-4 falling to 0 over 50 M
    steps, gradient norm 40, entropy 0.01, 84x84 images, the residual network.

    Deviations: the next rollout is collected while one is learned from, so that the policy that
    acts is exactly one update behind, instead of actors that go on by themselves; random first
    steps and time limits. docs/algorithms/impala.md lists all.
    """
    if not is_image:
        config = replace(a2c(is_image), algo="impala", overlap=True)
        return replace(config, learner=replace(_SMALL_A2C, vtrace=True))
    horizon = 20
    return TrainConfig(
        algo="impala",
        model="impala",
        total_steps=50_000_000,
        overlap=True,
        sampler=replace(_SAMPLER, num_envs=num_envs, horizon=horizon),
        atari=AtariConfig(observation_size="84x84"),
        learner=A2CConfig(
            vtrace=True,
            lr=6e-4,
            lr_schedule="linear",
            loss_reduction="sum",
            value_coefficient=0.25,  # the paper: 0.5, of half the square
            max_gradient_norm=40.0,
            rmsprop_eps=0.01,
            **_TENSORFLOW,
        ),
    )


def ppo(num_envs: int = 8, is_image: bool = True, has_memory: bool = False) -> TrainConfig:
    """PPO as in Stooke and Abbeel 2018 (arXiv:1803.02811)

    8 simulators x horizon 256: 2,048 steps in 4 minibatches, for 4 epochs; A3C-Net. More simulators
    have a shorter horizon, so that nothing else changes (section 5.2). 25 M steps is the length of
    the paper's policy-gradient runs (table 1).

    Observations that are no images have the usual settings for such tasks instead: minibatches of
    64 for 10 epochs, a constant learning rate of 3e-4, normalised observations, rewards and
    advantages, no entropy bonus, and all simulators in the process that learns.

    Deviations: a time limit and a lost extra life are treated otherwise than in the published code,
    and minibatches must divide the rollout. docs/algorithms/ppo.md lists all.
    """
    horizon = _ppo_horizon(num_envs)
    if not is_image:
        learner = PPOConfig(**_SMALL_PPO, lr_schedule="constant", value_coefficient=0.5)
        if has_memory:  # whole sequences
            learner = replace(learner, minibatch_size=horizon)
        return _small("ppo", num_envs, horizon, learner)
    return TrainConfig(
        algo="ppo",
        total_steps=25_000_000,
        sampler=replace(_SAMPLER, num_envs=num_envs, horizon=horizon),
        learner=PPOConfig(),
    )


def appo(is_image: bool = True, has_memory: bool = False) -> TrainConfig:
    """APPO as in Stooke and Abbeel 2018 (arXiv:1803.02811): asynchronous learners of PPO

    Each of ``learners`` has 8 simulators of its own. A quarter of PPO's learning rate, constant,
    gradient norm 0.5, Adam with up to 4 local steps between two exchanges with the store (appendix
    B), whose parameters are taken over every 64 steps while sampling. The paper has 8 learners.

    Deviations: those of ppo; steps left over between exchanges are kept; Adam corrects its bias by
    the store's count. docs/algorithms/appo.md lists all.
    """
    if not is_image:
        small = ppo(is_image=False, has_memory=has_memory)
        return replace(small, algo="appo", parallel=ParallelConfig(sync="store"))
    return replace(
        ppo(),
        algo="appo",
        parallel=ParallelConfig(sync="store", sync_period=4, pull_steps=64),
        learner=PPOConfig(lr=2.5e-4, lr_schedule="constant", max_gradient_norm=0.5),
    )


def ppo_baselines() -> TrainConfig:
    """PPO with the settings of OpenAI's baselines, to compare with its published curves

    8 simulators x horizon 128, 4 minibatches, 4 epochs, 84x84 images, the network of Mnih et al.
    2015, normalised advantages, clipped values, learning rate and clip range falling to 0 over 10 M
    steps, of which a shorter run has the first part.

    Deviations: random first steps, time limits, and the actions that start a game.
    docs/algorithms/ppo.md lists all.
    """
    return TrainConfig(
        algo="ppo_baselines",
        model="nature",
        total_steps=10_000_000,
        schedule_steps=10_000_000,
        sampler=replace(_SAMPLER, num_envs=8, horizon=128),
        atari=AtariConfig(observation_size="84x84"),
        learner=PPOConfig(
            lr=2.5e-4,
            value_coefficient=0.25,  # baselines: 0.5, of half the square
            max_gradient_norm=0.5,
            normalize_advantage=True,
            minibatch_size=256,
            clip_range=0.1,
            clip_value=True,
        ),
    )


def ppo_mujoco(num_envs: int = 1) -> TrainConfig:
    """PPO for MuJoCo, with the settings of CleanRL's ppo_continuous_action (arXiv:2111.08819)

    One simulator x horizon 2,048, 32 minibatches of 64, 10 epochs; observations, rewards and
    advantages normalised, clipped values, a learning rate that falls to 0 over the run. More
    simulators have a shorter horizon, so that nothing else changes. They are stepped in the
    process that learns; num_workers=none gives them processes of their own.

    Deviations: time limits, and moments that change once a rollout. docs/algorithms/ppo.md lists
    all.
    """
    return TrainConfig(
        algo="ppo_mujoco",
        env="HalfCheetah-v5",
        total_steps=1_000_000,
        sampler=replace(_SMALL, num_envs=num_envs, horizon=_ppo_horizon(num_envs)),
        learner=MujocoPPOConfig(
            **_SMALL_PPO,
            value_coefficient=0.25,  # CleanRL: 0.5, of half the square
            clip_schedule="constant",
            clip_value=True,
        ),
    )


# Stooke and Abbeel 2018 (arXiv:1803.02811), appendix: learning rates of DQN by batch size.
_DQN_LR = {32: 2.5e-4, 512: 7.5e-4, 1024: 1.5e-3}


def dqn(batch_size: int | None = None, is_image: bool = True) -> TrainConfig:
    """DQN as in Stooke and Abbeel 2018 (arXiv:1803.02811)

    Training intensity 8, replay of 1 M steps, RMSProp; at least 32 simulators x horizon 4, and
    enough for one update of the batch in each iteration. The learning rate is the paper's at batch
    sizes 32, 512 and 1,024, interpolated between and beyond them in logarithms. 50 M steps is the
    length of the paper's Q-learning runs.

    Observations that are no images have settings for small tasks: 4 simulators in the process that
    learns, 3-step returns, Adam with learning rate 1e-3 falling to 0, batches of 64, training
    intensity 32, replay of 50,000 steps, learning from step 1,000 on, epsilon falling to 0.04
    within 8,000 steps.

    Deviations: epsilon falls from the first step on, schedules count the steps of all learners, and
    time limits and evaluations differ from the published code. docs/algorithms/dqn.md lists all.
    """
    return _dqn("dqn", batch_size, is_image, double=False)


def async_dqn(batch_size: int | None = None, is_image: bool = True) -> TrainConfig:
    """Asynchronous learners of DQN, as in Stooke and Abbeel 2018 (arXiv:1803.02811)

    Each of ``learners`` has simulators, batches and a share of the replay of its own; epsilon, the
    target network's updates and the start of learning count the steps of all of them. The paper has
    up to 4 learners with batches of 512.

    Deviations: those of dqn; all arrays of a chunk have one lock. docs/algorithms/dqn.md lists all.
    """
    config = dqn(512 if batch_size is None and is_image else batch_size, is_image)
    return replace(config, algo="async_dqn", parallel=ParallelConfig(sync="store"))


def double_dqn(batch_size: int | None = None, is_image: bool = True) -> TrainConfig:
    """Double DQN (van Hasselt et al. 2016, arXiv:1509.06461) in the setting of dqn

    The online network chooses the action, the target network values it. Nothing else differs from
    dqn, so the other settings are not those of van Hasselt et al. docs/algorithms/dqn.md lists all
    deviations.
    """
    return _dqn("double_dqn", batch_size, is_image, double=True)


def cat_dqn(batch_size: int | None = None, is_image: bool = True) -> TrainConfig:
    """Categorical DQN as in Stooke and Abbeel 2018 (arXiv:1803.02811)

    51 atoms from -10 to 10; Adam with epsilon 0.01 / batch_size, learning rate 2.5e-4, and 4.2e-4
    from batch size 256 on. The paper's large batch is 2,048.

    Deviations: those of dqn; probabilities are not clipped before the logarithm.
    docs/algorithms/cat_dqn.md lists all.
    """
    if not is_image:
        return _small_q("cat_dqn", batch_size, **_SMALL_ATOMS)
    batch_size = 32 if batch_size is None else batch_size
    learner = DQNConfig(
        lr=4.2e-4 if batch_size >= 256 else 2.5e-4,
        optimizer="adam",
        num_atoms=51,
        epsilon_final=0.01,
        epsilon_evaluation=0.001,
    )
    return _q_learning("cat_dqn", batch_size, learner)


def qr_dqn(batch_size: int | None = None, is_image: bool = True) -> TrainConfig:
    """QR-DQN (Dabney et al. 2017, arXiv:1710.10044) in the setting of cat_dqn

    200 quantiles of the return at evenly spaced levels; Adam with epsilon 0.01 / batch_size and the
    paper's learning rate, 5e-5.

    Deviations: those of dqn. docs/algorithms/iqn.md lists all.
    """
    return _quantiles("qr_dqn", batch_size, is_image, quantiles="fixed", num_atoms=200)


def iqn(batch_size: int | None = None, is_image: bool = True) -> TrainConfig:
    """IQN (Dabney et al. 2018, arXiv:1806.06923) in the setting of cat_dqn

    64 quantiles of the return at random levels, which are an input of the network; Adam with
    epsilon 0.01 / batch_size and the paper's learning rate, 5e-5.

    Deviations: those of dqn; actions are chosen by 64 evenly spaced levels instead of 32 random
    ones. docs/algorithms/iqn.md lists all.
    """
    return _quantiles("iqn", batch_size, is_image, quantiles="implicit", num_atoms=64)


def rainbow(batch_size: int | None = None, is_image: bool = True) -> TrainConfig:
    """Epsilon-Rainbow as in Stooke and Abbeel 2018 (arXiv:1803.02811)

    Rainbow (Hessel et al. 2018, arXiv:1710.02298) with epsilon instead of noisy layers: double,
    dueling, prioritized, 3-step, 51 atoms; Adam with epsilon 0.005 / batch_size, learning rate
    6.25e-5 at every batch size.

    Deviations: those of cat_dqn; draws by priority are stratified and with replacement.
    docs/algorithms/rainbow.md lists all.
    """
    if not is_image:
        parts: dict[str, Any] = {"double": True, "dueling": True, "prioritized": True}
        return _small_q("rainbow", batch_size, **parts, **_SMALL_ATOMS)
    batch_size = 512 if batch_size is None else batch_size
    learner = DQNConfig(
        lr=6.25e-5,
        optimizer="adam",
        adam_eps=0.005 / max(1, batch_size),
        double=True,
        dueling=True,
        num_atoms=51,
        n_step=3,
        prioritized=True,
        priority_alpha=0.5,
        learning_starts=20_000,
        target_update_interval=8_000,
        max_gradient_norm=10.0,
        epsilon_final=0.01,
        epsilon_steps=62_500,
        epsilon_evaluation=0.001,
    )
    return _q_learning("rainbow", batch_size, learner)


def btr(batch_size: int | None = None, is_image: bool = True) -> TrainConfig:
    """BTR, "Beyond the Rainbow" (Clark et al. 2024, arXiv:2411.03820)

    Rainbow with implicit quantiles instead of atoms, Munchausen targets, noisy layers beside
    epsilon, and IMPALA's residual network at twice the width with spectral normalization and
    adaptive max pooling. 64 simulators, one update with 256 transitions for each step of all, which
    comes while they step; Adam with learning rate 1e-4 and epsilon 0.005 / batch_size; sticky
    actions, whole games.

    Deviations: epsilon falls linearly and stays at 0.01, the bonus is the target network's as in
    the Munchausen paper, and time limits. docs/algorithms/btr.md lists all.
    """
    parts: dict[str, Any] = {
        "quantiles": "implicit",
        "num_atoms": 8,
        "munchausen": True,
        "noisy": True,
        "dueling": True,
        "prioritized": True,
        "priority_alpha": 0.2,
    }
    if not is_image:
        return _small_q("btr", batch_size, **parts)
    batch_size, num_envs = 256 if batch_size is None else batch_size, 64
    learner = DQNConfig(
        lr=1e-4,
        optimizer="adam",
        adam_eps=0.005 / max(1, batch_size),
        gamma=0.997,
        n_step=3,
        batch_size=batch_size,
        training_intensity=4.0,  # 256 / 64
        learning_starts=200_000,
        buffer_size=1_048_576,
        target_update_interval=125 * batch_size,  # 500 updates
        max_gradient_norm=10.0,
        epsilon_final=0.01,
        epsilon_steps=2_000_000,
        epsilon_evaluation=0.01,
        **parts,
    )
    config = _q_learning("btr", batch_size, learner)
    return replace(
        config,
        model="btr",
        overlap=True,
        sampler=replace(config.sampler, num_envs=num_envs, horizon=1),
        atari=AtariConfig(
            observation_size="84x84", sticky_actions=0.25, episodic_lives=False, press_fire=False
        ),
    )


def r2d2(is_image: bool = True) -> TrainConfig:
    """R2D2 (Kapturowski et al. 2019): Q-learning from sequences, with an LSTM

    The paper's settings for Atari: 256 simulators, each with an epsilon of its own, batches of 64
    sequences of 80 steps after a burn-in of 40, 5-step double Q-learning, dueling streams, values
    rescaled (Pohlen et al. 2018, arXiv:1805.11593) instead of rewards clipped, priorities, Adam
    with learning rate 1e-4 and epsilon 1e-3, replay of 4 M steps; the LSTM also gets the action and
    the reward before each image. Each step is learned from once, on average.

    Observations that are no images have settings for small tasks: those of dqn, with batches of 16
    sequences of 16 steps after a burn-in of 4, training intensity 16, an LSTM of 64 units.

    Deviations: synchronous, episodes that end within sequences, random first steps, and importance
    weights. docs/algorithms/r2d2.md lists all.
    """
    if not is_image:
        small = _small_q(
            "r2d2",
            256,
            double=True,
            dueling=True,
            value_rescaling=True,
            prioritized=True,
            sequence_length=16,
            burn_in=4,
            training_intensity=16.0,
            target_update_interval=1_600,
        )
        sampler = replace(small.sampler, horizon=16)
        return replace(small, memory="lstm", previous_action_reward=True, sampler=sampler)
    batch_size, num_envs = 64 * 80, 256
    return TrainConfig(
        algo="r2d2",
        model="nature",
        memory="lstm",
        previous_action_reward=True,
        total_steps=100_000_000,
        # One update in each iteration.
        sampler=replace(_SAMPLER, num_envs=num_envs, horizon=batch_size // num_envs),
        atari=AtariConfig(observation_size="84x84", clip_reward=False, episodic_lives=False),
        learner=DQNConfig(
            lr=1e-4,
            gamma=0.997,
            n_step=5,
            double=True,
            dueling=True,
            value_rescaling=True,
            sequence_length=80,
            burn_in=40,
            batch_size=batch_size,
            training_intensity=1.0,
            learning_starts=100_000,
            buffer_size=4_000_000,
            target_update_interval=None,
            optimizer="adam",
            adam_eps=1e-3,
            prioritized=True,
            priority_alpha=0.9,
            priority_beta=0.6,
            priority_beta_steps=100_000_000,
            epsilon_per_env=True,
            epsilon_final=0.4,
            epsilon_steps=1,
            epsilon_evaluation=0.001,
        ),
    )


def pqn(is_image: bool = True) -> TrainConfig:
    """PQN (Gallici et al. 2024, arXiv:2407.04811): Q-learning without replay or target network

    The settings of the paper's code for Atari games: 128 simulators x horizon 32, Q(lambda) returns
    with lambda 0.65, 32 minibatches of 128, 2 epochs, rectified Adam with learning rate 2.5e-4,
    gradient norm 10, epsilon falling to 0.001 over a tenth of the run; 84x84 images, the network of
    Mnih et al. 2015 with layer normalization.

    Observations that are no images have settings for small tasks: 16 simulators in the process that
    learns, lambda 0.9, minibatches of 64 for 4 epochs, learning rate 1e-3 falling to 0.

    Deviations: random first steps, time limits, layer normalization and initial weights as in
    CleanRL, and epsilon changes between rollouts. docs/algorithms/pqn.md lists all.
    """
    if not is_image:
        return _small("pqn", 16, 32, _SMALL_PQN)
    return TrainConfig(
        algo="pqn",
        total_steps=50_000_000,
        sampler=replace(_SAMPLER, num_envs=128, horizon=32),
        atari=AtariConfig(observation_size="84x84"),
        learner=PQNConfig(),
    )


def sac() -> TrainConfig:
    """Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905): floats between bounds

    Table 1 of the paper, with 8 simulators: one update with a batch of 256 for each step, after
    1,000 random ones.

    Deviations: policy, critics and alpha are updated at once, from the same parameters.
    docs/algorithms/sac.md lists all.
    """
    return TrainConfig(
        algo="sac",
        env="HalfCheetah-v5",
        total_steps=1_000_000,
        sampler=replace(_SAMPLER, num_envs=8, horizon=1, decorrelation_steps=0),
        learner=SACConfig(),
    )


PRESETS: dict[str, Callable[..., TrainConfig]] = {
    preset.__name__: preset
    for preset in (
        *(a2c, a2c_baselines, a3c, paac, ga3c, impala),
        *(ppo, appo, ppo_baselines, ppo_mujoco),
        *(dqn, async_dqn, double_dqn, cat_dqn, qr_dqn, iqn),
        *(rainbow, btr, r2d2, pqn, sac),
    )
}


def find_preset(name: str) -> Callable[..., TrainConfig]:
    """Return the preset that ``algo=name`` chooses: one of `PRESETS`, or one of the user's own.

    Args:
        name: A name in `PRESETS`, or ``module:function``; the module is imported. The function
            returns a `TrainConfig`, whose ``algo`` is then ``name``.
    """
    if name in PRESETS:
        return PRESETS[name]
    if ":" not in name:
        raise ValueError(
            f"algo={name} is unknown; use one of {', '.join(PRESETS)}, or module:function"
        )
    function = find_function("algo", name)

    @functools.wraps(function)
    def preset(**scales: object) -> TrainConfig:
        try:
            config = function(**scales)
        except FAILURES as error:
            raise ValueError(
                f"algo={name}: the function raised {type(error).__name__}: {error}"
                f"{place_of(error)}; it must return a TrainConfig when it is called without "
                f"arguments"
            ) from error
        if not isinstance(config, TrainConfig):
            raise ValueError(
                f"algo={name}: the function returned an object of class {type(config).__name__}; "
                f"it must return a TrainConfig, as in `return TrainConfig(learner=MyConfig())`"
            )
        return replace(config, algo=name)

    return preset


def sees_images(spec: EnvSpec) -> bool:
    """Return whether observations are images: numbers in rows and columns.

    Of a mapping a part must have at least 16 of both, as small boards go into dense layers.
    """
    seen = without_mask(spec.observation)
    if isinstance(seen, Leaf):
        return len(seen.shape) > 1
    return any(sum(size >= 16 for size in leaf.shape) >= 2 for _, leaf in leaves_of(seen))


def describe_settings(config: TrainConfig, spec: EnvSpec) -> str | None:
    """Return which of its settings the preset of a run has, or None if it has the same for all."""
    preset = find_preset(config.algo)
    if "is_image" not in parameters_of(preset):
        return None
    kind = "images" if sees_images(spec) else "observations that are no images"
    return f"algo={config.algo} with its settings for {kind}"


def parameters_of(preset: Callable[..., TrainConfig]) -> Mapping[str, object]:
    """Return the parameters that ``preset`` takes, by name."""
    try:
        return inspect.signature(preset).parameters
    except (ValueError, TypeError):  # of what is built in
        return {}


def _ppo_horizon(num_envs: int) -> int:
    if num_envs < 1 or PPO_BATCH % num_envs:
        raise ValueError(
            f"num_envs={num_envs} does not divide PPO's {PPO_BATCH} steps of one rollout; use a "
            f"power of two up to {PPO_BATCH}, or give horizon as well"
        )
    return PPO_BATCH // num_envs


def _q_learning(algo: str, batch_size: int, learner: DQNConfig) -> TrainConfig:
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; it must be at least 1")
    # Even, for two groups.
    num_envs = max(32, 2 * ceil(batch_size / (learner.training_intensity * Q_HORIZON) / 2))
    return TrainConfig(
        algo=algo,
        total_steps=50_000_000,
        evaluation_interval=1_000_000,
        sampler=replace(_SAMPLER, num_envs=num_envs, horizon=Q_HORIZON),
        learner=replace(learner, batch_size=batch_size),
    )


def _dqn(algo: str, batch_size: int | None, is_image: bool, *, double: bool) -> TrainConfig:
    if not is_image:
        return _small_q(algo, batch_size, double=double)
    batch_size = 32 if batch_size is None else batch_size
    return _q_learning(algo, batch_size, DQNConfig(lr=_dqn_lr(batch_size), double=double))


def _quantiles(algo: str, batch_size: int | None, is_image: bool, **parts: Any) -> TrainConfig:
    if not is_image:
        return _small_q(algo, batch_size, **parts | {"num_atoms": 32})
    learner = DQNConfig(
        lr=5e-5, optimizer="adam", epsilon_final=0.01, epsilon_evaluation=0.001, **parts
    )
    return _q_learning(algo, 32 if batch_size is None else batch_size, learner)


def _small_q(algo: str, batch_size: int | None, **more: Any) -> TrainConfig:
    """Q-learning of small tasks; ``more``: what is the algorithm's own."""
    learner = DQNConfig(
        lr=1e-3,
        lr_schedule="linear",
        optimizer="adam",
        max_gradient_norm=10.0,
        batch_size=64 if batch_size is None else batch_size,
        n_step=3,
        training_intensity=32.0,
        learning_starts=1_000,
        buffer_size=50_000,
        target_update_interval=256,
        epsilon_final=0.04,
        epsilon_steps=8_000,
    )
    return _small(algo, 4, 4, replace(learner, **more))


def _small(algo: str, num_envs: int, horizon: int, learner: LearnerConfig) -> TrainConfig:
    """The settings of a preset for observations that are no images."""
    sampler = replace(_SMALL, num_envs=num_envs, horizon=horizon)
    return TrainConfig(algo=algo, total_steps=200_000, sampler=sampler, learner=learner)


def _dqn_lr(batch_size: int) -> float:
    if batch_size in _DQN_LR:
        return _DQN_LR[batch_size]
    sizes, rates = list(_DQN_LR), list(_DQN_LR.values())
    i = 1 if batch_size > sizes[1] else 0
    slope = log(rates[i + 1] / rates[i]) / log(sizes[i + 1] / sizes[i])
    return float(f"{rates[i] * exp(slope * log(max(1, batch_size) / sizes[i])):.3g}")
