"""Settings that all learners have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from math import isfinite
from typing import ClassVar, Literal

from accel_rl.parallel import LASAGNE_EPS, Rule
from accel_rl.settings import check_settings


@dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """Raises ValueError where a value is out of range."""

    built_by: ClassVar[str] = "accel_rl.training.build:build_rollouts"
    """the function that builds runs of it, as ``module:function``"""

    gamma: float = 0.99
    """discount of one step"""
    time_limit_terminal: bool = False
    """true: a time limit ends the task, as in the papers; false: the value goes on behind it, as it
    always does where a worker was lost before it took a step"""
    lr_schedule: Literal["constant", "linear"] = "constant"
    """linear: the learning rate falls to 0 over the run"""
    max_gradient_norm: float | None = None
    """the gradient is scaled down to this L2 norm; none: never"""
    gradient_norm_eps: float = LASAGNE_EPS
    """with max_gradient_norm, gradients are multiplied by min(norm, max_gradient_norm) / (norm +
    this): 1e-7 in Lasagne, 0 in TensorFlow, where gradients within the limit stay as they are"""
    precision: Literal["float32", "bfloat16"] = "float32"
    """of the network's arithmetic in updates, and on a CPU in acting where A2C or PPO learn from
    what that has computed; parameters and other acting are always float32, of which a GPU's
    convolutions may round their inputs to TF32, as is torch's default; on a CPU bfloat16 is slower
    without AVX-512"""
    log_norms: bool = False
    """metrics have the L2 norms of parameters, gradients and steps, whole and by layer"""
    gradient_cosine_interval: int = 0
    """updates between two measurements of the cosine between the gradients of half a batch and of
    all of it, for the metrics; 0: none"""

    def __post_init__(self) -> None:
        check_settings(self)
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float) and not isfinite(value):
                raise ValueError(f"{field.name} is {value}; it must be a finite number")
        require(self, "above 0", lambda value: value > 0, "max_gradient_norm")
        require(self, "from 0 to 1", lambda value: 0 <= value <= 1, "gamma")
        at_least_zero = ("gradient_norm_eps", "gradient_cosine_interval")
        require(self, "at least 0", lambda value: value >= 0, *at_least_zero)

    def check_halves(self, name: str, size: int) -> None:
        """Raises ValueError if batches of ``size``, option ``name``, have no halves to compare."""
        if self.gradient_cosine_interval and size < 2:
            raise ValueError(
                f"gradient_cosine_interval={self.gradient_cosine_interval} compares half a batch "
                f"with all of it, but {name} is {size}; use a larger {name}, or "
                "gradient_cosine_interval=0"
            )

    @property
    def rule(self) -> Rule:
        """The update rule, for the exchange."""
        raise NotImplementedError

    def remaining(self, progress: float) -> float:
        """The factor of the schedule when ``progress`` in [0, 1] of it is done."""
        return 1 - progress if self.lr_schedule == "linear" else 1.0


def require(config: object, what: str, holds: Callable[[float], bool], *names: str) -> None:
    """Raises ValueError for the first of the fields ``names`` that is a number and not ``what``."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not holds(value):
            raise ValueError(f"{name} is {value}; it must be {what}")
