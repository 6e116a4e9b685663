"""Each algorithm learns what can be learned, and has to learn it."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from learning_runs import Run

from accel_rl.algos import (
    A2CConfig,
    DQNConfig,
    LearnerConfig,
    PPOConfig,
    PQNConfig,
)
from accel_rl.cli.parse import parse_arguments
from accel_rl.samplers import SamplerConfig

EXAMPLES = Path(__file__).parents[2] / "examples"

Q_SAMPLER = SamplerConfig(num_envs=8, horizon=4)
CATCH_DQN = DQNConfig(
    lr=1e-3,
    optimizer="adam",
    adam_eps=1e-5,
    training_intensity=4,
    learning_starts=1_000,
    buffer_size=20_000,
    target_update_interval=1_000,
    epsilon_steps=10_000,
    epsilon_evaluation=0.0,
    priority_beta_steps=50_000,
)

CAT = replace(CATCH_DQN, num_atoms=21, v_min=-1.5, v_max=1.5, lr=2e-3)
QUANTILES = replace(CATCH_DQN, num_atoms=8, lr=2e-3)
IQN = replace(QUANTILES, quantiles="implicit")
CATCH_PQN = PQNConfig(lr=1e-3, minibatch_size=80, epsilon_final=0.01, exploration_fraction=0.5)

CATCH: dict[str, tuple[LearnerConfig, SamplerConfig]] = {
    "a2c": (A2CConfig(lr=2e-3), SamplerConfig(num_envs=16, horizon=10)),
    "ppo": (PPOConfig(minibatch_size=80), SamplerConfig(num_envs=16, horizon=20)),
    "pqn": (CATCH_PQN, SamplerConfig(num_envs=16, horizon=20)),
    "dqn": (CATCH_DQN, Q_SAMPLER),
    "double_dueling": (replace(CATCH_DQN, double=True, dueling=True), Q_SAMPLER),
    "prioritized": (replace(CATCH_DQN, prioritized=True, n_step=3), Q_SAMPLER),
    "cat_dqn": (CAT, Q_SAMPLER),
    "rainbow": (
        replace(CAT, double=True, dueling=True, prioritized=True, n_step=3),
        Q_SAMPLER,
    ),
    "qr_dqn": (replace(QUANTILES, quantiles="fixed"), Q_SAMPLER),
    "iqn": (IQN, Q_SAMPLER),
    "btr": (
        replace(IQN, dueling=True, prioritized=True, n_step=3, munchausen=True, noisy=True),
        Q_SAMPLER,
    ),
}


def learn_catch(algorithm: str, seed: int) -> tuple[float, float]:
    """Mean return before and after; 0.9 is 95 % of the balls caught."""
    run = Run("catch", CATCH[algorithm], seed)
    untrained = run.mean_return(episodes=500)
    steps = 100_000 if algorithm in ("a2c", "ppo") else 40_000
    return untrained, run.learn(steps, enough=0.9, episodes=500)


# Rainbow is what the others put together.
PARTS = ("double_dueling", "prioritized", "cat_dqn", "qr_dqn", "iqn", "btr")
QUICK = [algorithm for algorithm in CATCH if algorithm not in PARTS]
SLOW = [(each, seed) for each in CATCH for seed in range(3) if seed or each not in QUICK]


@pytest.mark.parametrize(
    ("algorithm", "seed"),
    [
        *(pytest.param(each, 0, marks=pytest.mark.slow) for each in QUICK),
        *(pytest.param(*each, marks=pytest.mark.nightly) for each in SLOW),
    ],
)
def test_catch_is_learned_and_not_known_before(algorithm: str, seed: int) -> None:
    untrained, trained = learn_catch(algorithm, seed)
    assert untrained < 0
    assert trained >= 0.9


class LastStep(gymnasium.Env[np.ndarray, int]):
    """Three steps up to a time limit; the last is paid if its action was ``right``."""

    observation_space = gymnasium.spaces.Box(0, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, right: int) -> None:
        self.right, self.t = right, 0

    def reset(self, **_: Any) -> tuple[np.ndarray, dict[str, Any]]:
        self.t = 0
        return np.eye(4, dtype=np.float32)[0], {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        is_last = self.t == 3
        reward = float(is_last and action == self.right)
        return np.eye(4, dtype=np.float32)[self.t], reward, False, is_last, {}


@pytest.mark.parametrize(
    "algorithm",
    [
        "a2c",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("pqn", "dqn", "prioritized")),
    ],
)
def test_reward_of_the_step_that_meets_a_time_limit_is_learned(algorithm: str) -> None:
    config, sampler = CATCH[algorithm]
    if isinstance(config, DQNConfig):
        config = replace(
            config, learning_starts=200, epsilon_steps=1_000, target_update_interval=200
        )
    for right in (0, 1):  # an untrained network prefers one of them
        run = Run(partial(LastStep, right), (config, sampler), seed=0)
        run.train(steps={"a2c": 6_000, "pqn": 12_000}.get(algorithm, 2_000))
        assert run.mean_return(episodes=100) >= 0.9


class Doors(gymnasium.Env[Any, int]):
    """A row of five rooms, from the first to behind the last, at a cost of 1 a step.

    Two of four doors are open in each room, other ones in each: one leads on, one back. What is
    hoped for behind closed doors, which are never tried, is better than any way there is.
    """

    observation_space = gymnasium.spaces.Dict(
        {
            "observation": gymnasium.spaces.Box(0, 1, (6,), np.float32),
            "action_mask": gymnasium.spaces.MultiBinary(4),
        }
    )
    action_space = gymnasium.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.room = self.t = 0
        return self.observe(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.observe()["action_mask"][action]
        self.t += 1
        self.room = self.room + 1 if action == self.onward() else max(0, self.room - 1)
        return self.observe(), -1.0, self.room == 5, self.t == 40, {}

    def onward(self) -> int:
        return (0, 3, 1, 2, 0)[self.room]

    def observe(self) -> Any:
        mask = np.zeros(4, np.int8)
        if self.room < 5:
            mask[[self.onward(), (self.onward() + 1) % 4]] = 1
        return {"observation": np.eye(6, dtype=np.float32)[self.room], "action_mask": mask}


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm", ["pqn", "dqn", pytest.param("rainbow", marks=pytest.mark.nightly)]
)
def test_shortest_way_through_open_doors_is_learned(algorithm: str) -> None:
    config, sampler = CATCH[algorithm]
    config = replace(config, gamma=0.9)
    if isinstance(config, DQNConfig):
        config = replace(
            config, learning_starts=500, epsilon_steps=4_000, target_update_interval=200
        )
        if config.num_atoms > 1:
            config = replace(config, v_min=-10.0, v_max=10.0)
    run = Run(Doors, (config, sampler), seed=0)
    assert run.mean_return(episodes=50) < -15
    run.train(steps=8_000)
    assert run.mean_return(episodes=200) >= -5.0


@pytest.mark.nightly
@pytest.mark.parametrize(
    "options",
    [
        "algo=a2c env=CartPole-v1 total_steps=100000",
        "algo=ppo env=CartPole-v1 total_steps=50000",
        f"config={EXAMPLES}/cartpole_double_dqn.yaml",
    ],
    ids=["a2c", "ppo", "double_dqn"],
)
def test_cartpole_is_learned_by_presets_and_with_the_options_of_the_example(options: str) -> None:
    config = parse_arguments(options.split())
    run = Run(config.env, (config.learner, config.sampler), seed=0)
    assert run.mean_return(episodes=50) < 400
    # The task's own threshold.
    assert run.learn(config.total_steps, enough=475, episodes=50) >= 475
