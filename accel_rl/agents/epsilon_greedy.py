"""The agent of Q-learning: the action of the largest value, now and then a random one."""

from __future__ import annotations

import torch
from torch import Tensor

from accel_rl.capture import EAGER, Capture
from accel_rl.models import QModel


class EpsilonGreedyAgent:
    """Takes the best action by ``model``, and with probability ``epsilon`` any action.

    ``support``: ``[K]``, the values of the atoms whose logits the model gives; None: it gives
    values. ``epsilon``: ``[B]``, one for each environment, or ``[1]``, one for all. The learner
    writes into it. ``capture``: of acting, and for its learner.
    """

    def __init__(
        self,
        model: QModel,
        support: Tensor | None,
        epsilon: Tensor,
        capture: Capture = EAGER,
    ) -> None:
        self.model = model
        self.support = support
        self.epsilon = epsilon
        self.capture = capture
        self._choose = capture(_choose)

    @torch.inference_mode()
    def act(self, observation: Tensor, uniform: Tensor, columns: slice) -> Tensor:
        """Actions ``[N]`` int64, with the parameters as they are now.

        ``observation``: ``[N, ...]``. ``uniform``: ``[N]`` in [0, 1), one for each action.
        ``columns``: whose actions these are.
        """
        epsilon = self.epsilon[columns] if len(self.epsilon) > 1 else self.epsilon
        return self._choose(self, observation, uniform, epsilon)

    def q_values(self, output: Tensor) -> Tensor:
        """Values ``[N, A]`` of what the model gave, ``[N, A, K]``."""
        if self.support is None:
            return output.squeeze(2)
        return output.softmax(2) @ self.support

    def evaluating(self, epsilon: float) -> EpsilonGreedyAgent:
        """The same with another epsilon, for evaluation."""
        given = torch.full_like(self.epsilon[:1], epsilon)
        return EpsilonGreedyAgent(self.model, self.support, given, self.capture)

    def greedy(self) -> EpsilonGreedyAgent:
        """The same with epsilon 0: it takes the action of the largest value."""
        return self.evaluating(0.0)


def _choose(
    agent: EpsilonGreedyAgent, observation: Tensor, uniform: Tensor, epsilon: Tensor
) -> Tensor:
    return epsilon_greedy(agent.q_values(agent.model(observation)), uniform, epsilon)


def epsilon_greedy(q_value: Tensor, uniform: Tensor, epsilon: Tensor) -> Tensor:
    """The action of the largest value where ``uniform >= epsilon``, else any, equally likely.

    What is left of the uniform below epsilon, stretched to [0, 1), chooses the random action, which
    may be the best one too.

    ``q_value``: ``[N, A]``. ``uniform``: ``[N]`` in [0, 1). ``epsilon``: ``[N]`` or ``[1]``.
    Returns ``[N]`` int64.
    """
    num_actions = q_value.shape[1]
    any_action = (uniform / epsilon * num_actions).long().clamp_(0, num_actions - 1)
    return torch.where(uniform < epsilon, any_action, q_value.argmax(1))
