"""Agents: a network and the way actions are chosen from it."""

from accel_rl.agents.agent import Agent, AnyAgent, AnyRecurrentAgent
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
from accel_rl.agents.epsilon_greedy import (
    EpsilonGreedyAgent,
    RecurrentEpsilonGreedyAgent,
    epsilon_greedy,
)
from accel_rl.agents.log_probs import LogProbs
from accel_rl.agents.normalizer import Normalizer, normalizer_state, set_normalizer
from accel_rl.agents.policy import PolicyAgent
from accel_rl.agents.recurrent import RecurrentAgent
from accel_rl.agents.recurrent_states import RecurrentStates

__all__ = [
    "CATEGORICAL",
    "Agent",
    "AnyAgent",
    "AnyRecurrentAgent",
    "BoundedAgent",
    "Distribution",
    "Drawn",
    "EpsilonGreedyAgent",
    "Evaluated",
    "HostFlags",
    "LogProbs",
    "Normalizer",
    "PolicyAgent",
    "RecurrentAgent",
    "RecurrentEpsilonGreedyAgent",
    "RecurrentStates",
    "RolloutTensors",
    "epsilon_greedy",
    "make_distribution",
    "normalizer_state",
    "sample_categorical",
    "set_normalizer",
]
