"""Algorithms: losses and returns as pure functions, and learners that use them."""

from accel_rl.algos.a2c import A2C, A2CConfig
from accel_rl.algos.actor_critic import ActorCriticConfig
from accel_rl.algos.dqn import DQN
from accel_rl.algos.dqn_config import DQNConfig
from accel_rl.algos.ga3c import GA3C, GA3CConfig, Samples
from accel_rl.algos.learner_config import LearnerConfig
from accel_rl.algos.make import AnyAgent, evaluating, make_agent, make_learner
from accel_rl.algos.ppo import PPO, PPOConfig
from accel_rl.algos.returns import discounted_returns, fold_truncation, generalized_advantages

__all__ = [
    "A2C",
    "DQN",
    "GA3C",
    "PPO",
    "A2CConfig",
    "ActorCriticConfig",
    "AnyAgent",
    "DQNConfig",
    "GA3CConfig",
    "LearnerConfig",
    "PPOConfig",
    "Samples",
    "discounted_returns",
    "evaluating",
    "fold_truncation",
    "generalized_advantages",
    "make_agent",
    "make_learner",
]
