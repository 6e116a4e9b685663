"""Protocols of simulators, and the result of a step.

Simulators write their observations straight into an array that the caller owns (a row of a rollout
in shared memory), so that nothing is copied afterwards. Everything here is NumPy: a simulator
process never loads torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray

from accel_rl.envs.errors import EnvError, naming
from accel_rl.spaces import (
    ACTION_MASK,
    Leaf,
    Space,
    check_mask,
    check_space,
    describe,
    discrete,
    leaves_of,
    positive,
)
from accel_rl.system.functions import FAILURES

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class EnvSpec:
    """The spaces and further facts of an environment.

    Attributes:
        name: name of the environment, for messages.
        observation: the space of observations. A leaf ``action_mask`` says which actions are
            allowed, see `accel_rl.spaces`.
        action: the space of actions. One integer from 0, of any dtype, becomes ``discrete(n)``.
        frame_skip: emulator frames in one step.
        frame_stack: number of frames in the first axis of observations, the newest last. Frames
            from before a reset or a lost life are blank. 1: there is no stack.
        info_keys: names of the numbers in `StepResult.info`.

    Raises:
        ValueError: a space, number or key is invalid.
    """

    name: str
    observation: Space
    action: Space
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
        with suppress(ValueError):  # of other actions
            object.__setattr__(self, "action", discrete(self.num_actions))
        space = self.observation
        stack = space.shape[:1] if isinstance(space, Leaf) else None
        if self.frame_stack > 1 and stack != (self.frame_stack,):
            raise ValueError(
                f"EnvSpec: frame_stack is {self.frame_stack}, and observation is "
                f"{describe(space)}; it must be one array whose first axis is the stack"
            )
        if self.mask is not None:
            try:
                check_mask(self.action, self.mask)
            except ValueError as error:
                raise ValueError(f"EnvSpec of {self.name}: {error}") from None

    @property
    def mask(self) -> Space | None:
        """The space of action masks in observations; None if every action is always allowed."""
        return None if isinstance(self.observation, Leaf) else self.observation.get(ACTION_MASK)

    def check_plain(self, user: str) -> None:
        """Check that observations are one array, actions are integers from 0, and there is no mask.

        Args:
            user: name of the algorithm that supports no other environment, for the message.

        Raises:
            ValueError: the environment has other spaces.
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

    def check_bounded(self, user: str) -> None:
        """Check that actions are floats between finite bounds, and observations are no images.

        Args:
            user: name of the algorithm that supports no other environment, for the message.

        Raises:
            ValueError: the environment has other spaces.
        """
        if not all(_is_bounded(leaf) for _, leaf in leaves_of(self.action)):
            raise ValueError(
                f"{user} cannot use this environment: the actions of {self.name} are "
                f"{describe(self.action)}; they must be floats between finite bounds (Box spaces) "
                f"that are not near the largest number of their dtype; for others use algo=ppo"
            )
        for _, leaf in leaves_of(self.observation):
            if len(leaf.shape) == 3:
                raise ValueError(
                    f"{user} cannot use this environment: the observations of {self.name} are "
                    f"{describe(self.observation)}, with images, for which it has no network; use "
                    f"algo=ppo"
                )

    @property
    def num_actions(self) -> int:
        """The number of actions, if they are the integers from 0.

        Raises:
            ValueError: actions are not the integers from 0.
        """
        action = self.action
        if not isinstance(action, Leaf) or action.num_values is None or action.ends[0]:
            raise ValueError(
                f"the actions of environment {self.name} are {describe(action)}; here they must be "
                f"the integers 0 .. n - 1 (a Discrete space)"
            )
        return action.num_values

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """The shape of observations that are one array.

        Raises:
            ValueError: observations are a mapping.
        """
        return self._array.shape

    @property
    def observation_dtype(self) -> np.dtype[Any]:
        """The dtype of observations that are one array.

        Raises:
            ValueError: observations are a mapping.
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


def _is_bounded(leaf: Leaf) -> bool:
    return leaf.dtype.kind == "f" and all(np.isfinite(bound).all() for bound in leaf.limits)


def _keys(value: Any) -> tuple[str, ...]:
    keys = tuple(value)
    if isinstance(value, str) or len(set(keys)) < len(keys):
        raise ValueError
    if not all(isinstance(key, str) and key and key.isprintable() for key in keys):
        raise ValueError
    return keys


_CHECKS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "observation": (check_space, "a Leaf(shape, dtype), or a mapping of names to these"),
    "action": (check_space, "discrete(n), a Leaf(shape, dtype, low, high), or a mapping of these"),
    "frame_skip": (positive, "a whole number above 0"),
    "frame_stack": (positive, "a whole number above 0"),
    "info_keys": (_keys, "a tuple of different printable names, such as ('is_success',)"),
}


class StepResult(NamedTuple):
    """The result of one step.

    Attributes:
        reward: reward that the learner sees; clipped if the environment clips rewards.
        raw_reward: reward of the task, from which scores are made.
        terminated: whether the episode ended for the learner, so that the next state has value 0.
            The game is over, or a life was lost and lives count as episodes.
        truncated: whether the episode was cut off by a time limit.
        episode_ended: whether the game is over or truncated. Only this leads to a reset.
        info: a number for each of `EnvSpec.info_keys`, in their order. They are stored as float32.
            NaN: no value for this key. Empty: no values.
    """

    reward: float
    raw_reward: float
    terminated: bool
    truncated: bool
    episode_ended: bool
    info: Sequence[Any] = ()


class Environment(Protocol):
    """One simulator.

    `reset` and `step` write the observation into ``out``: an array of ``spec.observation``, or a
    struct with ``out["camera"][...] = picture``.
    """

    @property
    def spec(self) -> EnvSpec:
        """The spaces of the environment."""
        ...

    def seed(self, seed: np.random.SeedSequence) -> None:
        """Seed all later randomness.

        It is called before the first `reset`. It is called again before another `reset` only if the
        user of a `VectorEnv` passes a new seed.

        Args:
            seed: seed sequence of this environment.
        """
        ...

    def reset(self, out: Array) -> None:
        """Start an episode.

        Args:
            out: array into which to write the first observation.
        """
        ...

    def step(self, action: Any, out: Array) -> StepResult:
        """Take one step.

        Args:
            action: a number if the space has no axes; otherwise an array or struct, which the next
                step overwrites.
            out: array into which to write the observation.

        Returns:
            Rewards and flags of the step.
        """
        ...

    def close(self) -> None:
        """Release what the environment holds."""
        ...


class Resumable(Protocol):
    """An `Environment` whose state can be saved, so that a run resumes in the middle of an episode.

    States are dicts of plain values: None, bool, int, float, str, bytes, NumPy arrays and scalars,
    and lists, tuples and dicts of these. Keys may be any of these that can be hashed.
    """

    def get_state(self) -> EnvState:
        """Return the state between two steps. Later steps must not change the returned value."""
        ...

    def set_state(self, state: EnvState) -> None:
        """Continue from a state, after `seed` and instead of the first `reset`.

        Args:
            state: equal values of the same types as `get_state` returned.
        """
        ...


EnvState = dict[str, Any]
"""State of an environment, see `Resumable`."""

EnvFactory = Callable[[], Environment]
"""Function that makes an environment."""


def is_environment(env: Any) -> TypeGuard[Environment]:
    """Return whether ``env`` has all members of an `Environment`."""
    return has_members_of(env, Environment)


def is_resumable(env: Any) -> TypeGuard[Resumable]:
    """Return whether ``env`` has the methods of a `Resumable`."""
    return has_members_of(env, Resumable)


def has_members_of(env: Any, protocol: type) -> bool:
    """Return whether ``env`` has what a protocol names, itself or by `__getattr__`.

    Since Python 3.12 `isinstance` does not see what wrappers forward.
    """
    return all(hasattr(env, name) for name in vars(protocol) if not name.startswith("_"))


def close_quietly(env: Any) -> None:
    """Close ``env`` if it can be closed; what led to this matters more than how that fails."""
    with suppress(*FAILURES):
        env.close()


def close_envs(envs: Iterable[Any]) -> None:
    """Close each environment or batch, also after one that fails to.

    Raises:
        EnvError: the first failure, at the end.
    """
    failures = []
    for env in envs:
        try:
            with naming(env.spec.name, "close"):
                env.close()
        except EnvError as error:
            failures.append(error)
    if failures:
        raise failures[0]
