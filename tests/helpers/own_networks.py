"""Networks for the tests of ``model=module:function``, and what calls such functions."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

from accel_rl.models import MemorySpec, QHead, make_model
from accel_rl.spaces import Leaf

FLOAT32 = np.dtype(np.float32)
A = 3


class Net(nn.Module):
    """A policy and a value of what ``trunk`` makes of ``[N, 4]``, 8 features."""

    def __init__(self, trunk: nn.Module | None = None) -> None:
        super().__init__()
        self.trunk = nn.Linear(4, 8) if trunk is None else trunk
        self.policy = nn.Linear(8, A)
        self.value = nn.Linear(8, 1)

    def features(self, observation: Tensor) -> Tensor:
        x: Tensor = self.trunk(observation)
        return x

    def heads(self, x: Tensor) -> Any:
        return self.policy(x), self.value(x).squeeze(1)

    def forward(self, observation: Tensor) -> Any:
        return self.heads(self.features(observation))


class QNet(Net):
    """Values ``[N, A]`` alone, of a function that names no atoms."""

    def __init__(self, num_actions: int, observation_shape: Any = None) -> None:
        super().__init__()

    def heads(self, x: Tensor) -> Any:
        return self.policy(x)


MADE: dict[str, Callable[..., Any]] = {}
"""by name; the options of the tests name them as attributes of this module"""


def __getattr__(name: str) -> Callable[..., Any]:
    try:
        return MADE[name]
    except KeyError:
        raise AttributeError(name) from None


def make_own(
    make: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    memory: MemorySpec | None = None,
    **more: Any,
) -> Any:
    monkeypatch.setitem(MADE, "mine", make)
    head = QHead(A, **more) if more else A
    return make_model(f"{__name__}:mine", Leaf((4,), FLOAT32), head, memory)
