"""What runs, action servers and tools need of an agent."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn

from accel_rl.agents.epsilon_greedy import RecurrentEpsilonGreedyAgent
from accel_rl.agents.recurrent import RecurrentAgent
from accel_rl.capture import Capture


class Agent(Protocol):
    """Chooses actions by what it observes at the moment; others are an `AnyRecurrentAgent`.

    Attributes:
        model: The network, whose parameters learners change.
        capture: How acting, and what its learner computes, is compiled.
    """

    @property
    def model(self) -> nn.Module: ...

    @property
    def capture(self) -> Capture: ...

    def act(self, observation: Tensor, uniform: Tensor, columns: slice) -> Tensor:
        """Actions ``[N]`` int64 for ``observation``, ``[N, ...]``, on one device.

        ``uniform``: ``[N]`` in [0, 1), all the randomness there is. ``columns``: the environments.
        """
        ...

    def greedy(self) -> Agent:
        """Return an agent of the same network that takes the action that it holds to be best."""
        ...

    def follow(self, other: object) -> None:
        """Take over whatever of ``other``, an agent of this class, is no parameter of its model."""
        ...


AnyRecurrentAgent = RecurrentAgent | RecurrentEpsilonGreedyAgent
"""one whose network remembers"""

AnyAgent = Agent | AnyRecurrentAgent
