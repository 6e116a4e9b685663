"""Algorithms: losses and returns as pure functions, and learners that use them."""

from accel_rl.algos.a2c import A2C, A2CConfig
from accel_rl.algos.actor_critic import (
    ActorCritic,
    ActorCriticConfig,
    Steps,
    bootstrap_values,
    evaluate_steps,
    fold_ends,
    make_policy_agent,
)
from accel_rl.algos.dqn import DQN, DQNConfig
from accel_rl.algos.learner import Learner, LearnerConfig
from accel_rl.algos.optimizer import Optimizer, masked_shares
from accel_rl.algos.ppo import PPO, PPOConfig
from accel_rl.algos.pqn import PQN, PQNConfig
from accel_rl.algos.replay import Transitions
from accel_rl.algos.replay_config import ReplayConfig
from accel_rl.algos.replay_learner import ReplayLearner
from accel_rl.algos.returns import discounted_returns, fold_truncation, generalized_advantages
from accel_rl.algos.sac import SAC, SACConfig
from accel_rl.algos.specs import Batch, LearnerSpec, NetworkSpec

__all__ = [
    "A2C",
    "DQN",
    "PPO",
    "PQN",
    "SAC",
    "A2CConfig",
    "ActorCritic",
    "ActorCriticConfig",
    "Batch",
    "DQNConfig",
    "Learner",
    "LearnerConfig",
    "LearnerSpec",
    "NetworkSpec",
    "Optimizer",
    "PPOConfig",
    "PQNConfig",
    "ReplayConfig",
    "ReplayLearner",
    "SACConfig",
    "Steps",
    "Transitions",
    "bootstrap_values",
    "discounted_returns",
    "evaluate_steps",
    "fold_ends",
    "fold_truncation",
    "generalized_advantages",
    "make_policy_agent",
    "masked_shares",
]
