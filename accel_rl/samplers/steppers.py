"""Steppers of a block's environments: `OneByOne` for single environments, `AtOnce` for a batch.

Both write results into the rollout, and return the few environments in which something ended. What
follows an end is the same for both, and is in `accel_rl.samplers.block`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite, nan
from typing import Any, NoReturn, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from accel_rl.envs.base import Environment, EnvSpec, StepResult, is_resumable
from accel_rl.envs.batched import Results, Simulators
from accel_rl.envs.errors import failure
from accel_rl.rollout import Rollout
from accel_rl.samplers.base import Autoreset, SamplerError
from accel_rl.system.functions import FAILURES
from accel_rl.system.states import check_takes, decode_state, encode_state

_NO_STEP = (0.0, 0.0, False, False, False, ())
_FLAGS = (
    "episode_ended goes with truncated, or with terminated at the end of a game, and truncated "
    "always with it"
)
_OF_BATCHES = {
    "disabled": Autoreset.CALLER,
    "next_step": Autoreset.NEXT_STEP,
    "same_step": Autoreset.SAME_STEP,
}
_T = TypeVar("_T")

State = bytes | str | None
"""Bytes from `encode_state`, the reason why an environment cannot be saved, or None without saved
state."""


class Stepper(Protocol):
    """The environments ``0 .. n - 1`` of a `Block`.

    All methods but `get_state` raise SamplerError if an environment raises, or returns
    something that it must not.

    Attributes:
        envs: the environments, or the batch alone.
        spec: spec of one environment.
        is_batch: whether one call takes all environments, idle ones, too. Otherwise an idle
            environment takes no step.
        autoreset: how the environments reset themselves; `Autoreset.CALLER`: the block does.
        finals: ``[n, ...]``, final observations, if the environments reset themselves in the step.
    """

    envs: Sequence[Any]
    spec: EnvSpec
    is_batch: bool
    autoreset: Autoreset
    finals: NDArray[Any] | None

    def step(self, t: int, idle: Sequence[int], only: int | None = None) -> list[int]:
        """Take the actions of row ``t``; return where an episode has ended, or a life was lost.

        Next observations go to row ``t + 1``.

        Args:
            idle: the environments for which this is no step. Their row is not valid.
            only: the one environment to step, in no batch; None: all.
        """
        ...

    def seed(self, seeds: Mapping[int, np.random.SeedSequence]) -> None: ...

    def reset(self, which: Sequence[int], out: NDArray[Any]) -> None:
        """Reset the environments in ``which``; first observations go to ``out``, ``[n, ...]``."""
        ...

    def get_state(self, i: int, is_idle: bool) -> State:
        """Return the state of environment ``i``, whose next step is a reset if it ``is_idle``."""
        ...

    def set_state(self, i: int, state: bytes) -> bool:
        """Let environment ``i`` go on from ``state``; return whether its next step is a reset."""
        ...

    def error(self, i: int, what: str) -> SamplerError:
        """Return an error that names environment ``i`` or its batch, and says ``what``."""
        ...


class OneByOne:
    """Environments that are stepped one after another; a `Stepper`.

    They write results through memory views, one number at a time: NumPy arrays cost as much for
    each number, and another 70 us a step in a worker with one environment.
    """

    is_batch = False
    autoreset = Autoreset.CALLER
    finals: NDArray[Any] | None = None

    def __init__(
        self,
        envs: Sequence[Environment],
        rollout: Rollout,
        columns: slice,
        reset_info: NDArray[Any],
    ) -> None:
        self.envs: Sequence[Any] = envs
        self.spec = envs[0].spec
        self._columns = range(columns.start, columns.stop)
        self._num_columns = rollout.action.shape[1]
        arrays = (rollout.action, *rollout.results)
        self._views: list[Any] = [  # [T * B]
            each.reshape(-1).data
            if each.ndim == 2 and each.dtype.char not in "Veg"  # of which memory views read none
            else each.reshape(-1, *each.shape[2:])
            for each in arrays
        ]
        # Indexing a list is several times cheaper than indexing an array. The ellipsis makes views
        # of scalars, too.
        self._out = [[row[b, ...] for b in self._columns] for row in rollout.observation]
        self._nobody = [False] * len(envs)
        self._num_info = rollout.info.shape[2]
        self._info = rollout.info.reshape(-1, self._num_info) if self._num_info else None
        self._reset_info = reset_info if self._num_info else None

    def step(self, t: int, idle: Sequence[int], only: int | None = None) -> list[int]:
        action, reward, raw_reward, terminated, truncated, ended, valid = self._views
        all_info = self._info
        envs, outs = self.envs, self._out[t + 1]
        is_idle = [i in idle for i in range(len(envs))] if idle else self._nobody
        k = first = t * self._num_columns + self._columns.start
        if only is not None:
            envs, outs, k = envs[only : only + 1], outs[only : only + 1], first + only
        begin = k
        done: list[int] = []
        try:
            for env, out, skip in zip(envs, outs, is_idle, strict=False):
                result = _NO_STEP if skip else env.step(action[k], out)
                try:
                    reward[k], raw_reward[k], is_terminated, is_truncated, is_over, info = result
                    terminated[k], truncated[k], ended[k] = is_terminated, is_truncated, is_over
                except (TypeError, ValueError):
                    raise TypeError(_wrong_result(result)) from None
                if is_terminated or is_truncated or is_over:
                    if (not is_over) if is_truncated else not is_terminated:
                        raise ValueError(f"it returned {result!r}; {_FLAGS}")
                    done.append(k - first)
                valid[k] = not skip
                if all_info is not None:
                    self._write_info(all_info, k, info)
                k += 1
        except FAILURES as error:
            raise self._failure(k - first, "step", error) from error
        for name, view in (("reward", reward), ("raw_reward", raw_reward)):
            values = view[begin:k].tolist()
            if not all(map(isfinite, values)):
                i = [isfinite(value) for value in values].index(False)
                what = f"returned the {name} {values[i]}; it must be finite"
                raise self.error(begin - first + i, what)
        return done

    def seed(self, seeds: Mapping[int, np.random.SeedSequence]) -> None:
        for i, seed in seeds.items():
            self._call(i, "seed", self.envs[i].seed, seed)

    def reset(self, which: Sequence[int], out: NDArray[Any]) -> None:
        for i in which:
            self._call(i, "reset", self._reset, i, out[i, ...])

    def get_state(self, i: int, is_idle: bool) -> State:
        env = self.envs[i]
        if not is_resumable(env):
            return None
        try:
            state = env.get_state()
            check_takes(env.set_state, state)
            return encode_state(state)
        except FAILURES as error:
            return str(self._failure(i, "get_state", error))

    def set_state(self, i: int, state: bytes) -> bool:
        env = self.envs[i]
        if not is_resumable(env):
            raise self.error(i, "has a saved state and no set_state to take it")
        self._call(i, "set_state", lambda: env.set_state(decode_state(state)))
        return False

    def error(self, i: int, what: str) -> SamplerError:
        return SamplerError(f"environment {self._columns[i]} ({self.envs[i].spec.name}) {what}")

    def _reset(self, i: int, out: NDArray[Any]) -> None:
        self.envs[i].reset(out)
        if self._reset_info is not None:
            info = getattr(self.envs[i], "reset_info", ())
            self._write_info(self._reset_info, self._columns[i], info)

    def _call(self, i: int, name: str, call: Callable[..., object], *arguments: Any) -> None:
        try:
            call(*arguments)
        except FAILURES as error:
            raise self._failure(i, name, error) from error

    def _failure(self, i: int, call: str, error: BaseException) -> SamplerError:
        return self.error(i, failure(self.envs[i].spec.name, call, error))

    def _write_info(self, all_info: NDArray[Any], k: int, info: Sequence[float]) -> None:
        """Write the values of a step or reset, NaN if it has none."""
        if len(info) not in (0, self._num_info):
            raise ValueError(
                f"its info has {len(info)} values; it must have one for each of the "
                f"{self._num_info} info_keys of its spec"
            )
        all_info[k] = info if len(info) else nan


class AtOnce:
    """A batch of environments, with no loop over them; a `Stepper`."""

    is_batch = True

    def __init__(
        self, batch: Simulators, rollout: Rollout, columns: slice, reset_info: NDArray[Any]
    ) -> None:
        self.envs: Sequence[Any] = [batch]
        self.spec = batch.spec
        self.autoreset = _OF_BATCHES[batch.autoreset]
        self._batch: Any = batch
        self._rollout = rollout
        self._columns = columns
        self._n = n = columns.stop - columns.start
        self._results = Results.allocate(batch.spec, n)
        self._rewards: Any = self._results.reward.base  # [2, n]
        self._flags: Any = self._results.terminated.base  # [3, n]
        self._has_info = self._results.info.size > 0
        self._reset_info = reset_info[columns]
        self.finals = self._results.final_observation if batch.autoreset == "same_step" else None

    def step(self, t: int, idle: Sequence[int], only: int | None = None) -> list[int]:
        results, rollout, columns = self._results, self._rollout, self._columns
        if self._has_info:
            results.info.fill(np.nan)
        out = rollout.observation[t + 1, columns]
        self._call("step", self._batch.step, rollout.action[t, columns], out, results)
        if idle:
            for array in results[:5]:
                array[idle] = 0
            if self._has_info:
                if self.autoreset is Autoreset.NEXT_STEP:
                    self._reset_info[idle] = results.info[idle]
                results.info[idle] = np.nan
        if not np.isfinite(self._rewards).all():
            self._refuse_rewards()
        for array, own in zip(rollout.results[:5], results[:5], strict=True):
            array[t, columns] = own
        valid = rollout.valid[t, columns]
        valid.fill(True)
        if idle:
            valid[idle] = False
        if self._has_info:
            rollout.info[t, columns] = results.info
        if not self._flags.any():
            return []
        terminated, truncated, ended = results[2:5]
        is_done = terminated | truncated
        wrong = (ended > is_done) | (truncated > ended)
        if wrong.any():
            self._refuse_flags(int(wrong.argmax()))
        done: list[int] = np.flatnonzero(is_done).tolist()
        if self.autoreset is Autoreset.SAME_STEP:
            self._keep_reset_info(done)
        return done

    def seed(self, seeds: Mapping[int, np.random.SeedSequence]) -> None:
        self._call("seed", self._batch.seed, [seeds.get(i) for i in range(self._n)])

    def reset(self, which: Sequence[int], out: NDArray[Any]) -> None:
        mask = np.zeros(self._n, np.bool_)
        mask[which] = True
        self._call("reset", self._batch.reset, mask, out)
        self._keep_reset_info(which)

    def get_state(self, i: int, is_idle: bool) -> State:
        if not (hasattr(self._batch, "get_state") and hasattr(self._batch, "set_state")):
            return None
        try:
            return self._call("get_state", self._encode, i, is_idle)
        except SamplerError as error:
            return str(error)

    def set_state(self, i: int, state: bytes) -> bool:
        if not hasattr(self._batch, "set_state"):
            raise self.error(i, "has a saved state and no set_state to take it")
        decoded = self._call("set_state", decode_state, state)
        if not isinstance(decoded, dict) or decoded.keys() != {"state", "is_idle"}:
            raise self.error(i, "has a saved state that is not one of a batch")
        self._call("set_state", self._batch.set_state, i, decoded["state"])
        return bool(decoded["is_idle"])

    def error(self, i: int, what: str) -> SamplerError:
        first, last = self._columns.start, self._columns.stop - 1
        return SamplerError(f"environments {first} to {last} ({self.spec.name}), a batch: {what}")

    def _encode(self, i: int, is_idle: bool) -> bytes:
        state = self._batch.get_state(i)
        check_takes(self._batch.set_state, i, state)
        return encode_state({"state": state, "is_idle": is_idle})

    def _keep_reset_info(self, which: Sequence[int]) -> None:
        if self._has_info:
            info = getattr(self._batch, "reset_info", None)
            self._reset_info[which] = np.nan if info is None else info[which]

    def _call(self, name: str, call: Callable[..., _T], *arguments: Any) -> _T:
        try:
            return call(*arguments)
        except FAILURES as error:
            raise self.error(0, failure(self.spec.name, name, error)) from error

    def _refuse_rewards(self) -> NoReturn:
        for name in ("reward", "raw_reward"):
            values = getattr(self._results, name)
            for i in np.flatnonzero(~np.isfinite(values)).tolist():
                b = self._columns.start + i
                what = f"it returned the {name} {values[i]} for environment {b}; it must be finite"
                raise self.error(i, what)
        raise AssertionError

    def _refuse_flags(self, i: int) -> NoReturn:
        names = ("terminated", "truncated", "episode_ended")
        flags = ", ".join(f"{name}={getattr(self._results, name)[i]}" for name in names)
        b = self._columns.start + i
        raise self.error(i, f"it returned {flags} for environment {b}; {_FLAGS}")


def _wrong_result(result: Any) -> str:
    if isinstance(result, StepResult) and not isinstance(result.raw_reward, float | int):
        kind = type(result.raw_reward).__name__
        return f"it returned a reward of type {kind}; it must be one number"
    return f"it returned {result!r:.300}, which is no StepResult"
