"""Agents of Q-learning: the action of the largest value, now and then a random one."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from accel_rl.agents.masks import masked, split_mask
from accel_rl.agents.recurrent import one_step
from accel_rl.capture import EAGER, Capture
from accel_rl.models import QModel, RecurrentQModel, Sequences


class _EpsilonGreedy:
    """What agents with and without a recurrent network share: values and epsilon."""

    model: nn.Module

    def __init__(
        self,
        model: nn.Module,
        support: Tensor | None,
        epsilon: Tensor,
        capture: Capture = EAGER,
    ) -> None:
        self.model = model
        self.support = support
        self.epsilon = epsilon
        self.capture = capture

    def q_values(self, output: Tensor) -> Tensor:
        """Values ``[N, A]`` of what the model gave, ``[N, A, K]``."""
        if self.support is None:
            return output.squeeze(2)
        return output.softmax(2) @ self.support

    def evaluating(self, epsilon: float) -> Self:
        """The same with another epsilon, for evaluation."""
        given = torch.full_like(self.epsilon[:1], epsilon)
        return type(self)(self.model, self.support, given, self.capture)

    def greedy(self) -> Self:
        """The same with epsilon 0: it takes the action of the largest value."""
        return self.evaluating(0.0)

    def follow(self, other: object) -> None:
        """Act with the epsilon of ``other``, another agent of this class, from now on."""
        assert isinstance(other, type(self))
        self.epsilon = other.epsilon

    def _epsilon_of(self, columns: slice) -> Tensor:
        return self.epsilon[columns] if len(self.epsilon) > 1 else self.epsilon


class EpsilonGreedyAgent(_EpsilonGreedy):
    """Takes the best action by ``model``, and with probability ``epsilon`` any action.

    Only actions that the leaf ``action_mask`` of observations allows, if it is there.

    ``support``: ``[K]``, the values of the atoms whose logits the model gives; None: it gives
    values. ``epsilon``: ``[B]``, one for each environment, or ``[1]``, one for all. The learner
    writes into it. ``capture``: of acting, and for its learner.
    """

    model: QModel

    def __init__(
        self,
        model: QModel,
        support: Tensor | None,
        epsilon: Tensor,
        capture: Capture = EAGER,
    ) -> None:
        super().__init__(model, support, epsilon, capture)
        self._choose = capture(_choose)

    @torch.inference_mode()
    def act(self, observation: Tensor, uniform: Tensor, columns: slice) -> Tensor:
        """Actions ``[N]`` int64, with the parameters as they are now.

        ``observation``: ``[N, ...]``. ``uniform``: ``[N]`` in [0, 1), one for each action.
        ``columns``: whose actions these are.
        """
        return self._choose(self, observation, uniform, self._epsilon_of(columns))


class RecurrentEpsilonGreedyAgent(_EpsilonGreedy):
    """As `EpsilonGreedyAgent`, by the values of a network that remembers.

    It keeps no state itself: that belongs to the environments; see `RecurrentStates`.
    """

    model: RecurrentQModel

    def __init__(
        self,
        model: RecurrentQModel,
        support: Tensor | None,
        epsilon: Tensor,
        capture: Capture = EAGER,
    ) -> None:
        super().__init__(model, support, epsilon, capture)
        self._choose = capture(_choose_remembering)

    @torch.inference_mode()
    def act(
        self,
        observation: Tensor,
        uniform: Tensor,
        state: Tensor,
        columns: slice,
        previous: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Actions ``[N]`` int64, and the state ``[N, S]`` after them.

        ``observation``: ``[N, ...]``. ``uniform``: ``[N]`` in [0, 1). ``state``: ``[N, S]``, zeros
        where an episode begins. ``columns``: whose actions these are. ``previous``: ``[N, P]``,
        the `PreviousInputs` of a network that takes them, zeros where an episode begins.
        """
        before = one_step(state, previous)
        return self._choose(self, observation, uniform, before, self._epsilon_of(columns))


def _choose(
    agent: EpsilonGreedyAgent, observation: Tensor, uniform: Tensor, epsilon: Tensor
) -> Tensor:
    observation, mask = split_mask(observation)
    return epsilon_greedy(agent.q_values(agent.model(observation)), uniform, epsilon, mask)


def _choose_remembering(
    agent: RecurrentEpsilonGreedyAgent,
    observation: Tensor,
    uniform: Tensor,
    before: Sequences,
    epsilon: Tensor,
) -> tuple[Tensor, Tensor]:
    observation, mask = split_mask(observation)
    output, after = agent.model(observation, before)
    return epsilon_greedy(agent.q_values(output), uniform, epsilon, mask), after


def epsilon_greedy(
    q_value: Tensor, uniform: Tensor, epsilon: Tensor, mask: Tensor | None = None
) -> Tensor:
    """The action of the largest value where ``uniform >= epsilon``, else any, equally likely.

    What is left of the uniform below epsilon, stretched to [0, 1), chooses the random action, which
    may be the best one too.

    ``q_value``: ``[N, A]``. ``uniform``: ``[N]`` in [0, 1). ``epsilon``: ``[N]`` or ``[1]``.
    ``mask``: ``[N, A]``, the actions allowed; None: all are. Returns ``[N]`` int64.
    """
    num_actions = q_value.shape[1]
    if mask is None:
        any_action = (uniform / epsilon * num_actions).long().clamp_(0, num_actions - 1)
        return torch.where(uniform < epsilon, any_action, q_value.argmax(1))
    is_allowed = mask != 0
    count = is_allowed.sum(1)
    number = (uniform / epsilon * count).long().clamp_(min=0).minimum(count - 1)
    any_action = (is_allowed.cumsum(1) > number.unsqueeze(1)).int().argmax(1)
    return torch.where(uniform < epsilon, any_action, masked(q_value, mask).argmax(1))
