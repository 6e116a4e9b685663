"""The agent of policy-gradient methods: actions are drawn from a distribution."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from accel_rl.agents.distributions import CATEGORICAL, Categorical, Distribution, Drawn
from accel_rl.agents.masks import split_mask
from accel_rl.agents.normalizer import Normalizer
from accel_rl.capture import EAGER, Capture
from accel_rl.models import PolicyValue, PolicyValueModel, Sequences


class PolicyAgent:
    """Draws actions from a distribution that ``model`` gives; those that a mask forbids never.

    The mask is the leaf ``action_mask`` of observations that are a dict, see `split_mask`.

    Args:
        model: The network.
        capture: Of acting, and for its learner.
        is_greedy: It takes the most probable action instead, the first of several.
        distribution: What the network's numbers mean; without it, logits of a softmax.

    Attributes:
        normalizer: What observations go through before they reach the network; None: nothing.
        tells_log_prob: Whether an action server keeps the log-probabilities of its actions.
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
        """Actions ``[N, ...]``, with the parameters as they are now.

        ``observation``: ``[N, ...]``. ``uniform``: ``[N]`` in [0, 1), one for each action.
        Greedy, ``uniform`` changes nothing, and ``columns`` never does.
        """
        if self.normalizer is not None:
            observation = self.normalizer(observation)
        return self._choose(self.model, self.distribution, observation, uniform)

    @torch.inference_mode()
    def act_with_log_prob(self, observation: Any, uniform: Tensor, columns: slice) -> Drawn:
        """As `act` where this is not greedy, with the log-probabilities of the actions."""
        if self.normalizer is not None:
            observation = self.normalizer(observation)
        return Drawn(*self._draw(self.model, self.distribution, observation, uniform))

    def greedy(self) -> PolicyAgent:
        """One of the same network that takes the most probable action."""
        agent = PolicyAgent(
            self.model, self.capture, is_greedy=True, distribution=self.distribution
        )
        agent.normalizer = self.normalizer
        return agent

    def follow(self, other: object) -> None:
        """Take over the normalizer of ``other``, an agent of this class."""
        assert isinstance(other, PolicyAgent)
        self.normalizer = other.normalizer

    def evaluate(self, observation: Any, sequences: Sequences | None = None) -> PolicyValue:
        """Outputs ``[N, P]`` and values ``[N]`` of ``observation`` ``[N, ...]``, with gradient.

        ``observation`` is normalized already; the outputs are masked. ``sequences``: in which order
        they came; it changes nothing here.
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


def is_softmax(agent: object) -> bool:
    """Return whether an agent draws one of ``n`` actions, by a softmax over logits."""
    return isinstance(getattr(agent, "distribution", None), Categorical)
