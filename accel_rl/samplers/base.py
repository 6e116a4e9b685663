"""What samplers share: settings, what a policy is given, what they report, and their errors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from accel_rl.envs.base import EnvSpec
from accel_rl.rollout import RolloutSpec
from accel_rl.settings import check_seed, check_settings, option, when
from accel_rl.topology import free_memory

_MOST_ENVS = 1_000_000  # objects of Python each
_MOST_RANDOM_STEPS = 1_000_000  # with which an environment may begin


_is_serial = when("serial", True)


def _groups_are_idle(run: Any) -> str | Literal[False]:
    return run.sampler.num_groups > 1 and _is_serial(run)  # one is what it is, and has to be


def _affinity_is_idle(run: Any) -> str | Literal[False]:
    return run.num_learners == 1 and _is_serial(run)  # several divide the cores


def _restarts_nothing(run: Any) -> str | Literal[False]:
    return when("sampler.on_worker_failure", "raise")(run) or _is_serial(run)


@dataclass(frozen=True, kw_only=True)
class SamplerConfig:
    """How experience is gathered.

    Raises:
        ValueError: a value is out of range, or ``num_envs`` does not divide into ``num_groups``.
    """

    num_envs: int = option(16, common=True)
    """environments in all, B"""
    horizon: int = option(5, common=True)
    """steps of each environment in one rollout, T"""
    num_groups: int = option(2, "engine", idle=_groups_are_idle, common=True)
    """groups of environments served in turn: 2 simulate alternately, 1 all at once"""
    num_workers: int | None = option(None, "engine", idle=_is_serial, common=True)
    """simulator processes; none: one for each core (and group, if workers hold one group each)"""
    workers_per_core: int = option(1, "engine", idle=_is_serial)
    """1: each worker holds a slice of every group; num_groups: each holds a slice of one group"""
    cores_per_worker: int = option(1, "engine", idle=_is_serial)
    """neighbouring cores of each worker, for simulators with threads of their own"""
    reset_policy: Literal["immediate", "wait"] = "immediate"
    """immediate: reset within the rollout; wait: mask the rest of it, reset while learning"""
    decorrelation_steps: int = 0
    """each environment first takes up to so many uniformly random steps, seeded; 0: none. One in
    the place of a lost one takes none"""
    final_observation_slots: int | None = option(None, "engine")
    """final observations of truncated episodes kept for each environment and rollout; none, or more
    than horizon: of all, one for each step at most"""
    affinity: Literal["auto", "rotate", "off"] = option("auto", "engine", idle=_affinity_is_idle)
    """auto: pin each worker to a core of this process' share; rotate: besides, the policy's thread
    moves from core to core, for policies that compute in it alone; off: the kernel places all"""
    on_worker_failure: Literal["raise", "restart"] = option("raise", "engine", idle=_is_serial)
    """raise, or restart: a worker that was killed, crashed or hung is replaced and its running
    episodes count as truncated, and as no scores; an exception of the environment ends the run in
    either case"""
    max_worker_restarts: int = option(10, "engine", idle=_restarts_nothing)
    """restarts in all before the run ends with an error"""
    step_timeout_seconds: float = option(60.0, "engine", idle=_is_serial)
    """a group that has not stepped after so long has hung; resets within the step are part of it"""
    reset_timeout_seconds: float = option(300.0, "engine")
    """limit for starting, random first steps included, for resets between rollouts, and for the one
    environment that is made first, to read its spec"""

    def rollout_spec(self, env: EnvSpec) -> RolloutSpec:
        """Shapes and dtypes of this sampler's rollouts of the environment ``env``."""
        return RolloutSpec(
            T=self.horizon,
            B=self.num_envs,
            observation=env.observation,
            action=env.action,
            final_observation_slots=min(self.final_observation_slots or self.horizon, self.horizon),
            info_keys=env.info_keys,
            info_shapes=env.info_shapes,
        )

    def __post_init__(self) -> None:
        check_settings(self)
        for name in ("num_envs", "horizon", "num_groups", "cores_per_worker"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.num_envs > _MOST_ENVS:
            raise ValueError(
                f"num_envs is {self.num_envs}; it must be at most {_MOST_ENVS}, which take more "
                f"memory than most machines have"
            )
        slots = self.final_observation_slots
        if slots is not None and slots < 1:
            raise ValueError(f"final_observation_slots is {slots}; it must be at least 1, or none")
        for name in ("decorrelation_steps", "max_worker_restarts"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 0")
        if self.decorrelation_steps > _MOST_RANDOM_STEPS:
            raise ValueError(
                f"decorrelation_steps is {self.decorrelation_steps}; it must be at most "
                f"{_MOST_RANDOM_STEPS}, which takes minutes already"
            )
        for name in ("step_timeout_seconds", "reset_timeout_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0 seconds")
        if self.num_envs % self.num_groups:
            near = self.num_envs // self.num_groups * self.num_groups or self.num_groups
            raise ValueError(
                f"num_envs={self.num_envs} does not divide into num_groups={self.num_groups} "
                f"equal groups; use num_envs={near}, num_envs={near + self.num_groups} "
                f"or num_groups=1"
            )
        if self.workers_per_core not in (1, self.num_groups):
            raise ValueError(
                f"workers_per_core is {self.workers_per_core}; it must be 1 (each worker holds a "
                f"slice of every group) or num_groups={self.num_groups} (a slice of one group)"
            )
        if self.cores_per_worker > 1 and self.workers_per_core > 1:
            raise ValueError(
                f"cores_per_worker is {self.cores_per_worker}; with workers_per_core="
                f"{self.workers_per_core} it must be 1: leave one of them out"
            )


def check_arguments(config: SamplerConfig, seed: int) -> None:
    """Raises ValueError where a sampler is given something else."""
    if not isinstance(config, SamplerConfig):
        raise ValueError(f"config is {config!r}; it must be a SamplerConfig")
    check_seed(seed)


def check_policy(policy: object) -> None:
    """Raises ValueError where a sampler is given something else."""
    if not callable(policy):
        raise ValueError(
            f"policy is {policy!r}; it must be a function of a PolicyInput that returns actions"
        )


def check_memory(spec: RolloutSpec) -> None:
    """Raises ValueError where the free memory does not suffice for rollouts."""
    # Slots for final observations take memory when they are used, and few are.
    needed, free = replace(spec, final_observation_slots=1).nbytes, free_memory()
    if needed > free:
        raise ValueError(
            f"rollouts of {spec.B} environments (num_envs, with GA3C for max_agents) x horizon="
            f"{spec.T} take {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free; use less"
        )


class PolicyInput(NamedTuple):
    """What a policy is given: row ``t`` of the columns ``columns`` of the rollout in the making.

    ``observation``: ``[n, ...]``, a view of the rollout itself that the next rollout overwrites; of
    a mapping ``[n]`` structs, whose leaves are ``observation["camera"]`` and so on.
    Do not write into it, nor into a tensor that `torch.from_numpy` makes of it: the learner would
    read the changed numbers. ``uniform``: ``[n]``
    float64 in [0, 1), the step's share of a seeded block by step and environment; a policy that
    draws its randomness from it gives the same actions however environments are grouped.
    ``begins``: ``[n]``, True where ``observation`` is the first of an episode (a lost life ends
    one, where lives count): what a policy remembers of the one before is to be forgotten.
    ``reward``: ``[n]`` float32, of the step before, as the learner sees it; a view likewise. It
    says nothing where an episode begins.
    """

    observation: NDArray[Any]
    uniform: NDArray[np.float64]
    t: int
    columns: slice
    begins: NDArray[np.bool_]
    reward: NDArray[np.float32]


class Acted(NamedTuple):
    """Actions, and what else a policy wants to find in the rollout: log-probabilities, values.

    Attributes:
        action: the actions, as a policy returns them by themselves.
        extras: arrays or tensors ``[n, ...]`` by name. They are kept in ``rollout.extras``, with
            the shapes and dtypes that they have first, and from then on are needed in every call.
    """

    action: Any
    extras: Mapping[str, Any]


Policy = Callable[[PolicyInput], Any]
"""Returns the actions, ``[n, ...]``: an array, tensor or list; of a mapping, a mapping of these or
a structured array. Discrete actions are ``[n]`` integers in ``0 .. num_actions - 1``. Or it returns
`Acted`, with more that the rollout is to keep."""


class Episode(NamedTuple):
    """One finished episode. ``raw_return`` is the game's own score; ``length`` counts steps.

    ``is_lost``: it did not end by itself, nor at a limit; its worker was lost and replaced.
    ``info``: the numbers that its last step told, by their key in `EnvSpec.info_keys`.
    """

    env_index: int
    raw_return: float
    clipped_return: float
    length: int
    truncated: bool
    is_lost: bool = False
    info: Mapping[str, float] = {}


class SamplerTimes(NamedTuple):
    """Seconds since the sampler's start.

    ``waiting`` and ``policy`` are this process' own, waiting for simulators and in the policy.
    ``simulating`` is the simulators' mean working time in their processes (in a serial sampler,
    in this one).
    """

    waiting: float
    policy: float
    simulating: float


class SamplerState(NamedTuple):
    """The state of a sampler between two rollouts; another sampler goes on from it exactly.

    Attributes:
        environments: ``[B]``, the state of each environment as bytes, or None if it cannot tell.
        observation: ``[B, ...]``, row 0 of the next rollout.
        noise: state of the generator of action noise.
        episode_sums: ``[3, B]``, sums over the running episodes.
        is_skipped: ``[B]`` bool, True where the running episode goes unreported.
        generation: raised with each start from a state and each replaced worker, so environments
            that start again never repeat random numbers.
        begins: ``[B]`` bool, True where row 0 of the next rollout is the first of an episode.
    """

    environments: list[bytes | None]
    observation: NDArray[Any]
    noise: dict[str, Any]
    episode_sums: NDArray[np.float64]
    is_skipped: NDArray[np.bool_]
    generation: int
    begins: NDArray[np.bool_] | None = None


class SamplerError(RuntimeError):
    """A sampler cannot go on, or is used out of turn; the message says why and what to do."""


class WorkerError(SamplerError):
    """A simulator process died, hung or raised; the message names it and its environments.

    ``worker_traceback`` is the traceback inside the worker, empty where there was none; Python
    prints it below the error's own.
    """

    def __init__(self, message: str, worker_traceback: str = "") -> None:
        super().__init__(message)
        self.worker_traceback = worker_traceback
        if worker_traceback:
            self.add_note(f"In the worker:\n{worker_traceback.rstrip()}")


def was_closed() -> SamplerError:
    """The error of a sampler that is used after `close`."""
    return SamplerError("this sampler was closed; make another one")


def of_another_process(pid: int) -> SamplerError:
    """The error of what process ``pid`` made, of which this process is a fork."""
    return SamplerError(
        f"this sampler is that of process {pid}, of which this one, {os.getpid()}, is a fork; make "
        f"another one here"
    )


def not_running(ended_by: str, is_closed: bool) -> SamplerError:
    """The error of a sampler that is to collect and does not run.

    ``ended_by``: the error in an earlier `collect` that closed it, if one did.
    """
    if ended_by:
        return SamplerError(
            f"this sampler was closed by an error in an earlier collect ({ended_by}); make another "
            f"one"
        )
    if is_closed:
        return was_closed()
    return SamplerError("this sampler is not running; call start() or use it in `with`")


@contextmanager
def one_at_a_time(collecting: Lock, called: str) -> Iterator[None]:
    """Raises SamplerError if a sampler is in a ``collect`` or ``get_state`` already.

    ``called``: what is to run within.
    """
    if collecting.locked():
        raise SamplerError(
            f"{called} was called while this sampler is in another collect or get_state, by its "
            f"policy or in another thread; use another sampler there"
        )
    with collecting:  # which, unlike `acquire`, Ctrl-C cannot leave held
        yield


def name_error(error: BaseException) -> str:
    """Its kind and the first line of what it says."""
    return f"{type(error).__name__}: {error}".partition("\n")[0].removesuffix(": ")
