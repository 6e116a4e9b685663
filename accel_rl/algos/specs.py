"""What an algorithm's config is given: the network, and the task of a learner."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from numpy.typing import NDArray

from accel_rl.envs.base import EnvSpec
from accel_rl.graphs import Graphs
from accel_rl.models import MemorySpec, PreviousInputs
from accel_rl.parallel import ALONE, Ranks
from accel_rl.spaces import tensor_views, without_mask


class NetworkSpec(NamedTuple):
    """The arguments from which `LearnerConfig.make_agent` makes an agent.

    Attributes:
        model: name of the network, or ``module:function``.
        env: spec of the environment.
        device: device of the network.
        memory: ``lstm`` or ``gru``; only for algorithms that learn sequences. None: no memory.
        graphs: records acting and learning as CUDA graphs. None: they run as they are.
        observations: two observations, ``[2, ...]``, with which a network of the user's own is
            tested.
        previous_action_reward: whether the memory also receives the previous action and reward.
    """

    model: str
    env: EnvSpec
    device: torch.device
    memory: Literal["lstm", "gru"] | None = None
    graphs: Graphs | None = None
    observations: NDArray[Any] | None = None
    previous_action_reward: bool = False

    @property
    def memory_spec(self) -> MemorySpec | None:
        """The memory of the network, with its inputs; None if it has none.

        Raises:
            ValueError: the memory cannot receive actions of this space.
        """
        if self.memory is None:
            return None
        previous = PreviousInputs(self.env.action) if self.previous_action_reward else None
        return MemorySpec(self.memory, previous)

    @property
    def unmasked(self) -> Any:
        """The ``observations`` without their mask, tensors; None if there are none."""
        given = self.observations
        return None if given is None else without_mask(tensor_views(self.env.observation, given))

    def check_given(self, user: str, *names: str) -> None:
        """Check that no network is asked for, by an algorithm with networks of its own.

        Args:
            user: name of the algorithm, for the message.
            names: what ``model`` may be all the same.

        Raises:
            ValueError: ``model`` is something else.
        """
        if self.model not in names:
            raise ValueError(
                f"model={self.model} is for other algorithms; {user} has networks of its own: "
                f"leave it out"
            )


class LearnerSpec(NamedTuple):
    """The part of a run that one learner has: rollouts ``[horizon, num_envs]`` of ``env``.

    Attributes:
        env: spec of the environment.
        num_envs: number of environments of this learner.
        horizon: steps of each environment in a rollout.
        seed: seed of the learner's own randomness.
        ranks: which of the run's learners this is.
        schedule_steps: steps, of all learners, in which ``progress`` rises from 0 to 1; None: not
            known.
    """

    env: EnvSpec
    num_envs: int
    horizon: int
    seed: int
    ranks: Ranks = ALONE
    schedule_steps: int | None = None


class Batch(NamedTuple):
    """A batch of samples that learners in step divide.

    Attributes:
        size: number of samples.
        whole: number of samples that ``size`` must divide without remainder; None: no such number.
    """

    size: int
    whole: int | None = None


def shares_updates(run: Any) -> bool:
    """Return whether several learners of a run, a `TrainConfig`, make each update together."""
    return bool(run.num_learners > 1 and run.parallel.sync == "all_reduce")
