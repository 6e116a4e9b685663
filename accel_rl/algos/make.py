"""From its settings to a learner."""

from __future__ import annotations

from accel_rl.agents import CategoricalAgent
from accel_rl.algos.a2c import A2C, A2CConfig
from accel_rl.algos.actor_critic import ActorCriticConfig
from accel_rl.algos.ppo import PPO, PPOConfig
from accel_rl.parallel import Exchange


def make_learner(
    config: ActorCriticConfig, agent: CategoricalAgent, exchange: Exchange, seed: int
) -> A2C | PPO:
    """The learner that ``config`` is of; ``seed``: of its own randomness."""
    if isinstance(config, PPOConfig):
        return PPO(agent, config, exchange, seed)
    assert isinstance(config, A2CConfig)
    return A2C(agent, config, exchange)
