"""How learners apply gradients: flat parameters, update rules, and the exchange between them."""

from accel_rl.parallel.exchange import Exchange, Local
from accel_rl.parallel.flat import FlatParameters
from accel_rl.parallel.rules import RMSProp, rmsprop_

__all__ = ["Exchange", "FlatParameters", "Local", "RMSProp", "rmsprop_"]
