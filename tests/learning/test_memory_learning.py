"""Tasks that nobody can solve who remembers nothing, with a memory and without."""

from dataclasses import replace
from typing import Any

import pytest
from learning_runs import Run
from recall_env import Bandit, Recall

from accel_rl.algos import DQNConfig, PPOConfig
from accel_rl.samplers import SamplerConfig

pytestmark = pytest.mark.nightly

RAINBOW = DQNConfig(
    lr=2e-3,
    optimizer="adam",
    adam_eps=1e-5,
    batch_size=64,
    training_intensity=4,
    sequence_length=8,
    burn_in=4,
    learning_starts=1_000,
    buffer_size=20_000,
    target_update_interval=500,
    epsilon_steps=4_000,
    epsilon_evaluation=0.0,
    double=True,
    dueling=True,
    prioritized=True,
    priority_beta_steps=50_000,
    n_step=3,
    num_atoms=21,
    v_min=-1.5,
    v_max=1.5,
)
RESCALED = replace(
    RAINBOW,
    num_atoms=1,
    value_rescaling=True,
    prioritized=False,
    n_step=1,
    burn_in=0,
    gamma=0.9,
    epsilon_steps=2_500,
    target_update_interval=300,
)
SETTINGS: dict[str, Any] = {
    "rainbow": (RAINBOW, SamplerConfig(num_envs=8, horizon=4)),
    "rescaled": (RESCALED, SamplerConfig(num_envs=8, horizon=4)),
    "ppo": (PPOConfig(minibatch_size=64, lr=2.5e-3), SamplerConfig(num_envs=16, horizon=16)),
    "ppo-12": (PPOConfig(minibatch_size=96, lr=2.5e-3), SamplerConfig(num_envs=16, horizon=12)),
}


@pytest.mark.parametrize(
    ("algorithm", "network", "is_learned"),
    [
        ("rainbow", {"memory": "lstm"}, True),
        ("rainbow", {"memory": "gru"}, True),
        ("rainbow", {}, False),
        ("ppo", {"memory": "gru"}, True),
        ("ppo", {}, False),
    ],
    ids=["rainbow-lstm", "rainbow-gru", "rainbow", "ppo-gru", "ppo"],
)
def test_sign_shown_at_first_is_recalled_by_a_memory_alone(
    algorithm: str, network: dict[str, Any], is_learned: bool
) -> None:
    run = Run(Recall, SETTINGS[algorithm], seed=0, **network)
    assert run.mean_return(episodes=200) < 0.5
    score = run.learn(10_000, enough=0.9, episodes=200)
    assert score >= 0.9 if is_learned else score < 0.5


TOLD = {"memory": "gru", "previous_action_reward": True}


@pytest.mark.parametrize(
    ("algorithm", "network", "is_learned"),
    [
        ("ppo-12", TOLD, True),
        ("ppo-12", {"memory": "gru"}, False),
        ("rescaled", TOLD, True),
        ("rescaled", {"memory": "gru"}, False),
    ],
    ids=["ppo-told", "ppo", "dqn-told", "dqn"],
)
def test_arm_that_pays_is_found_by_who_is_told_what_actions_brought(
    algorithm: str, network: dict[str, Any], is_learned: bool
) -> None:
    run = Run(Bandit, SETTINGS[algorithm], seed=0, **network)
    assert run.mean_return(episodes=200) < 4  # one that knows nothing may stay with what it began
    score = run.learn(8_000, enough=4.1, episodes=200)
    assert score >= 4.1 if is_learned else score < 2
