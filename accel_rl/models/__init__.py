"""Networks: from a batch of observations to action logits and values."""

from accel_rl.models.make import MODEL_NAMES, make_model, make_q_model
from accel_rl.models.policy_value import PolicyValue, PolicyValueModel
from accel_rl.models.q_value import QModel

__all__ = [
    "MODEL_NAMES",
    "PolicyValue",
    "PolicyValueModel",
    "QModel",
    "make_model",
    "make_q_model",
]
