"""The simulators of a block: what steps them, and writes their results into a rollout."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accel_rl.envs.base import Environment, Resumable, close_all
from accel_rl.envs.errors import EnvError
from accel_rl.rollout import Rollout
from accel_rl.samplers.base import SamplerError
from accel_rl.system.functions import FAILURES, place_of, place_of_method
from accel_rl.system.states import check_takes, decode_state, encode_state

_NO_STEP = (0.0, 0.0, False, False, False, ())


class Each:
    """Environments that are stepped one after another, as the rows of one block.

    They write results through memory views, one number at a time: NumPy arrays cost as much for
    each number, and another 70 us a step in a worker with one environment.

    Args:
        envs: the environments, of the columns ``columns``.
        rollout: where results go.
        columns: the columns that the caller owns.
        reset_info: ``[B, len(info_keys)]``, where infos of resets go; None: nowhere.
    """

    def __init__(
        self,
        envs: Sequence[Environment],
        rollout: Rollout,
        columns: range,
        reset_info: NDArray[Any] | None = None,
    ) -> None:
        self.envs = envs
        self._columns = columns
        self._num_columns = rollout.action.shape[1]
        arrays = (rollout.action, *rollout.results)
        self._views: list[Any] = [  # [T * B]
            each.reshape(-1).data
            if each.ndim == 2 and each.dtype.names is None
            else each.reshape(-1, *each.shape[2:])
            for each in arrays
        ]
        self._info_names = rollout.info.dtype.names
        self._num_info = len(self._info_names or ()) or rollout.info.shape[2]
        shape = rollout.info.shape[2:]
        self._info = rollout.info.reshape(-1, *shape) if self._num_info else None
        self._reset_info = reset_info if self._num_info else None

    def step(self, t: int, out: Sequence[NDArray[Any]], is_idle: Sequence[bool]) -> list[bool]:
        """Take the actions of row ``t``; return whether an episode ended, for each environment.

        The next observations go to ``out``. Environments with ``is_idle`` take no step: their row
        is not valid.

        Raises:
            SamplerError: an environment raised, or returned something else than the six values of
                a `StepResult` (a plain tuple will do), flags that contradict each other, or a
                reward that is not finite.
        """
        action, reward, raw_reward, terminated, truncated, ended, valid = self._views
        all_info = self._info
        envs, columns = self.envs, self._columns
        first = t * self._num_columns + columns.start
        k = first
        try:
            for env, each, idle in zip(envs, out, is_idle, strict=True):
                result = _NO_STEP if idle else env.step(action[k], each)
                try:
                    reward[k], raw_reward[k], is_terminated, is_truncated, is_over, info = result
                    terminated[k], truncated[k], ended[k] = is_terminated, is_truncated, is_over
                except (TypeError, ValueError):
                    raise TypeError(f"it returned {result!r}, which is no StepResult") from None
                if (not is_over) if is_truncated else (is_over and not is_terminated):
                    raise ValueError(
                        f"it returned {result!r}; episode_ended goes with truncated, or with "
                        f"terminated at the end of a game, and truncated always with it"
                    )
                valid[k] = not idle
                if all_info is not None:
                    self._write_info(all_info, k, info)
                k += 1
        except FAILURES as error:
            failed = k - first
            raise env_failure(envs[failed], columns[failed], "step", error) from error
        for name, view in (("reward", reward), ("raw_reward", raw_reward)):
            values = view[first:k].tolist()
            if not all(map(isfinite, values)):
                i = [isfinite(value) for value in values].index(False)
                raise SamplerError(
                    f"environment {columns[i]} ({envs[i].spec.name}) returned the {name} "
                    f"{values[i]}; it must be finite{place_of_method(envs[i], 'step')}"
                )
        are_over: list[bool] = ended[first:k].tolist()
        return are_over

    def seed(self, i: int, seed: np.random.SeedSequence) -> None:
        """Seed environment ``i``."""
        try:
            self.envs[i].seed(seed)
        except FAILURES as error:
            raise env_failure(self.envs[i], self._columns[i], "seed", error) from error

    def reset(self, i: int, out: NDArray[Any]) -> None:
        """Reset environment ``i``; its first observation goes to ``out``."""
        try:
            self.envs[i].reset(out)
            if self._reset_info is not None:
                told = getattr(self.envs[i], "reset_info", ())
                self._write_info(self._reset_info, self._columns[i], told)
        except FAILURES as error:
            raise env_failure(self.envs[i], self._columns[i], "reset", error) from error

    def get_state(self, i: int) -> bytes | str | None:
        """Return the state of environment ``i``; a text of why it cannot be saved; None: nothing
        for that is there."""
        env = self.envs[i]
        if not isinstance(env, Resumable):
            return None
        try:
            state = env.get_state()
            check_takes(env.set_state, state)
            return encode_state(state)
        except FAILURES as error:
            return str(env_failure(env, self._columns[i], "get_state", error))

    def set_state(self, i: int, state: bytes) -> None:
        """Let environment ``i`` go on from ``state``."""
        env = self.envs[i]
        if not isinstance(env, Resumable):
            raise SamplerError(
                f"environment {self._columns[i]} ({env.spec.name}) has a saved state and no "
                f"set_state to take it"
            )
        try:
            env.set_state(decode_state(state))
        except FAILURES as error:
            raise env_failure(env, self._columns[i], "set_state", error) from error

    def close(self) -> None:
        close_all(self.envs)

    def _write_info(self, all_info: NDArray[Any], k: int, info: Sequence[Any]) -> None:
        if self._info_names is None:
            numbers = info if self._has_all(info) else nan
            try:
                all_info[k] = numbers
            except ValueError:
                raise ValueError(
                    f"its info is {info!r:.200}; arrays must be there in the first steps of an "
                    f"episode, or info_shapes of its spec must have their shapes"
                ) from None
            return
        values = info if self._has_all(info) else [nan] * self._num_info
        for name, value in zip(self._info_names, values, strict=True):
            row = all_info[name][k, ...]
            if np.shape(value) not in ((), row.shape):
                raise ValueError(
                    f"its info {name} has shape {np.shape(value)}; it must be {row.shape}"
                )
            row[...] = value

    def _has_all(self, info: Sequence[Any]) -> bool:
        """Whether there is a value for each key, False if there is none at all."""
        if len(info) not in (0, self._num_info):
            raise ValueError(
                f"its info has {len(info)} values; it must have one for each of the "
                f"{self._num_info} info_keys of its spec"
            )
        return len(info) > 0


def env_failure(env: Environment, index: int, call: str, error: BaseException) -> SamplerError:
    """The error to raise ``from error`` when environment ``index`` raised it in ``call``."""
    name = env.spec.name
    if isinstance(error, EnvError):  # which says the rest, and where something was raised
        what = str(error).removeprefix(f"environment {name}").lstrip(": ")
        was_placed = error.__cause__ is not None and place_of(error.__cause__)
        what += "" if was_placed else place_of_method(env, call)
    else:
        place = place_of(error) or place_of_method(env, call)
        what = f"failed in {call}: {type(error).__name__}: {error}{place}"
    return SamplerError(f"environment {index} ({name}) {what}")
