"""Flat parameters, update rules, and the exchange of gradients between learners."""

from accel_rl.parallel.all_reduce import AllReduce, fingerprint
from accel_rl.parallel.config import ParallelConfig
from accel_rl.parallel.flat import FlatParameters
from accel_rl.parallel.gradient_sync import GradientSync, Local
from accel_rl.parallel.group import Group, TeamError, TorchGroup
from accel_rl.parallel.meeting import MachineStore, meet_by_store
from accel_rl.parallel.multi_step_adam import MultiStepAdam
from accel_rl.parallel.ranks import ALONE, Ranks, rank_seed, read_ranks
from accel_rl.parallel.rules import (
    Adam,
    ParameterRule,
    RAdam,
    RMSProp,
    UpdateRule,
    adam_,
    adam_rate,
    rmsprop_,
)
from accel_rl.parallel.running import Running, share_running
from accel_rl.parallel.shared_group import SharedGroup
from accel_rl.parallel.store import ParameterStore
from accel_rl.parallel.store_sync import StoreSync, create_store, open_store
from accel_rl.parallel.team import Team

__all__ = [
    "ALONE",
    "Adam",
    "AllReduce",
    "FlatParameters",
    "GradientSync",
    "Group",
    "Local",
    "MachineStore",
    "MultiStepAdam",
    "ParallelConfig",
    "ParameterRule",
    "ParameterStore",
    "RAdam",
    "RMSProp",
    "Ranks",
    "Running",
    "SharedGroup",
    "StoreSync",
    "Team",
    "TeamError",
    "TorchGroup",
    "UpdateRule",
    "adam_",
    "adam_rate",
    "create_store",
    "fingerprint",
    "meet_by_store",
    "open_store",
    "rank_seed",
    "read_ranks",
    "rmsprop_",
    "share_running",
]
