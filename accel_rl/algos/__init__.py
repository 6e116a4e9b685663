"""Algorithms: losses and returns as pure functions, and learners that use them."""

from accel_rl.algos.a2c import A2C, A2CConfig
from accel_rl.algos.returns import discounted_returns, fold_truncation, generalized_advantages

__all__ = [
    "A2C",
    "A2CConfig",
    "discounted_returns",
    "fold_truncation",
    "generalized_advantages",
]
