"""Algorithms: losses and returns as pure functions, and learners that use them."""

from accel_rl.algos.a2c import A2C, A2CConfig
from accel_rl.algos.actor_critic import ActorCriticConfig
from accel_rl.algos.make import make_learner
from accel_rl.algos.ppo import PPO, PPOConfig
from accel_rl.algos.returns import discounted_returns, fold_truncation, generalized_advantages

__all__ = [
    "A2C",
    "PPO",
    "A2CConfig",
    "ActorCriticConfig",
    "PPOConfig",
    "discounted_returns",
    "fold_truncation",
    "generalized_advantages",
    "make_learner",
]
