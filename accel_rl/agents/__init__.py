"""Agents: a network and the way actions are chosen from it."""

from accel_rl.agents.agent import Agent
from accel_rl.agents.batch import RolloutTensors
from accel_rl.agents.categorical import CategoricalAgent, sample_categorical
from accel_rl.agents.epsilon_greedy import EpsilonGreedyAgent, epsilon_greedy

__all__ = [
    "Agent",
    "CategoricalAgent",
    "EpsilonGreedyAgent",
    "RolloutTensors",
    "epsilon_greedy",
    "sample_categorical",
]
