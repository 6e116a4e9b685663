"""What a simulator must offer, and what one step of it returns.

Simulators write their observations straight into an array that the caller owns (a row of a rollout
in shared memory), so that nothing is copied afterwards. Everything here is NumPy: a simulator
process never loads torch.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from accel_rl.functions import FAILURES

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class EnvSpec:
    """What a caller must know of an environment before it makes one.

    ``name`` appears in messages; ``frame_skip`` is the number of emulator frames in one step.
    ``frame_stack`` above 1: the first axis of observations is a stack of so many frames, the newest
    last, those before a reset or a lost life (`StepResult.terminated`) blank. ``info_keys``: names
    of the numbers in `StepResult.info`.

    Raises:
        ValueError: a shape, dtype, number of actions or keys that cannot be.
    """

    name: str
    observation_shape: tuple[int, ...]
    observation_dtype: np.dtype[Any]
    num_actions: int
    frame_skip: int = 1
    frame_stack: int = 1
    info_keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, (converted, required) in _CHECKS.items():
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, converted(value))
            except (TypeError, ValueError):
                raise ValueError(f"EnvSpec: {name} is {value!r}; it must be {required}") from None
        if self.frame_stack > 1 and self.observation_shape[:1] != (self.frame_stack,):
            raise ValueError(
                f"EnvSpec: frame_stack is {self.frame_stack}, and observation_shape is "
                f"{self.observation_shape}; a stack is the first axis"
            )


def _count(value: Any) -> int:
    if operator.index(value) < 1:
        raise ValueError
    return operator.index(value)


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(map(_count, value))


def _dtype(value: Any) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(value)  # also of a type, such as np.float32
    if dtype.kind not in "biuf" or dtype.itemsize > 8:  # torch knows none
        raise ValueError
    return dtype


def _keys(value: Any) -> tuple[str, ...]:
    keys = tuple(value)
    if isinstance(value, str) or len(set(keys)) < len(keys):
        raise ValueError
    if not all(isinstance(key, str) and key and key.isprintable() for key in keys):
        raise ValueError
    return keys


_CHECKS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "observation_shape": (_shape, "a tuple of whole numbers above 0, such as (10,)"),
    "observation_dtype": (
        _dtype,
        "the dtype of numbers or booleans of up to 8 bytes, such as np.float32",
    ),
    "num_actions": (_count, "a whole number above 0"),
    "frame_skip": (_count, "a whole number above 0"),
    "frame_stack": (_count, "a whole number above 0"),
    "info_keys": (_keys, "a tuple of different printable names, such as ('is_success',)"),
}


class StepResult(NamedTuple):
    """The outcome of one action.

    ``reward`` is what the learner sees (clipped where the environment clips), ``raw_reward`` the
    task's own. ``terminated``: the episode ended as the learner sees it (game over, or a lost life
    where lives count), so the next state has value 0. ``truncated``: cut off by a time limit.
    ``episode_ended``: game over or truncated; only this asks for a reset. ``info``: a number for
    each of `EnvSpec.info_keys`, in their order, NaN where there is none; empty: for no key. They
    are kept as float32.
    """

    reward: float
    raw_reward: float
    terminated: bool
    truncated: bool
    episode_ended: bool
    info: Sequence[float] = ()


@runtime_checkable
class Environment(Protocol):
    """One simulator with discrete actions ``0 .. spec.num_actions - 1``.

    ``seed`` is called before the first ``reset``; all later randomness follows from it. It is
    called again, before another ``reset``, only where a user of `VectorEnv` gives a new seed.
    ``reset`` and ``step`` write the observation into ``out``, of ``spec.observation_shape`` and
    dtype.
    """

    @property
    def spec(self) -> EnvSpec: ...

    def seed(self, seed: np.random.SeedSequence) -> None: ...

    def reset(self, out: Array) -> None: ...

    def step(self, action: int, out: Array) -> StepResult: ...

    def close(self) -> None: ...


@runtime_checkable
class Resumable(Protocol):
    """What an `Environment` offers besides, if a run can go on exactly where it stopped.

    ``get_state`` is called between two steps. It returns plain values: None, bool, int, float, str,
    bytes, NumPy arrays and scalars, and lists, tuples and dicts of these. Keys may be any of these
    that can be hashed, as in ``{item_id: count}``. What it returns must not change when the
    environment goes on. ``set_state`` receives equal values of the same types. It is called after
    ``seed`` in place of the first ``reset``; from then on the environment does what the other one
    would have done.
    """

    def get_state(self) -> EnvState: ...

    def set_state(self, state: EnvState) -> None: ...


EnvState = dict[str, Any]
EnvFactory = Callable[[], Environment]


def close_quietly(env: Any) -> None:
    """Close ``env`` if it can be closed; what led to this matters more than how that fails."""
    with suppress(*FAILURES):
        env.close()


def close_all(closables: Iterable[Any]) -> None:
    """Close each, also after one that fails to; the first failure is raised at the end."""
    failures = []
    for each in closables:
        try:
            each.close()
        except FAILURES as error:
            failures.append(error)
    if failures:
        raise failures[0]
