"""Any Gymnasium environment with discrete actions and array observations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from accel_rl.envs.base import Array, EnvSpec, EnvState, StepResult, close_quietly
from accel_rl.envs.errors import EnvError, env_failure
from accel_rl.functions import FAILURES

_STEP_RETURNS = "observation, reward, terminated, truncated, info"
_LARGEST = float(np.finfo(np.float32).max)
_ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiBinary, spaces.MultiDiscrete)


class GymnasiumEnv:
    """A Gymnasium environment as an `Environment`. Its rewards stay as they are.

    It is `Resumable` if the Gymnasium environment has ``get_state`` and ``set_state`` itself (the
    outermost wrapper, which knows what the others hold).

    The observation is an array of the observation space's shape and dtype; a ``Discrete`` space
    gives a scalar, shape ``()``. Actions are ``0 .. n - 1`` also where the action space starts
    elsewhere. A seed sequence of one plain number seeds the environment with that number.

    Of the ``info`` of each step, the numbers under ``info_keys`` go into `StepResult.info`: NaN
    where it lacks a key. The ``info`` of a reset is not looked at.

    ``env``: the Gymnasium environment. ``first_action``: where its action space starts.

    Args:
        make: makes the environment.
        name: what messages call it.
        info_keys: of bools, numbers, or arrays of one of these.

    Raises:
        EnvError: from the constructor if ``make`` raises, or for spaces or keys that do not fit;
            from ``reset`` and ``step`` if the environment raises, or returns an observation of
            another shape or kind, a reward that is not finite, flags that are no bools, or under an
            info key something else than one number.
    """

    def __init__(
        self,
        make: Callable[[], gymnasium.Env[Any, Any]],
        name: str,
        info_keys: Sequence[str] = (),
    ) -> None:
        self._name = name
        try:
            self.env = make()
        except FAILURES as error:
            raise env_failure(name, "its constructor", error) from error
        try:
            self._read_spaces(info_keys)
        except BaseException:
            close_quietly(self.env)
            raise
        self._seed: int | None = None
        if hasattr(self.env, "get_state") and hasattr(self.env, "set_state"):
            self.get_state: Callable[[], EnvState] = self.env.get_state
            self.set_state = self._set_state

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    @property
    def innermost(self) -> object:
        """Gymnasium's environment within all wrappers."""
        return self.env.unwrapped

    def seed(self, seed: np.random.SeedSequence) -> None:
        if isinstance(seed.entropy, int) and not seed.spawn_key:
            self._seed = seed.entropy
        else:
            self._seed = int(seed.generate_state(1)[0])

    def reset(self, out: Array) -> None:
        seed, self._seed = self._seed, None  # only the first reset is seeded, as Gymnasium asks
        try:
            returned = self.env.reset(seed=seed)
        except FAILURES as error:
            raise env_failure(self._name, "reset", error) from error
        if not isinstance(returned, tuple | list) or len(returned) != 2:
            raise self._wrong_return("reset", "observation, info", returned)
        observation, _ = returned
        self._write(observation, out, "reset")

    def step(self, action: int, out: Array) -> StepResult:
        try:
            returned = self.env.step(action + self.first_action)
        except FAILURES as error:
            raise env_failure(self._name, "step", error) from error
        try:
            observation, reward, terminated, truncated, info = returned
        except (TypeError, ValueError):
            raise self._wrong_return("step", _STEP_RETURNS, returned) from None
        try:
            if isinstance(reward, str | bytes):
                raise TypeError
            reward = float(reward)
        except (TypeError, ValueError):
            raise EnvError(
                f"environment {self._name} returned a reward of type {_type_name(reward)} from "
                f"step; it must be one number"
            ) from None
        if not abs(reward) <= _LARGEST:  # nor is NaN
            raise EnvError(
                f"environment {self._name} returned the reward {reward} from step; "
                f"it must be finite, as float32 too"
            )
        self._write(observation, out, "step")
        is_terminated = self._flag("terminated", terminated)
        is_truncated = self._flag("truncated", truncated)
        ended = is_terminated or is_truncated
        numbers = self._numbers(info) if self._info_keys else ()
        return StepResult(reward, reward, is_terminated, is_truncated, ended, numbers)

    def close(self) -> None:
        try:
            self.env.close()
        except FAILURES as error:
            raise env_failure(self._name, "close", error) from error

    def _read_spaces(self, info_keys: Sequence[str]) -> None:
        """Raises EnvError unless they are spaces that fit."""
        name = self._name
        for space in ("action_space", "observation_space"):
            if not hasattr(self.env, space):
                raise EnvError(
                    f"environment {name} has no {space}; set it in the constructor, to one of "
                    f"gymnasium.spaces"
                )
        actions, observations = self.env.action_space, self.env.observation_space
        if not isinstance(actions, spaces.Discrete):
            raise EnvError(
                f"environment {name} has the action space {actions}; it must be Discrete: wrap the "
                f"environment in one that has such a space (gymnasium.ActionWrapper)"
            )
        if not isinstance(observations, _ARRAY_SPACES):
            raise EnvError(
                f"environment {name} has the observation space {observations}; it must be one "
                f"array (Box, Discrete, MultiBinary or MultiDiscrete): wrap the environment in "
                f"gymnasium.wrappers.FlattenObservation"
            )
        assert observations.shape is not None
        self.first_action = int(actions.start)
        self._shape = observations.shape
        try:
            self._spec = EnvSpec(
                name=name,
                observation_shape=self._shape,
                observation_dtype=np.dtype(observations.dtype),
                num_actions=int(actions.n),
                info_keys=info_keys,  # type: ignore[arg-type]  # made a tuple there
            )
        except ValueError as error:
            raise EnvError(f"environment {name}: {error}") from error
        self._info_keys = self._spec.info_keys

    def _set_state(self, state: EnvState) -> None:
        self._seed = None  # the state has the generator, which the next reset must not seed
        self.env.set_state(state)  # type: ignore[attr-defined]

    def _wrong_return(self, call: str, names: str, returned: object) -> EnvError:
        is_tuple = isinstance(returned, tuple)
        found = f"{len(returned)} values" if is_tuple else _type_name(returned)  # type: ignore[arg-type]
        return EnvError(
            f"environment {self._name}: {call} must return {names}; it returned {found}"
        )

    def _flag(self, name: str, value: Any) -> bool:
        if value is True or value is False:
            return value
        if isinstance(value, np.bool_):
            return bool(value)
        array = np.asarray(value)  # some return 0 and 1, or an array of one
        if array.size != 1 or array.dtype.kind not in "biuf" or array.item() not in (0, 1):
            raise EnvError(
                f"environment {self._name} returned {name} of type {_type_name(value)} from step, "
                f"{value!r:.50}; it must be a bool (step returns {_STEP_RETURNS})"
            )
        return bool(array.item())

    def _numbers(self, info: Mapping[str, Any]) -> list[float]:
        """Those under the info keys; NaN for one that is not there."""
        if not isinstance(info, Mapping):
            raise EnvError(
                f"environment {self._name} returned an info of type {_type_name(info)} from step; "
                f"with info_keys it must be a dict"
            )
        numbers = []
        for key in self._info_keys:
            value = info.get(key, math.nan)
            if not isinstance(value, bool | int | float):
                array = np.asarray(value)
                if array.size != 1 or array.dtype.kind not in "biuf":
                    raise EnvError(
                        f"environment {self._name} returned info[{key!r}] of type "
                        f"{_type_name(value)} from step; what info_keys names must be one number"
                    )
                value = array.item()
            numbers.append(float(value))
        return numbers

    def _write(self, observation: Any, out: Array, call: str) -> None:
        array = np.asarray(observation)
        if array.shape != self._shape:
            raise EnvError(
                f"environment {self._name} returned an observation of shape {array.shape} from "
                f"{call}; its observation space says {self._shape}"
            )
        try:
            np.copyto(out, array, casting="same_kind")
        except TypeError:
            raise EnvError(
                f"environment {self._name} returned an observation of dtype {array.dtype} from "
                f"{call}; its observation space says {out.dtype}"
            ) from None
        if array.dtype != out.dtype and array.dtype.kind in "iu" and (out != array).any():
            raise EnvError(
                f"environment {self._name} returned an observation from {call} that its "
                f"observation space, of dtype {out.dtype}, does not hold: {array.dtype} from "
                f"{array.min()} to {array.max()}"
            )


def _type_name(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"ndarray ({value.dtype} of shape {value.shape})"
    return type(value).__name__
