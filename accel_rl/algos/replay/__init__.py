"""Replay: what simulators have gone through, to learn from again and again."""

from accel_rl.algos.replay.memory import Replay, Transitions, send
from accel_rl.algos.replay.priorities import Priorities
from accel_rl.algos.replay.sequences import SequenceBatch, SequenceReplay
from accel_rl.algos.replay.spec import ReplaySpec, SequenceSpec
from accel_rl.algos.replay.sum_tree import SumTree

__all__ = [
    "Priorities",
    "Replay",
    "ReplaySpec",
    "SequenceBatch",
    "SequenceReplay",
    "SequenceSpec",
    "SumTree",
    "Transitions",
    "send",
]
