"""Agents: a network and the way actions are chosen from it."""

from accel_rl.agents.activations import Activations
from accel_rl.agents.agent import Agent, AnyAgent
from accel_rl.agents.batch import RolloutTensors
from accel_rl.agents.categorical import CategoricalAgent, sample_categorical
from accel_rl.agents.epsilon_greedy import EpsilonGreedyAgent, epsilon_greedy
from accel_rl.agents.recurrent import RecurrentAgent
from accel_rl.agents.recurrent_states import RecurrentStates

__all__ = [
    "Activations",
    "Agent",
    "AnyAgent",
    "CategoricalAgent",
    "EpsilonGreedyAgent",
    "RecurrentAgent",
    "RecurrentStates",
    "RolloutTensors",
    "epsilon_greedy",
    "sample_categorical",
]
