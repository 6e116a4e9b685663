"""The rollout: ``T`` steps of ``B`` environments, time-major.

Alignment, everywhere in this package: ``action[t]`` was chosen from ``observation[t]``;
``reward[t]``, ``terminated[t]`` and ``truncated[t]`` are the result of ``action[t]``.
``observation[T]`` is the bootstrap observation. An environment that ends an episode at ``t`` has
been reset already in ``observation[t + 1]`` (same-step autoreset), except under the ``wait`` reset
policy, where the rest of its column is zero and not valid.

The final observation of an episode that was truncated at ``t``, and not terminated there as well,
is kept in slot ``k`` of its column: ``final_observation[k, b]`` with ``final_step[k, b] == t``;
unused slots have ``final_step == -1``.

``info[t]`` belongs to the step ``action[t]``, never to a reset. It is NaN if the step has no value,
or if there was no step.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accel_rl.spaces import Space, dtype_of, shape_of
from accel_rl.system.shared_memory import round_up

ALIGNMENT_BYTES = 64  # one cache line, and what vector loads like

Layout = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
"""Shape and dtype of named arrays that lie one after the other in one buffer."""


@dataclass(frozen=True, kw_only=True)
class RolloutSpec:
    """Shapes and dtypes of a rollout: ``T`` steps of ``B`` environments.

    Attributes:
        T: number of steps.
        B: number of environments.
        observation: space of one environment's observations.
        action: space of one environment's actions.
        info_keys: names of the numbers in the last axis of ``info``.
    """

    T: int
    B: int
    observation: Space
    action: Space
    info_keys: tuple[str, ...] = ()

    def layout(self) -> Layout:
        """Shape and dtype of each field of `Rollout`, in its order."""
        T, B = self.T, self.B
        boolean, float32 = np.dtype(np.bool_), np.dtype(np.float32)
        shape, dtype = shape_of(self.observation), dtype_of(self.observation)
        return {
            "observation": ((T + 1, B, *shape), dtype),
            "action": ((T, B, *shape_of(self.action)), dtype_of(self.action)),
            "reward": ((T, B), float32),
            "raw_reward": ((T, B), float32),
            "terminated": ((T, B), boolean),
            "truncated": ((T, B), boolean),
            "episode_ended": ((T, B), boolean),
            "valid": ((T, B), boolean),
            "final_observation": ((T, B, *shape), dtype),
            "final_step": ((T, B), np.dtype(np.int64)),
            "info": ((T, B, len(self.info_keys)), float32),
        }

    @property
    def nbytes(self) -> int:
        """Bytes that `Rollout.from_buffer` needs, alignment included."""
        return layout_bytes(self.layout())


@dataclass(frozen=True)
class Rollout:
    """The arrays of one rollout, time-major.

    ``action[t]`` was chosen from ``observation[t]``; ``reward[t]`` and the flags of row ``t`` are
    its result. The sampler that owns the arrays says who writes them and when.

    Attributes:
        observation: ``[T + 1, B, ...]``; structs if the space is a mapping. Row ``T`` is the
            observation after the last step.
        action: ``[T, B, ...]``; structs if the space is a mapping.
        reward: ``[T, B]`` float32, as the learner sees it.
        raw_reward: ``[T, B]`` float32, reward of the task.
        terminated: ``[T, B]`` bool, True where the next state has value 0.
        truncated: ``[T, B]`` bool, True where the episode was cut off.
        episode_ended: ``[T, B]`` bool, True where the environment is reset after the step.
        valid: ``[T, B]`` bool, False where no step was taken.
        final_observation: ``[T, B, ...]``, final observations of truncated episodes. Pages of the
            memory that are not used are not taken.
        final_step: ``[T, B]`` int64, the step ``t`` of each final observation; -1 where unused.
        info: ``[T, B, len(info_keys)]`` float32, NaN where a step has no value.
        extras: arrays ``[T, B, ...]`` by name, which the policy returned in `PolicyOutput`.
    """

    observation: NDArray[Any]
    action: NDArray[Any]
    reward: NDArray[np.float32]
    raw_reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    episode_ended: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    final_observation: NDArray[Any]
    final_step: NDArray[np.int64]
    info: NDArray[np.float32]
    extras: dict[str, NDArray[Any]] = field(default_factory=dict)

    @classmethod
    def from_buffer(cls, spec: RolloutSpec, buffer: Any) -> Rollout:
        """Return a rollout whose arrays are views of a buffer, such as shared memory.

        Args:
            spec: shapes and dtypes.
            buffer: at least ``spec.nbytes`` bytes.
        """
        arrays: dict[str, Any] = carve(spec.layout(), buffer)
        return cls(**arrays)

    @classmethod
    def allocate(cls, spec: RolloutSpec) -> Rollout:
        """Return a zeroed rollout in this process's own memory.

        No other array is on the pages of the observations, which a GPU may register.

        Args:
            spec: shapes and dtypes.
        """
        layout = spec.layout()
        arrays: dict[str, Any] = {
            name: np.zeros(shape, dtype)
            for name, (shape, dtype) in layout.items()
            if name != "observation"
        }
        return cls(observation=_zeros_on_own_pages(*layout["observation"]), **arrays)

    @property
    def results(self) -> tuple[NDArray[Any], ...]:
        """The arrays `reward` to `valid`, ``[T, B]`` each."""
        return (
            self.reward,
            self.raw_reward,
            self.terminated,
            self.truncated,
            self.episode_ended,
            self.valid,
        )

    def copy(self) -> Rollout:
        """Return a copy that later rollouts do not overwrite. Unused final observations are 0."""
        final_observation = np.zeros(self.final_observation.shape, self.final_observation.dtype)
        used = np.nonzero(self.final_step >= 0)
        final_observation[used] = self.final_observation[used]
        names = {each.name for each in fields(self)} - {"final_observation", "extras"}
        copies = {name: getattr(self, name).copy() for name in names}
        extras = {name: array.copy() for name, array in self.extras.items()}
        return Rollout(final_observation=final_observation, extras=extras, **copies)


def _zeros_on_own_pages(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    num_bytes = math.prod(shape) * dtype.itemsize
    memory = np.zeros(round_up(num_bytes, mmap.PAGESIZE) + mmap.PAGESIZE, np.uint8)
    begin = -memory.ctypes.data % mmap.PAGESIZE
    return np.ndarray(shape, dtype, memory, begin)


def truncate_running(
    rollout: Rollout, columns: range, t: int, is_done: bool, waits: bool
) -> list[int]:
    """Mark the running episodes of ``columns`` as truncated at row ``t``; return their columns.

    Args:
        t: the step of the last order.
        is_done: whether the worker took step ``t``. If not, row ``t`` is not valid, and the
            observation before it is the final one.
        waits: whether ended episodes have no successor in this rollout (``reset_policy=wait``).
    """
    cols = np.arange(columns.start, columns.stop)
    if not is_done:
        _forget_step(rollout, cols, t)
    if waits:
        cols = cols[~rollout.episode_ended[:t, cols].any(axis=0)]
    cols = cols[~rollout.episode_ended[t, cols]]
    last_seen = t + 1 if is_done else t
    for b in cols[~rollout.terminated[t, cols]]:
        slot = int(np.argmin(rollout.final_step[:, b]))
        rollout.final_observation[slot, b] = rollout.observation[last_seen, b]
        rollout.final_step[slot, b] = t
    if waits:
        rollout.observation[t + 1, columns.start : columns.stop] = 0
    rollout.truncated[t, cols] = True
    rollout.episode_ended[t, cols] = True
    return [int(b) for b in cols]


def _forget_step(rollout: Rollout, cols: NDArray[np.int64], t: int) -> None:
    """Undo whatever the lost worker may have written of step ``t``."""
    for results in rollout.results:
        results[t, cols] = 0
    rollout.info[t, cols] = np.nan
    used = rollout.final_step[:, cols]
    rollout.final_step[:, cols] = np.where((t == 0) | (used == t), -1, used)


def layout_bytes(layout: Layout) -> int:
    """Return the bytes that `carve` needs for ``layout``, alignment included."""
    return sum(
        round_up(math.prod(shape) * dtype.itemsize, ALIGNMENT_BYTES)
        for shape, dtype in layout.values()
    )


def carve(layout: Layout, buffer: Any, offset: int = 0) -> dict[str, NDArray[Any]]:
    """Return the arrays of ``layout``, as views of ``buffer`` from byte ``offset`` on."""
    arrays = {}
    for name, (shape, dtype) in layout.items():
        arrays[name] = np.ndarray(shape, dtype, buffer, offset)
        offset += round_up(arrays[name].nbytes, ALIGNMENT_BYTES)
    return arrays
