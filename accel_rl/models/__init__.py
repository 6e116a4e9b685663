"""Networks: from a batch of observations to action logits and values."""

from accel_rl.models.make import MODEL_NAMES, make_model, make_q_model, make_recurrent_model
from accel_rl.models.policy_value import PolicyValue, PolicyValueModel
from accel_rl.models.q_value import QModel
from accel_rl.models.recurrent import RecurrentModel, Sequences

__all__ = [
    "MODEL_NAMES",
    "PolicyValue",
    "PolicyValueModel",
    "QModel",
    "RecurrentModel",
    "Sequences",
    "make_model",
    "make_q_model",
    "make_recurrent_model",
]
