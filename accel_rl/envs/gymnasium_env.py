"""Any Gymnasium environment whose spaces are made of arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from accel_rl.envs.base import Array, EnvSpec, EnvState, StepResult, close_quietly
from accel_rl.envs.errors import EnvError
from accel_rl.spaces import (
    ACTION_MASK,
    OBSERVATION,
    Leaf,
    Space,
    discrete,
    follow,
    from_gymnasium,
    leaves_of,
    map_gymnasium,
    mask_space,
    with_channels,
)
from accel_rl.system.functions import FAILURES
from accel_rl.system.states import check_takes

_STEP_RETURNS = "observation, reward, terminated, truncated, info"
_SPACES = ("action_space", "observation_space")

Path = tuple[str, ...]
Part = tuple[tuple[Any, ...], Path, Leaf]
"""Keys of a leaf in what the environment returns, its path in ours, and the leaf."""


class GymnasiumEnv:
    """A Gymnasium environment as an `Environment`. Its rewards stay as they are.

    It is `Resumable` if the Gymnasium environment has ``get_state`` and ``set_state`` itself (the
    outermost wrapper, which knows what the others hold). If they do something else, its state is
    not saved.

    Spaces are those of `accel_rl.spaces.from_gymnasium`. Actions of a ``Discrete`` space are
    ``0 .. n - 1`` also where the space starts elsewhere; discrete parts of other spaces keep their
    numbers. A seed sequence of one plain number seeds the environment with that number.

    Of the ``info`` of each step, the values under ``info_keys`` go into `StepResult.info`: NaN
    where it lacks a key. The key ``action_mask`` makes the mask in ``info``, of resets too, a leaf
    of the observation. An observation of one array becomes the leaf ``observation`` then.

    Attributes:
        env: the Gymnasium environment.
        options: options of its next reset only.
        first_action: the first number of its action space.

    Raises:
        EnvError: from the constructor for spaces or keys that do not fit; from ``reset`` and
            ``step`` if the environment returns an observation of another shape or kind, flags that
            are no bools, or under an info key something else than numbers.
    """

    def __init__(
        self,
        make: Callable[[], gymnasium.Env[Any, Any]],
        name: str,
        info_keys: Sequence[str] = (),
    ) -> None:
        self._name = name
        self.env = make()
        try:
            self._read_spaces(info_keys)
        except BaseException:
            close_quietly(self.env)
            raise
        self._seed: int | None = None
        self.options: dict[str, Any] | None = None
        self._lasting: dict[str, Any] | None = None
        self.reset_info: list[Any] = []
        if hasattr(self.env, "get_state") and hasattr(self.env, "set_state"):
            self.get_state, self.set_state = self._get_state, self._set_state

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    @property
    def innermost(self) -> object:
        """Gymnasium's environment within all wrappers."""
        return self.env.unwrapped

    def seed(self, seed: np.random.SeedSequence) -> None:
        self._seed = number_of(seed)

    def keep_options(self, options: dict[str, Any]) -> None:
        """Give options to all resets from the next one on."""
        self.options = self._lasting = options

    def reset(self, out: Array) -> None:
        seed, self._seed = self._seed, None  # only the first reset is seeded, as Gymnasium asks
        options, self.options = self.options, self._lasting
        more = {} if options is None else {"options": options}
        if seed is not None:
            seed_spaces(self.env, seed)
        returned = reset_seeded(self.env.reset, seed, **more)
        if not isinstance(returned, tuple | list) or len(returned) != 2:
            raise self._wrong_return("reset", "observation, info", returned)
        observation, info = returned
        self._write(observation, info, out, "reset")
        if self._info_keys:
            self.reset_info = self._numbers(info, "reset")

    def step(self, action: Any, out: Array) -> StepResult:
        returned: Any
        if self._is_discrete:
            returned = self.env.step(self._action_type(action + self.first_action))
        else:
            returned = self.env.step(map_gymnasium(_own_action, self.env.action_space, action))
        try:
            observation, reward, terminated, truncated, info = returned
        except (TypeError, ValueError):
            raise self._wrong_return("step", _STEP_RETURNS, returned) from None
        # A step of CartPole takes 6 us: here each look-up and each call counts. Steppers check the
        # reward, which they write into a rollout.
        self._write(observation, info, out, "step")
        if terminated is not False and terminated is not True:
            terminated = self._flag("terminated", terminated)
        if truncated is not False and truncated is not True:
            truncated = self._flag("truncated", truncated)
        numbers = self._numbers(info, "step") if self._info_keys else ()
        return StepResult(reward, reward, terminated, truncated, terminated or truncated, numbers)

    def close(self) -> None:
        self.env.close()

    def _read_spaces(self, info_keys: Sequence[str]) -> None:
        name = self._name
        for space in _SPACES:
            if not hasattr(self.env, space):
                raise EnvError(
                    f"environment {name} has no {space}; set it in the constructor, to one of "
                    f"gymnasium.spaces"
                )
        actions, outer = self.env.action_space, self.env.observation_space
        self._is_discrete = isinstance(actions, spaces.Discrete)
        self._action_type: Any = getattr(actions.dtype, "type", None)
        observation, action, self.first_action = read_spaces(name, self.env, outer, actions)
        self._is_told_mask = ACTION_MASK in info_keys
        self._parts = [_part(outer, *each) for each in leaves_of(from_gymnasium(outer))]
        if self._is_told_mask:
            info_keys = [key for key in info_keys if key != ACTION_MASK]
            observation = self._with_mask(observation, action)
        self._array = observation.shape if isinstance(observation, Leaf) else None
        try:
            self._spec = EnvSpec(
                name=name,
                observation=observation,
                action=action,
                info_keys=info_keys,  # type: ignore[arg-type]  # made a tuple there
            )
        except ValueError as error:
            raise EnvError(f"environment {name}: {error}") from error
        self._info_keys = self._spec.info_keys

    def _with_mask(self, observation: Space, action: Space) -> Space:
        """Return ``observation`` with the leaf of a mask that comes in ``info``."""
        mask = mask_space(action)
        if mask is None:
            raise EnvError(
                f"environment {self._name}: info_keys has {ACTION_MASK}, and there are no integers "
                f"among its actions {self.env.action_space}; leave it out"
            )
        if isinstance(observation, Leaf):
            observation = {OBSERVATION: observation}
            self._parts = [(keys, (OBSERVATION,), leaf) for keys, _, leaf in self._parts]
        self._mask_parts = [(path, path, leaf) for path, leaf in leaves_of(mask)]
        return {**observation, ACTION_MASK: mask}

    def _get_state(self) -> EnvState:
        state: EnvState = self.env.get_state()  # type: ignore[attr-defined]
        check_takes(self.env.set_state, state)  # type: ignore[attr-defined]
        return state

    def _set_state(self, state: EnvState) -> None:
        self.env.set_state(state)  # type: ignore[attr-defined]
        self._seed = None  # the state has the generator, which the next reset must not seed

    def _wrong_return(self, call: str, names: str, returned: object) -> EnvError:
        is_tuple = isinstance(returned, tuple)
        found = f"{len(returned)} values" if is_tuple else _type_name(returned)  # type: ignore[arg-type]
        return EnvError(
            f"environment {self._name}: {call} must return {names}; it returned {found}"
        )

    def _wrong(self, what: str, call: str, needed: str) -> EnvError:
        return EnvError(f"environment {self._name} returned {what} from {call}; {needed}")

    def _flag(self, name: str, value: Any) -> bool:
        if isinstance(value, np.bool_):
            return bool(value)
        array = np.asarray(value)  # some return 0 and 1, or an array of one
        if array.size != 1 or array.dtype.kind not in "biuf" or array.item() not in (0, 1):
            needed = f"{value!r:.50} must be a bool (step returns {_STEP_RETURNS})"
            raise self._wrong(f"{name} of type {_type_name(value)}", "step", needed)
        return bool(array.item())

    def _numbers(self, info: Mapping[str, Any], call: str) -> list[float]:
        """Return the values under the info keys; NaN for a missing key."""
        self._check_info(info, call)
        numbers: list[float] = []
        for key in self._info_keys:
            value = info.get(key, math.nan)
            if not isinstance(value, bool | int | float):
                array = np.asarray(value)
                if array.size != 1 or array.dtype.kind not in "biuf":
                    what = f"info[{key!r}] of type {_type_name(value)}"
                    raise self._wrong(what, call, "what info_keys names must be one number")
                value = array.item()
            numbers.append(float(value))
        return numbers

    def _check_info(self, info: object, call: str) -> None:
        if not isinstance(info, Mapping):
            what = f"an info of type {_type_name(info)}"
            raise self._wrong(what, call, "with info_keys it must be a dict")

    def _write(self, observation: Any, info: Any, out: Array, call: str) -> None:
        shape = self._array
        if shape is not None:
            array = np.asarray(observation)
            if array.shape == shape and array.dtype == out.dtype:
                out[...] = array  # `copyto`, which checks the dtype, takes 0.3 us longer
            else:
                self._write_array(array, shape, out, call)
            return
        for keys, path, leaf in self._parts:
            value, name = observation, ""
            for key in keys:
                name += f"[{key!r}]"
                try:
                    value = value[key]
                except (IndexError, KeyError, TypeError):
                    what = f"an observation without {name}"
                    raise self._wrong(what, call, "its observation space has it") from None
            self._write_array(value, leaf.shape, follow(out, path), call, name)
        if self._is_told_mask:
            self._write_mask(info, out, call)

    def _write_mask(self, info: Any, out: Array, call: str) -> None:
        self._check_info(info, call)
        if info.get(ACTION_MASK) is None:
            needed = "info_keys names it, so that each reset and step must have it"
            raise self._wrong(f"an info without {ACTION_MASK}", call, needed)
        for keys, path, leaf in self._mask_parts:
            value, target = info[ACTION_MASK], out[ACTION_MASK]
            for key in keys:
                value = value[int(key) if isinstance(value, tuple) else key]
            given = np.asarray(value)
            if given.dtype.kind not in "biu" or given.shape != leaf.shape:
                what = f"info[{ACTION_MASK!r}] of dtype {given.dtype} and shape {given.shape}"
                raise self._wrong(what, call, f"it must be bool, of shape {leaf.shape}")
            np.not_equal(given, 0, out=follow(target, path))

    def _write_array(
        self, observation: Any, shape: tuple[int, ...], out: Any, call: str, name: str = ""
    ) -> None:
        array = np.asarray(observation)
        what = f"an observation{name}"
        if array.shape != shape:
            needed = f"its observation space says {shape}"
            raise self._wrong(f"{what} of shape {array.shape}", call, needed)
        try:
            np.copyto(out, array, casting="same_kind")
        except TypeError:
            needed = f"its observation space says {out.dtype}"
            raise self._wrong(f"{what} of dtype {array.dtype}", call, needed) from None
        if array.dtype != out.dtype and out.dtype.kind in "iu" and (out != array).any():
            found = f"{array.dtype} from {array.min()} to {array.max()}"
            needed = f"its observation space, of dtype {out.dtype}, does not hold {found}"
            raise self._wrong(what, call, needed)


def read_spaces(
    name: str, env: Any, observation_space: Any, action_space: Any
) -> tuple[Space, Space, int]:
    """Return the spaces of an environment of Gymnasium's, and its first discrete action."""
    found = []
    for kind, space in (("observation", observation_space), ("action", action_space)):
        try:
            found.append(with_channels(from_gymnasium(space), env))
        except ValueError as error:
            raise EnvError(
                f"environment {name} has the {kind} space {space!r:.200}: {error}"
            ) from None
    if isinstance(action_space, spaces.Discrete):
        return found[0], discrete(int(action_space.n)), int(action_space.start)
    return found[0], found[1], 0


def number_of(seed: np.random.SeedSequence) -> int:
    """Return the plain number that environments of Gymnasium are seeded with."""
    if isinstance(seed.entropy, int) and not seed.spawn_key:
        return seed.entropy
    return int(seed.generate_state(1)[0])


def seed_spaces(env: Any, seed: int) -> None:
    """Seed the spaces of an environment of Gymnasium's and of its wrappers; some draw from them."""
    while isinstance(env, gymnasium.Env):
        for name in _SPACES:
            with suppress(*FAILURES):  # it lacks one, or has a kind of its own that takes no seed
                getattr(env, name).seed(seed)
        env = getattr(env, "env", None)


def reset_seeded(reset: Callable[..., Any], seed: Any, **more: Any) -> Any:
    """Return what ``reset`` returns; where it takes no seeds of 32 bits, it gets 31 bits of them.

    So much do simulators in C take that have signed integers.
    """
    try:
        return reset(seed=seed, **more)
    except FAILURES:
        seeds = seed if isinstance(seed, list) else [seed]
        is_long = [type(each) is int and 2**31 <= each < 2**32 for each in seeds]
        if not any(is_long):
            raise
        short = [each - 2**31 * long for each, long in zip(seeds, is_long, strict=True)]
        with suppress(*FAILURES):
            return reset(seed=short if isinstance(seed, list) else short[0], **more)
        raise


def _part(space: Any, path: Path, leaf: Leaf) -> Part:
    keys: list[Any] = []
    for name in path:
        keys.append(int(name) if isinstance(space, spaces.Tuple) else name)
        space = space[keys[-1]]
    return tuple(keys), path, leaf


def _own_action(space: Any, action: Any) -> Any:
    """Return ``action``, a view of shared memory, as the environment's own value."""
    if isinstance(space, spaces.Discrete):
        return action
    return np.array(action, space.dtype)  # a copy, which the environment may keep


def _type_name(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"ndarray ({value.dtype} of shape {value.shape})"
    return type(value).__name__
