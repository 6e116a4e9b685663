"""What an algorithm's config is given: the network, the task of a learner, the options of a run."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Protocol

import torch
from numpy.typing import NDArray

from accel_rl.capture import EAGER, Capture
from accel_rl.envs.base import EnvSpec
from accel_rl.models import MemorySpec, PreviousInputs
from accel_rl.parallel import ALONE, ParallelConfig, Ranks
from accel_rl.spaces import OBSERVATION


class Network(NamedTuple):
    """What `LearnerConfig.make_agent` makes an agent of.

    Attributes:
        model: Name of the network, or ``module:function``.
        env: Spaces of the environment.
        device: Where the network runs.
        lstm: Whether it has an LSTM; only for algorithms that learn sequences.
        gru: Whether it has a GRU, likewise.
        previous_action_reward: Whether that is also told the previous action and reward.
        capture: How acting, and what the learner computes, is compiled.
        observations: Two observations ``[2, ...]`` on which a network of the user's own is tried.
    """

    model: str
    env: EnvSpec
    device: torch.device
    lstm: bool = False
    capture: Capture = EAGER
    observations: NDArray[Any] | None = None
    gru: bool = False
    previous_action_reward: bool = False

    @property
    def memory(self) -> MemorySpec | None:
        """Its memory; None: it has none.

        Raises:
            ValueError: Actions cannot be told.
        """
        if not (self.lstm or self.gru):
            return None
        previous = PreviousInputs(self.env.action) if self.previous_action_reward else None
        return MemorySpec("gru" if self.gru else "lstm", previous)

    @property
    def unmasked(self) -> NDArray[Any] | None:
        """The ``observations`` of environments that have one array, perhaps beside a mask."""
        given = self.observations
        return given if given is None or given.dtype.names is None else given[OBSERVATION]


class Task(NamedTuple):
    """What a learner has to do: it gets rollouts ``[horizon, num_envs]`` of ``env``.

    Attributes:
        env: Spaces of the environment.
        num_envs: Environments of this learner.
        horizon: Steps of each environment in a rollout.
        seed: Seed of the learner's own randomness.
        ranks: Which of the run's learners this is.
    """

    env: EnvSpec
    num_envs: int
    horizon: int
    seed: int
    ranks: Ranks = ALONE


class SamplerOptions(Protocol):
    """What an algorithm may ask of how experience is gathered; see `SamplerConfig`."""

    @property
    def num_envs(self) -> int: ...

    @property
    def horizon(self) -> int: ...

    @property
    def num_groups(self) -> int: ...

    @property
    def reset_policy(self) -> str: ...


class RunOptions(Protocol):
    """What an algorithm may ask of a run; see `TrainConfig`."""

    @property
    def algo(self) -> str: ...

    @property
    def memory(self) -> str: ...

    @property
    def has_memory(self) -> bool: ...

    @property
    def overlap(self) -> bool: ...

    @property
    def serial(self) -> bool: ...

    @property
    def total_steps(self) -> int: ...

    @property
    def num_learners(self) -> int: ...

    @property
    def parallel(self) -> ParallelConfig: ...

    @property
    def sampler(self) -> SamplerOptions: ...


class Batch(NamedTuple):
    """Samples that learners in step divide.

    Attributes:
        size: Number of samples.
        whole: Number of samples of which it must be a part without remainder; None: of none.
    """

    size: int
    whole: int | None = None


def remembers_nothing(run: RunOptions) -> str | Literal[False]:
    """Return why options of a memory have no effect; False if they have one."""
    return not run.has_memory and "lstm and gru are false"


def shares_updates(run: RunOptions) -> bool:
    """Return whether several learners make each update together."""
    return run.num_learners > 1 and run.parallel.sync == "all_reduce"
