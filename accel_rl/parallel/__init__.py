"""How learners apply gradients: flat parameters, update rules, and the exchange between them."""

from accel_rl.parallel.exchange import Exchange, Local
from accel_rl.parallel.flat import FlatParameters
from accel_rl.parallel.multi_step_adam import MultiStepAdam
from accel_rl.parallel.rules import Adam, RMSProp, Rule, adam_, rmsprop_
from accel_rl.parallel.store import ParameterStore
from accel_rl.parallel.store_exchange import StoreExchange

__all__ = [
    "Adam",
    "Exchange",
    "FlatParameters",
    "Local",
    "MultiStepAdam",
    "ParameterStore",
    "RMSProp",
    "Rule",
    "StoreExchange",
    "adam_",
    "rmsprop_",
]
