"""Agents: a network and the way actions are chosen from it."""

from accel_rl.agents.batch import RolloutTensors
from accel_rl.agents.categorical import CategoricalAgent, sample_categorical

__all__ = ["CategoricalAgent", "RolloutTensors", "sample_categorical"]
