"""The agent of policy-gradient methods: actions are drawn from a distribution."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from accel_rl.agents.agent import Agent
from accel_rl.agents.distributions import CATEGORICAL, Distribution, Drawn
from accel_rl.agents.masks import split_mask
from accel_rl.graphs import Graphs
from accel_rl.models import PolicyValue, Sequences
from accel_rl.models.memory import run


class PolicyAgent(Agent):
    """The agent of A2C and PPO: it draws actions from a distribution that its network computes.

    If observations have a leaf ``action_mask``, it never takes an action that the mask forbids.

    Args:
        model: the network, a `PolicyValueModel`, or a `RecurrentModel` that gives a `PolicyValue`.
        graphs: records acting and learning as CUDA graphs. None: they run as they are.
        is_greedy: True: it takes the most probable action, the first of several.
        distribution: meaning of the network's outputs. Default: logits of a softmax. If it has
            parameters, it becomes a part of ``model``.
    """

    def __init__(
        self,
        model: Any,
        graphs: Graphs | None = None,
        *,
        is_greedy: bool = False,
        distribution: Distribution = CATEGORICAL,
    ) -> None:
        self.model = model
        self.graphs = graphs
        self.distribution = distribution
        self.num_noise = distribution.num_noise
        if next(distribution.parameters(), None) is not None:
            model.action_distribution = distribution  # its deviations learn with the network
        self._choose = _most_probable if is_greedy else _choose

    @torch.inference_mode()
    def act(
        self, observation: Any, noise: Tensor, env_slice: slice, memory: Sequences | None = None
    ) -> Any:
        """Choose actions, see `Agent.act`. A greedy agent uses no random numbers."""
        if self.normalizer is not None:
            observation = self.normalizer(observation)
        action, after = self._choose(self.model, self.distribution, observation, noise, memory)
        return action if memory is None else (action, after)

    @torch.inference_mode()
    def act_with_log_prob(
        self, observation: Any, noise: Tensor, env_slice: slice, memory: Sequences | None = None
    ) -> Any:
        """Draw actions like `act` of an agent that is not greedy.

        Returns:
            `Drawn`, where `act` gives actions.
        """
        if self.normalizer is not None:
            observation = self.normalizer(observation)
        *drawn, after = _draw(self.model, self.distribution, observation, noise, memory)
        return Drawn(*drawn) if memory is None else (Drawn(*drawn), after)

    def greedy(self) -> PolicyAgent:
        """Return an agent with the same network that always takes the most probable action."""
        more: dict[str, Any] = {"is_greedy": True, "distribution": self.distribution}
        agent = PolicyAgent(self.model, self.graphs, **more)
        agent.normalizer = self.normalizer
        return agent

    def evaluate(self, observation: Any, sequences: Sequences | None = None) -> PolicyValue:
        """Run the network, with gradient.

        Args:
            observation: normalized observations, ``[N, ...]``; for a network with a memory those of
                ``T`` steps of ``B`` environments, ``[T * B, ...]``.
            sequences: their recurrent states and episode starts, for a network with a memory.

        Returns:
            Masked outputs ``[N, P]``, and values ``[N]``.
        """
        outputs, value, _, _ = _masked(self.model, self.distribution, observation, sequences)
        return PolicyValue(outputs, value)


def _masked(
    model: Any, distribution: Distribution, observation: Any, memory: Sequences | None
) -> tuple[Tensor, Tensor, Any, Tensor | None]:
    """Return masked outputs, values, the mask, and the recurrent state."""
    observation, mask = split_mask(observation)
    (outputs, value), after = run(model, observation, memory)
    return distribution.mask(outputs, mask), value, mask, after


def _choose(
    model: Any,
    distribution: Distribution,
    observation: Any,
    noise: Tensor,
    memory: Sequences | None,
) -> tuple[Any, Tensor | None]:
    outputs, _, mask, after = _masked(model, distribution, observation, memory)
    return distribution.draw(outputs, noise, mask), after


def _draw(
    model: Any,
    distribution: Distribution,
    observation: Any,
    noise: Tensor,
    memory: Sequences | None,
) -> tuple[Any, Tensor, Tensor, Tensor | None]:
    outputs, value, mask, after = _masked(model, distribution, observation, memory)
    action = distribution.draw(outputs, noise, mask)
    return action, distribution.log_prob(outputs, action), value, after


def _most_probable(
    model: Any,
    distribution: Distribution,
    observation: Any,
    noise: Tensor,
    memory: Sequences | None,
) -> tuple[Any, Tensor | None]:
    outputs, _, _, after = _masked(model, distribution, observation, memory)
    return distribution.mode(outputs), after
