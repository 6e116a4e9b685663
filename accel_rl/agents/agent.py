"""The base class of agents: the part that runs, action servers and tools use."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from accel_rl.agents.normalizer import Normalizer
from accel_rl.graphs import Graphs
from accel_rl.models import Sequences
from accel_rl.models.memory import remembers


class Agent:
    """A network and the way actions are chosen from it. Your own agents are subclasses.

    Attributes:
        model: the network. Learners change its parameters.
        graphs: records acting and learning as CUDA graphs. None: they run as they are.
        normalizer: normalizes observations before the network sees them. None: they stay as they
            are.
        epsilon: probability of a random action, ``[B]`` or ``[1]``; None: it has none.
        is_random: True if it takes any action, all equally likely.
        num_noise: ``k``, random numbers that it needs to choose one action.
        tells_log_prob: True if an action server keeps the log-probabilities of the actions and the
            values of the observations, by ``act_with_log_prob``, as a `PolicyAgent` has it.
    """

    model: Any = None
    graphs: Graphs | None = None
    normalizer: Normalizer | None = None
    epsilon: Tensor | None = None
    is_random: bool = False
    num_noise: int = 1
    tells_log_prob: bool = False

    @property
    def remembers(self) -> bool:
        """Whether the network has a memory. Its state is kept by `RecurrentStates`."""
        return remembers(self.model)

    def act(
        self, observation: Any, noise: Tensor, env_slice: slice, memory: Sequences | None = None
    ) -> Any:
        """Choose an action for each of ``N`` environments.

        Args:
            observation: ``[N, ...]``.
            noise: random numbers in [0, 1), on the device of the observation: ``[N]`` if
                `num_noise` is 1, else ``[N, k]``. An agent uses no other randomness.
            env_slice: the environments, as columns of the rollout.
            memory: what came before, see `one_step`, for a network with a memory.

        Returns:
            Actions ``[N, ...]``. With ``memory``: also the recurrent state ``[N, S]`` after them.
        """
        raise NotImplementedError

    def choose(self, outputs: Tensor, noise: Tensor, env_slice: slice, mask: Any = None) -> Any:
        """Choose actions from what the network computed. Override it to explore in another way.

        Evaluations and `greedy` agents act by the agent's own class, not by a subclass.

        Args:
            outputs: ``[N, ...]``, which numbers is said by each class.
            noise: random numbers, see `act`.
            env_slice: the environments, as columns of the rollout.
            mask: the action mask. None allows everything.

        Returns:
            Actions ``[N, ...]``.
        """
        raise NotImplementedError

    def greedy(self) -> Agent:
        """Return an agent with the same network that always takes its best action."""
        raise NotImplementedError

    def follow(self, other: Any) -> None:
        """Take over what another agent has beside its network.

        Args:
            other: an agent of this class.
        """
        self.normalizer, self.epsilon = other.normalizer, other.epsilon
        self.is_random = other.is_random
