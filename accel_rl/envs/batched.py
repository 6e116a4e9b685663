"""Simulators that are batches: one call steps all environments of a worker's slice.

A NumPy simulator of a thousand environments, or one in C with threads of its own, takes one call
for what a loop over `Environment` takes a thousand calls for.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, TypeGuard, get_args

import numpy as np
from numpy.typing import NDArray

from accel_rl.envs.base import Array, EnvSpec, close_quietly, has_members_of
from accel_rl.envs.errors import EnvError
from accel_rl.spaces import zeros
from accel_rl.system.functions import find_function

BatchReset = Literal["disabled", "next_step", "same_step"]
"""Ways in which a batch resets its environments, as in Gymnasium's autoreset modes."""

ADAPTERS = "accel_rl.vector.adapters."
"""Package of the adapters. Modules of it are found by name, since they lie above this one."""


class Results(NamedTuple):
    """The results of one step of ``n`` environments. The fields mean the same as in `StepResult`.

    The arrays belong to the caller, which copies them after each step.

    Attributes:
        reward: ``[n]`` float32.
        raw_reward: ``[n]`` float32.
        terminated: ``[n]`` bool.
        truncated: ``[n]`` bool.
        episode_ended: ``[n]`` bool.
        info: ``[n, len(info_keys)]`` float32, NaN before each step.
        final_observation: ``[n, ...]``. A batch with ``autoreset="same_step"`` writes the last
            observations of ended episodes into their rows. Other batches do not write it.
    """

    reward: NDArray[np.float32]
    raw_reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    episode_ended: NDArray[np.bool_]
    info: NDArray[np.float32]
    final_observation: Array

    @classmethod
    def allocate(cls, spec: EnvSpec, n: int) -> Results:
        """Return zeroed results.

        Args:
            spec: spec of the environments.
            n: number of environments.
        """
        reward, raw_reward = np.zeros((2, n), np.float32)  # together, to be checked in one call
        terminated, truncated, episode_ended = np.zeros((3, n), np.bool_)
        info = np.full((n, len(spec.info_keys)), np.nan, np.float32)
        final = zeros(spec.observation, n)
        return cls(reward, raw_reward, terminated, truncated, episode_ended, info, final)


class Simulators(Protocol):
    """A batch of ``n`` environments of one spec, which one call steps.

    Rows of ``out`` (``[n, ...]``, of the spec's dtype) and of the results belong to the caller.

    `autoreset` says when the next episode of an environment begins after ``episode_ended``:

    - ``disabled``: when the caller resets the environment. Until then `step` may receive any
      action for it. Its results and observation are ignored, but must not be an error. It must
      draw no random numbers in that time, so that its next episodes are those that it has alone.
    - ``next_step``: in the next call of `step`, which ignores the action and returns the first
      observation.
    - ``same_step``: in the same call of `step`, which returns the first observation and writes
      the last one into ``results.final_observation``.

    A batch may have more members. `VectorEnv` shows an ``observation_space``. ``get_state(i)`` and
    ``set_state(i, state)`` save environment ``i`` as in `Resumable`.
    """

    @property
    def spec(self) -> EnvSpec:
        """The spaces of one environment."""
        ...

    @property
    def autoreset(self) -> BatchReset:
        """When the next episode begins."""
        ...

    def seed(self, seeds: Sequence[np.random.SeedSequence | None]) -> None:
        """Seed the environments before a reset.

        A batch that cannot seed environments separately ignores a call that contains None.

        Args:
            seeds: ``[n]``. None leaves the randomness of an environment as it is, and appears only
                after a first call without None.
        """
        ...

    def reset(self, mask: NDArray[np.bool_], out: Array) -> None:
        """Reset some environments.

        Args:
            mask: ``[n]``, True for each environment to reset. The first reset takes all. If
                `autoreset` is not ``disabled``, every reset takes all.
            out: ``[n, ...]``. Write only the rows of ``mask``.
        """
        ...

    def step(self, action: NDArray[Any], out: Array, results: Results) -> None:
        """Take one step of all environments.

        Args:
            action: ``[n, ...]``, of the spec's ``action``.
            out: ``[n, ...]``, where to write the next observations.
            results: where to write rewards and flags.
        """
        ...

    def close(self) -> None:
        """Release what the batch holds."""
        ...


class Batched:
    """A factory of environments that are stepped as one batch, for samplers and `VectorEnv`.

    Each worker makes one batch for each of its groups of environments.

    Args:
        make: function of the number of environments. It returns `Simulators` or a
            `gymnasium.vector.VectorEnv`.
        name: name in messages; None: the name of ``make``.
        indexed: True: ``make`` is called as ``make(n, first_index)`` and makes the environments
            ``first_index`` to ``first_index + n - 1``.

    Raises:
        ValueError: ``make`` is not a function.
    """

    def __init__(
        self, make: Callable[..., Any], *, name: str | None = None, indexed: bool = False
    ) -> None:
        if not callable(make):
            raise ValueError(
                f"Batched: make is {make!r}; it must be a function of the number of environments"
            )
        self._make = make
        self._indexed = indexed
        self.__name__ = str(name or getattr(make, "__name__", "batch"))

    def __call__(self) -> Any:
        """Return this object, so that it can be passed as a factory."""
        return self

    def make(self, n: int, first_index: int = 0) -> Simulators:
        """Make one batch.

        Args:
            n: number of environments.
            first_index: number of the first environment.

        Raises:
            EnvError: the batch lacks a member of `Simulators`.
        """
        name = self.__name__
        made = self._make(n, first_index) if self._indexed else self._make(n)
        made = _as_simulators(made, n, name)
        autoreset = getattr(made, "autoreset", None)
        if is_batch(made) and autoreset in get_args(BatchReset):
            return made
        close_quietly(made)
        what = f"a {type(made).__name__}"
        if is_batch(made):
            what = f"a batch with autoreset={autoreset!r}"
        raise EnvError(
            f"environment {name} is {what}; the function of a Batched must return "
            f"accel_rl.envs.Simulators, whose autoreset is {', '.join(get_args(BatchReset))}, or a "
            f"gymnasium.vector.VectorEnv"
        )


def is_batch(env: Any) -> TypeGuard[Simulators]:
    """Return whether ``env`` has all members of `Simulators`."""
    return has_members_of(env, Simulators)


def call_factory(factory: Callable[..., Any], env_index: int) -> Any:
    """Call a factory; one that has a parameter ``env_index`` gets the environment's number."""
    try:
        takes_index = "env_index" in inspect.signature(factory).parameters
    except (TypeError, ValueError):  # some functions written in C
        takes_index = False
    return factory(env_index=env_index) if takes_index else factory()


def name_of(factory: Callable[..., Any]) -> str:
    """Return the name of a factory's environments in messages."""
    name = getattr(factory, "__name__", None)
    if name is None and isinstance(factory, partial):
        return name_of(factory.func)
    return str(name or repr(factory))


def numbered(factory: Callable[..., Any], first: int) -> Callable[..., Any]:
    """Return a factory of the same environments or batches, whose numbers begin at ``first``."""
    return changed(factory, None, first) if first else factory


def changed(
    factory: Callable[..., Any], change: Callable[[Any], Any] | None, first: int = 0
) -> Callable[..., Any]:
    """Return a factory of the same environments or batches, each changed by ``change``."""
    make = partial(_make_changed, factory, change, first)
    make.__name__ = getattr(factory, "__name__", "environment")  # type: ignore[attr-defined]
    return make


def _make_changed(factory: Any, change: Any, first: int, env_index: int = 0) -> Any:
    made = call_factory(factory, first + env_index)
    if isinstance(made, Batched):
        make = partial(_make_changed_batch, made, change, first)
        return Batched(make, name=made.__name__, indexed=True)
    return made if change is None else change(made)


def _make_changed_batch(batched: Batched, change: Any, first: int, n: int, index: int) -> Any:
    made = batched.make(n, first + index)
    return made if change is None else change(made)


def _as_simulators(made: Any, n: int, name: str) -> Any:
    """Return ``made``, in an adapter if it is a vector environment of Gymnasium's."""
    vector = sys.modules.get("gymnasium.vector")
    if vector is None or not isinstance(made, vector.VectorEnv):
        return made
    adapt = find_function("env", f"{ADAPTERS}gymnasium_vector:GymnasiumVector")
    try:
        return adapt(made, n, name)
    except BaseException:
        close_quietly(made)
        raise
