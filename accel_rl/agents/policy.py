"""The agent of policy-gradient methods: actions are drawn from a distribution."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from accel_rl.agents.agent import Agent
from accel_rl.agents.distributions import CATEGORICAL, Distribution, Drawn, split_mask
from accel_rl.graphs import Graphs
from accel_rl.models import PolicyValue, Sequences
from accel_rl.models.cpu_cache import ForwardCache
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

    Attributes:
        cache: runs the network instead, and keeps what it gave for the learner. None: nothing does.
    """

    cache: ForwardCache | None = None

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
        self._is_greedy = is_greedy

    @torch.inference_mode()
    def act(
        self, observation: Any, noise: Tensor, env_slice: slice, memory: Sequences | None = None
    ) -> Any:
        """Choose actions, see `Agent.act`. A greedy agent uses no random numbers."""
        outputs, _, mask, after = self._run(observation, memory)
        action = self.choose(outputs, noise, env_slice, mask)
        return action if memory is None else (action, after)

    @torch.inference_mode()
    def act_with_log_prob(
        self, observation: Any, noise: Tensor, env_slice: slice, memory: Sequences | None = None
    ) -> Any:
        """Choose actions like `act`.

        Returns:
            `Drawn`, where `act` gives actions.
        """
        outputs, value, mask, after = self._run(observation, memory)
        action = self.choose(outputs, noise, env_slice, mask)
        drawn = Drawn(action, self.distribution.log_prob(outputs, action), value)
        return drawn if memory is None else (drawn, after)

    def choose(self, outputs: Tensor, noise: Tensor, env_slice: slice, mask: Any = None) -> Any:
        """Choose actions, see `Agent.choose`. Log-probabilities are those of `distribution`.

        Args:
            outputs: masked outputs of the network, ``[N, P]``.
            noise: random numbers, see `act`.
            env_slice: the environments, as columns of the rollout.
            mask: the action mask. None allows everything.
        """
        if self._is_greedy:
            return self.distribution.mode(outputs)
        return self.distribution.draw(outputs, noise, mask)

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
        observation, mask = split_mask(observation)
        (outputs, value), _ = self._network(observation, sequences)
        return PolicyValue(self.distribution.mask(outputs, mask), value)

    def _network(self, observation: Any, memory: Sequences | None) -> Any:
        if self.cache is not None:
            return self.cache(observation), None
        return run(self.model, observation, memory)

    def _run(
        self, observation: Any, memory: Sequences | None
    ) -> tuple[Tensor, Tensor, Any, Tensor | None]:
        """Return masked outputs, values, the mask, and the recurrent state."""
        if self.normalizer is not None:
            observation = self.normalizer(observation)
        observation, mask = split_mask(observation)
        (outputs, value), after = self._network(observation, memory)
        return self.distribution.mask(outputs, mask), value, mask, after
