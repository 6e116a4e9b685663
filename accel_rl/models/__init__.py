"""Networks: from a batch of observations to action logits and state values."""

from accel_rl.models.make import MODEL_NAMES, make_model
from accel_rl.models.policy_value import PolicyValue, PolicyValueModel

__all__ = ["MODEL_NAMES", "PolicyValue", "PolicyValueModel", "make_model"]
