"""Agents: a network and the way actions are chosen from it."""

from accel_rl.agents.agent import Agent
from accel_rl.agents.batch import HostFlags, RolloutTensors
from accel_rl.agents.bounded import BoundedAgent
from accel_rl.agents.distributions import (
    CATEGORICAL,
    Distribution,
    Drawn,
    Evaluated,
    make_distribution,
    sample_categorical,
)
from accel_rl.agents.normalizer import Normalizer, normalizer_state, set_normalizer
from accel_rl.agents.policy import PolicyAgent
from accel_rl.agents.q import QAgent, epsilon_greedy
from accel_rl.agents.recurrent_states import RecurrentStates

__all__ = [
    "CATEGORICAL",
    "Agent",
    "BoundedAgent",
    "Distribution",
    "Drawn",
    "Evaluated",
    "HostFlags",
    "Normalizer",
    "PolicyAgent",
    "QAgent",
    "RecurrentStates",
    "RolloutTensors",
    "epsilon_greedy",
    "make_distribution",
    "normalizer_state",
    "sample_categorical",
    "set_normalizer",
]
