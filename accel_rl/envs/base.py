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
from accel_rl.spaces import ACTION_MASK, Leaf, Space, check_mask, check_space, describe

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class EnvSpec:
    """What a caller must know of an environment before it makes one.

    Attributes:
        name: appears in messages.
        observation: the space of observations. A leaf ``action_mask`` says which actions are
            allowed, see `accel_rl.spaces`.
        action: the space of actions.
        frame_skip: emulator frames in one step.
        frame_stack: above 1: the first axis of observations is a stack of this many frames, the
            newest last, those before a reset or a lost life (`StepResult.terminated`) blank.
        info_keys: names of what is in `StepResult.info`.
        info_shapes: the shape under each of these; empty: all are numbers.

    Raises:
        ValueError: a space, number, key or shape that cannot be.
    """

    name: str
    observation: Space
    action: Space
    frame_skip: int = 1
    frame_stack: int = 1
    info_keys: tuple[str, ...] = ()
    info_shapes: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        for name, (converted, required) in _CHECKS.items():
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, converted(value))
            except (TypeError, ValueError):
                raise ValueError(f"EnvSpec: {name} is {value!r}; it must be {required}") from None
        space = self.observation
        stack = space.shape[:1] if isinstance(space, Leaf) else None
        if self.frame_stack > 1 and stack != (self.frame_stack,):
            raise ValueError(
                f"EnvSpec: frame_stack is {self.frame_stack}, and observation is "
                f"{describe(space)}; it must be one array whose first axis is the stack"
            )
        if len(self.info_shapes) not in (0, len(self.info_keys)):
            raise ValueError(
                f"EnvSpec: info_shapes has {len(self.info_shapes)} shapes for "
                f"{len(self.info_keys)} info_keys; it must have one for each, or none"
            )
        if self.mask is not None:
            try:
                check_mask(self.action, self.mask)
            except ValueError as error:
                raise ValueError(f"EnvSpec of {self.name}: {error}") from None

    @property
    def mask(self) -> Space | None:
        """The space of action masks in observations; None: every action is always allowed."""
        return None if isinstance(self.observation, Leaf) else self.observation.get(ACTION_MASK)

    def check_plain(self, user: str) -> None:
        """Raises ValueError unless observations are one array and actions the integers from 0.

        A mask of actions is refused as well.

        Args:
            user: what can use no other environment, for the message.
        """
        if self.mask is not None:
            raise ValueError(
                f"{user} cannot use this environment: the observations of {self.name} have a leaf "
                f"{ACTION_MASK}, which it does not know; use algo=a2c or algo=ppo, or leave the "
                f"mask out"
            )
        try:
            _ = self.num_actions, self.observation_shape
        except ValueError as error:
            raise ValueError(
                f"{user} cannot use this environment: {error}; algo=a2c and algo=ppo take every one"
            ) from None

    @property
    def num_actions(self) -> int:
        """The number of actions, if they are the integers from 0.

        Raises:
            ValueError: they are not.
        """
        action = self.action
        if not isinstance(action, Leaf) or action.num_values is None or action.low:
            raise ValueError(
                f"the actions of environment {self.name} are {describe(action)}; here they must be "
                f"the integers 0 .. n - 1 (a Discrete space)"
            )
        return action.num_values

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """The shape of observations that are one array.

        Raises:
            ValueError: they are a mapping.
        """
        return self._array.shape

    @property
    def observation_dtype(self) -> np.dtype[Any]:
        """The dtype of observations that are one array.

        Raises:
            ValueError: they are a mapping.
        """
        return self._array.dtype

    @property
    def _array(self) -> Leaf:
        if not isinstance(self.observation, Leaf):
            raise ValueError(
                f"the observations of environment {self.name} are {describe(self.observation)}; "
                f"here they must be one array: wrap the environment in one that joins them"
            )
        return self.observation


def _count(value: Any) -> int:
    if operator.index(value) < 1:
        raise ValueError
    return operator.index(value)


def _keys(value: Any) -> tuple[str, ...]:
    keys = tuple(value)
    if isinstance(value, str) or len(set(keys)) < len(keys):
        raise ValueError
    if not all(isinstance(key, str) and key and key.isprintable() for key in keys):
        raise ValueError
    return keys


def _shapes(value: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(map(_count, shape)) for shape in value)


_CHECKS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "observation": (check_space, "a Leaf(shape, dtype), or a mapping of names to these"),
    "action": (check_space, "discrete(n), a Leaf(shape, dtype, low, high), or a mapping of these"),
    "frame_skip": (_count, "a whole number above 0"),
    "frame_stack": (_count, "a whole number above 0"),
    "info_keys": (_keys, "a tuple of different printable names, such as ('is_success',)"),
    "info_shapes": (_shapes, "a tuple of shapes, such as ((), (3,))"),
}


class StepResult(NamedTuple):
    """The outcome of one action.

    ``reward`` is what the learner sees (clipped where the environment clips), ``raw_reward`` the
    task's own. ``terminated``: the episode ended as the learner sees it (game over, or a lost life
    where lives count), so the next state has value 0. ``truncated``: cut off by a time limit.
    ``episode_ended``: game over or truncated; only this asks for a reset. ``info``: a number for
    each of `EnvSpec.info_keys`, in their order, or an array of the key's shape; NaN where there is
    none; empty: for no key. They are kept as float32.
    """

    reward: float
    raw_reward: float
    terminated: bool
    truncated: bool
    episode_ended: bool
    info: Sequence[Any] = ()


@runtime_checkable
class Environment(Protocol):
    """One simulator.

    ``seed`` is called before the first ``reset``; all later randomness follows from it. It is
    called again, before another ``reset``, only where a user of `VectorEnv` gives a new seed.
    ``reset`` and ``step`` write the observation into ``out``, of ``spec.observation``: an array, or
    a struct with ``out["camera"][...] = picture``. ``action`` is a number for a space without
    axes; otherwise an array, or a struct, which the next step overwrites.
    """

    @property
    def spec(self) -> EnvSpec: ...

    def seed(self, seed: np.random.SeedSequence) -> None: ...

    def reset(self, out: Array) -> None: ...

    def step(self, action: Any, out: Array) -> StepResult: ...

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
