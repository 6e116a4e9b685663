"""How learners apply gradients: flat parameters, update rules, and the exchange between them."""

from accel_rl.parallel.exchange import Exchange, Local
from accel_rl.parallel.flat import FlatParameters
from accel_rl.parallel.rules import Adam, RMSProp, Rule, adam_, rmsprop_

__all__ = [
    "Adam",
    "Exchange",
    "FlatParameters",
    "Local",
    "RMSProp",
    "Rule",
    "adam_",
    "rmsprop_",
]
