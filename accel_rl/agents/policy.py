"""The agent of policy-gradient methods: actions are drawn from a distribution."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from accel_rl.agents.distributions import CATEGORICAL, Distribution, Drawn
from accel_rl.agents.masks import split_mask
from accel_rl.agents.normalizer import Normalizer
from accel_rl.capture import EAGER, Capture
from accel_rl.models import PolicyValue, PolicyValueModel, Sequences


class PolicyAgent:
    """The agent of A2C and PPO: it draws actions from a distribution that its network computes.

    If observations have a leaf ``action_mask``, it never takes an action that the mask forbids.

    Args:
        model: the network.
        capture: how acting and learning are compiled, or recorded as CUDA graphs.
        is_greedy: True: it takes the most probable action, the first of several.
        distribution: meaning of the network's outputs. Default: logits of a softmax.

    Attributes:
        normalizer: normalizes observations before the network sees them. None: they stay as they
            are.
        tells_log_prob: True if an action server keeps the log-probabilities of the actions.
    """

    normalizer: Normalizer | None = None
    tells_log_prob: bool = False

    def __init__(
        self,
        model: PolicyValueModel,
        capture: Capture = EAGER,
        *,
        is_greedy: bool = False,
        distribution: Distribution = CATEGORICAL,
    ) -> None:
        self.model = model
        self.capture = capture
        self.is_greedy = is_greedy
        self.distribution = distribution
        self._choose = capture(_most_probable if is_greedy else _choose)
        self._draw = capture(_draw)

    @torch.inference_mode()
    def act(self, observation: Any, uniform: Tensor, columns: slice) -> Any:
        """Choose an action for each of ``N`` environments.

        Args:
            observation: ``[N, ...]``.
            uniform: ``[N]`` random numbers in [0, 1). A greedy agent does not use them.
            columns: not used.

        Returns:
            Actions ``[N, ...]``.
        """
        if self.normalizer is not None:
            observation = self.normalizer(observation)
        return self._choose(self.model, self.distribution, observation, uniform)

    @torch.inference_mode()
    def act_with_log_prob(self, observation: Any, uniform: Tensor, columns: slice) -> Drawn:
        """Draw actions like `act` of an agent that is not greedy.

        Returns:
            The actions and their log-probabilities.
        """
        if self.normalizer is not None:
            observation = self.normalizer(observation)
        return Drawn(*self._draw(self.model, self.distribution, observation, uniform))

    def greedy(self) -> PolicyAgent:
        """Return an agent with the same network that always takes the most probable action."""
        agent = PolicyAgent(
            self.model, self.capture, is_greedy=True, distribution=self.distribution
        )
        agent.normalizer = self.normalizer
        return agent

    def follow(self, other: object) -> None:
        """Take over the normalizer of another agent.

        Args:
            other: an agent of this class.
        """
        assert isinstance(other, PolicyAgent)
        self.normalizer = other.normalizer

    def evaluate(self, observation: Any, sequences: Sequences | None = None) -> PolicyValue:
        """Run the network, with gradient.

        Args:
            observation: normalized observations, ``[N, ...]``.
            sequences: not used.

        Returns:
            Masked outputs ``[N, P]``, and values ``[N]``.
        """
        observation, mask = split_mask(observation)
        outputs, value = self.model(observation)
        return PolicyValue(self.distribution.mask(outputs, mask), value)


def _choose(
    model: PolicyValueModel, distribution: Distribution, observation: Any, uniform: Tensor
) -> Any:
    observation, mask = split_mask(observation)
    outputs, _ = model(observation)
    return distribution.draw(distribution.mask(outputs, mask), uniform, mask)


def _draw(
    model: PolicyValueModel, distribution: Distribution, observation: Any, uniform: Tensor
) -> tuple[Any, Tensor]:
    observation, mask = split_mask(observation)
    outputs = distribution.mask(model(observation).logits, mask)
    action = distribution.draw(outputs, uniform, mask)
    return action, distribution.log_prob(outputs, action)


def _most_probable(
    model: PolicyValueModel, distribution: Distribution, observation: Any, uniform: Tensor
) -> Any:
    observation, mask = split_mask(observation)
    outputs, _ = model(observation)
    return distribution.mode(distribution.mask(outputs, mask))
