"""Flat parameters, update rules, and the exchange of gradients between learners."""

from accel_rl.parallel.all_reduce import AllReduce, fingerprint
from accel_rl.parallel.config import ParallelConfig
from accel_rl.parallel.exchange import Exchange, Local
from accel_rl.parallel.flat import FlatParameters
from accel_rl.parallel.group import Group, TeamError, TorchGroup
from accel_rl.parallel.meeting import MachineStore, meet_by_store
from accel_rl.parallel.multi_step_adam import MultiStepAdam
from accel_rl.parallel.ranks import ALONE, Ranks, rank_seed, read_ranks
from accel_rl.parallel.rules import (
    Adam,
    ParameterRule,
    RAdam,
    RMSProp,
    Rule,
    adam_,
    adam_rate,
    rmsprop_,
)
from accel_rl.parallel.running import Running, share_running
from accel_rl.parallel.shared_group import SharedGroup
from accel_rl.parallel.store import ParameterStore
from accel_rl.parallel.store_exchange import StoreExchange, create_store, open_store
from accel_rl.parallel.team import Team

__all__ = [
    "ALONE",
    "Adam",
    "AllReduce",
    "Exchange",
    "FlatParameters",
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
    "Rule",
    "Running",
    "SharedGroup",
    "StoreExchange",
    "Team",
    "TeamError",
    "TorchGroup",
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
