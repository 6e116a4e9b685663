"""Networks: from a batch of observations to action logits and values."""

from accel_rl.models.make import MODEL_NAMES, make_model
from accel_rl.models.memory import (
    MemorySpec,
    PreviousInputs,
    RecurrentModel,
    Sequences,
    WithMemory,
    one_step,
)
from accel_rl.models.policy_value import PolicyValue, PolicyValueModel
from accel_rl.models.q_value import QHead, QModel
from accel_rl.models.soft import TwinCritics, flat

__all__ = [
    "MODEL_NAMES",
    "MemorySpec",
    "PolicyValue",
    "PolicyValueModel",
    "PreviousInputs",
    "QHead",
    "QModel",
    "RecurrentModel",
    "Sequences",
    "TwinCritics",
    "WithMemory",
    "flat",
    "make_model",
    "one_step",
]
