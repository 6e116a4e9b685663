"""Types that all samplers share: settings, the input of a policy, reports, and errors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from threading import Lock
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from accel_rl.envs.base import EnvSpec
from accel_rl.options import check_seed, check_settings, option, require, when
from accel_rl.rollout import RolloutSpec, layout_bytes
from accel_rl.system.topology import free_memory

RESET_SECONDS = 240.0
"""what starting, and resets between rollouts, may take longer than a step"""
_is_serial = when("sampler.num_workers", 0)


def _groups_are_idle(run: Any) -> str | Literal[False]:
    return run.sampler.num_groups > 1 and _is_serial(run)  # one is what it is, and has to be


def _affinity_is_idle(run: Any) -> str | Literal[False]:
    return run.num_learners == 1 and _is_serial(run)  # several divide the cores


class Autoreset(Enum):
    """When the next episode of an environment begins.

    Reset policies of samplers, modes of Gymnasium's vector environments and ways of batches are
    mapped to it. Gymnasium's modes are its values.
    """

    SAME_STEP = "SameStep"
    """In the step that ends an episode."""
    NEXT_STEP = "NextStep"
    """In the step after that, which ignores the action."""
    WAIT = "wait"
    """Between two rollouts; until then the environment takes no step."""
    CALLER = "Disabled"
    """When the caller says so."""


@dataclass(frozen=True, kw_only=True)
class SamplerConfig:
    """Options of sampling.

    Raises:
        ValueError: a value is out of range, or ``num_envs`` does not divide into ``num_groups``.
    """

    num_envs: int = option(16, common=True)
    """Number of environments, B."""
    horizon: int = option(5, common=True)
    """Steps of each environment in one rollout, T."""
    num_groups: int = option(2, "engine", idle=_groups_are_idle, common=True)
    """Number of groups of environments that are served by turns.
    With 2, one group simulates while the policy acts for the other. With 1, all environments wait
    for each other."""
    num_workers: int | None = option(None, "engine", common=True)
    """Number of worker processes.
    none: one for each core, at most num_envs. 0: all environments are stepped in this process,
    which works on every system."""
    reset_policy: Literal["immediate", "wait"] = "immediate"
    """When environments are reset whose episode has ended.
    immediate: within the rollout. wait: the rest of the column is masked, and the reset happens
    while the learner works."""
    decorrelation_steps: int = 0
    """Maximum number of random steps that each environment takes before the first rollout, drawn
    from the seed. 0 disables them. Environments of a restarted worker take none."""
    affinity: Literal["auto", "rotate", "off"] = option("auto", "engine", idle=_affinity_is_idle)
    """Pinning of processes to cores.
    auto: each worker to a core of this process's share. rotate: as auto, and the policy's thread
    moves from core to core, for policies that compute in one thread. off: nothing is pinned."""
    on_worker_failure: Literal["raise", "restart"] = option("raise", "engine", idle=_is_serial)
    """Reaction to a worker that is killed, crashes or hangs.
    raise: the run ends. restart: the worker is replaced, up to 10 times, and its running episodes
    count as truncated and not as scores. An exception of the environment always ends the run."""
    step_timeout_seconds: float = option(60.0, "engine", idle=_is_serial)
    """Seconds after which a group that has not finished its step counts as hung.
    Resets within the step count towards it. Reading the states for a checkpoint has the same limit.
    Starting, with random first steps, and resets between rollouts may take 240 s more."""

    @property
    def reset_timeout_seconds(self) -> float:
        """Limit in seconds for starting, and for resets between rollouts."""
        return RESET_SECONDS + self.step_timeout_seconds

    @property
    def autoreset(self) -> Autoreset:
        """Autoreset mode of ``reset_policy``."""
        return Autoreset.WAIT if self.reset_policy == "wait" else Autoreset.SAME_STEP

    def rollout_spec(self, env: EnvSpec) -> RolloutSpec:
        """Return the shapes and dtypes of this sampler's rollouts.

        Args:
            env: spec of the environment.
        """
        return RolloutSpec(
            T=self.horizon,
            B=self.num_envs,
            observation=env.observation,
            action=env.action,
            info_keys=env.info_keys,
        )

    def __post_init__(self) -> None:
        check_settings(self)
        require(self, "at least 1", lambda value: value >= 1, "num_envs", "horizon", "num_groups")
        require(self, "at least 0", lambda value: value >= 0, "decorrelation_steps")
        require(self, "above 0 seconds", lambda value: value > 0, "step_timeout_seconds")
        if self.num_envs % self.num_groups:
            near = self.num_envs // self.num_groups * self.num_groups or self.num_groups
            raise ValueError(
                f"num_envs={self.num_envs} does not divide into num_groups={self.num_groups} "
                f"equal groups; use num_envs={near}, num_envs={near + self.num_groups} "
                f"or num_groups=1"
            )


def check_arguments(config: SamplerConfig, seed: int) -> None:
    """Raise ValueError if a sampler is given something else."""
    if not isinstance(config, SamplerConfig):
        raise ValueError(f"config is {config!r}; it must be a SamplerConfig")
    check_seed(seed)


def check_memory(spec: RolloutSpec) -> None:
    """Raise ValueError if the free memory does not suffice for rollouts."""
    # Final observations take memory when they are used, and few are.
    layout = {name: each for name, each in spec.layout().items() if name != "final_observation"}
    needed, free = layout_bytes(layout), free_memory()
    if needed > free:
        raise ValueError(
            f"rollouts of {spec.B} environments x horizon={spec.T} take {needed / 1e9:.1f} GB, and "
            f"{free / 1e9:.1f} GB are free; use fewer environments or a smaller horizon"
        )


def noise_shape(sizes: tuple[int, ...], num_noise: int) -> tuple[int, ...]:
    """Return the shape of the noise for ``sizes`` actions, each of ``num_noise`` numbers."""
    return sizes if num_noise == 1 else (*sizes, num_noise)


class PolicyInput(NamedTuple):
    """The argument of a policy: the observations of one group of environments at one step.

    Do not write into the arrays, nor into tensors that `torch.from_numpy` makes of them. The
    learner would read the changed numbers.

    Attributes:
        observation: ``[n, ...]``, a view of row ``t`` of the rollout, which the next rollout
            overwrites. If the space is a mapping: ``[n]`` structs with the leaves
            ``observation["camera"]`` and so on.
        noise: ``[n]`` float64, seeded random numbers in [0, 1); ``[n, k]`` for a policy whose
            attribute ``num_noise`` is ``k`` and not 1. A policy that draws its actions from them
            returns the same actions for every number of groups and workers.
        t: the step, ``0 .. T - 1``.
        env_slice: the environments of the group, as columns of the rollout.
        is_first: ``[n]`` bool, True where ``observation`` is the first of an episode, or of a life
            if lives count as episodes. A policy with a memory resets it there.
        reward: ``[n]`` float32, reward of the previous step as the learner sees it, a view. In row
            0 it is 0 after a rollout that was broken off, or a restored state.
            Undefined where ``is_first`` is True.
    """

    observation: NDArray[Any]
    noise: NDArray[np.float64]
    t: int
    env_slice: slice
    is_first: NDArray[np.bool_]
    reward: NDArray[np.float32]


class PolicyOutput(NamedTuple):
    """The return value of a policy that keeps more than actions in the rollout.

    Attributes:
        action: ``[n, ...]``, the actions.
        extras: arrays or tensors ``[n, ...]`` by name, such as log-probabilities. They are kept in
            ``rollout.extras``. Names, shapes and dtypes must be the same in every call.
    """

    action: Any
    extras: Mapping[str, Any]


Policy = Callable[[PolicyInput], Any]
"""Function from a `PolicyInput` to actions.

It returns the actions ``[n, ...]``: an array, tensor or list. Discrete actions are integers in
``0 .. num_actions - 1``. If the action space is a mapping, it returns a mapping of these or a
structured array. It may return `PolicyOutput` to keep more in the rollout."""


class Episode(NamedTuple):
    """One finished episode.

    Attributes:
        env_index: number of the environment, ``0 .. B - 1``.
        episode_return: sum of the rewards of the task, undiscounted.
        clipped_return: sum of the rewards that the learner sees.
        episode_length: number of steps.
        truncated: whether the episode was cut off.
        is_lost: whether it ended because its worker was lost and replaced.
        info: numbers of its last step, by their key in `EnvSpec.info_keys`.
    """

    env_index: int
    episode_return: float
    clipped_return: float
    episode_length: int
    truncated: bool
    is_lost: bool = False
    info: Mapping[str, float] = {}


class SamplerTimes(NamedTuple):
    """Seconds since the start of a sampler.

    Attributes:
        waiting: seconds in which this process waited for simulators.
        policy: seconds in which this process ran the policy.
        simulating: mean working time of the worker processes; of this process in a
            `SerialSampler`.
    """

    waiting: float
    policy: float
    simulating: float


class SamplerState(NamedTuple):
    """The state of a sampler between two rollouts, from which another sampler continues exactly.

    Attributes:
        environments: ``[B]``, the state of each environment as bytes; None if the environment
            cannot be saved.
        observation: ``[B, ...]``, row 0 of the next rollout.
        noise: state of the generator of action noise.
        episode_sums: ``[3, B]`` float64, sums over the running episodes.
        is_skipped: ``[B]`` bool, True where the running episode is not reported.
        generation: counter that rises with each start from a state and each replaced worker, so
            that restarted environments never repeat random numbers.
        is_first: ``[B]`` bool, True where row 0 of the next rollout is the first of an episode.
    """

    environments: list[bytes | None]
    observation: NDArray[Any]
    noise: dict[str, Any]
    episode_sums: NDArray[np.float64]
    is_skipped: NDArray[np.bool_]
    generation: int
    is_first: NDArray[np.bool_] | None = None


class SamplerError(RuntimeError):
    """A sampler cannot continue, or was used at the wrong time. The message says what to do."""


class WorkerError(SamplerError):
    """A worker process died, hung or raised. The message names the worker and its environments.

    Attributes:
        worker_traceback: traceback inside the worker, or an empty string. Python prints it below
            the traceback of this error.
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
    """Return the error of a sampler that shall collect and does not run."""
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
    """Raise SamplerError for ``called`` if a sampler is in ``collect`` or ``get_state`` already."""
    if collecting.locked():
        raise SamplerError(
            f"{called} was called while this sampler is in another collect or get_state, by its "
            f"policy or in another thread; use another sampler there"
        )
    with collecting:  # which, unlike `acquire`, Ctrl-C cannot leave held
        yield


def name_error(error: BaseException) -> str:
    """Return the kind of ``error`` and the first line of its message."""
    return f"{type(error).__name__}: {error}".partition("\n")[0].removesuffix(": ")
