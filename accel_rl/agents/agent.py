"""What runs, action servers and tools need of an agent."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn

from accel_rl.agents.epsilon_greedy import RecurrentEpsilonGreedyAgent
from accel_rl.agents.recurrent import RecurrentAgent
from accel_rl.capture import Capture


class Agent(Protocol):
    """An agent without a memory: it chooses each action from the newest observation alone.

    Agents with a memory are an `AnyRecurrentAgent`.

    Attributes:
        model: the network. Learners change its parameters.
        capture: how acting and learning are compiled, or recorded as CUDA graphs.
    """

    capture: Capture

    @property
    def model(self) -> nn.Module: ...

    def act(self, observation: Tensor, uniform: Tensor, columns: slice) -> Tensor:
        """Choose an action for each of ``N`` environments.

        Args:
            observation: ``[N, ...]``.
            uniform: ``[N]`` random numbers in [0, 1), on the device of the observation. An agent
                uses no other randomness.
            columns: the environments, as columns of the rollout.

        Returns:
            Actions ``[N]`` int64.
        """
        ...

    def greedy(self) -> Agent:
        """Return an agent with the same network that always takes its best action."""
        ...

    def follow(self, other: object) -> None:
        """Take over what another agent has beside its network, for example its epsilon.

        Args:
            other: an agent of this class.
        """
        ...


AnyRecurrentAgent = RecurrentAgent | RecurrentEpsilonGreedyAgent
"""An agent whose network has a memory."""

AnyAgent = Agent | AnyRecurrentAgent
"""An agent with or without a memory."""
