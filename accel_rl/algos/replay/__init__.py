"""Replay: what simulators have gone through, to learn from again and again."""

from accel_rl.algos.replay.memory import Replay, Transitions, send
from accel_rl.algos.replay.priorities import Priorities, SumTree
from accel_rl.algos.replay.sequences import SequenceBatch, SequenceReplay
from accel_rl.algos.replay.spec import ReplaySpec, SequenceSpec

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
