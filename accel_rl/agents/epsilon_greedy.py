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
        """Return the values of all actions.

        Args:
            output: output of the network, ``[N, A, K]``.

        Returns:
            Values ``[N, A]``.
        """
        if self.support is None:
            return output.squeeze(2)
        return output.softmax(2) @ self.support

    def evaluating(self, epsilon: float) -> Self:
        """Return an agent with the same network and another epsilon, for evaluation.

        Args:
            epsilon: probability of a random action.
        """
        given = torch.full_like(self.epsilon[:1], epsilon)
        return type(self)(self.model, self.support, given, self.capture)

    def greedy(self) -> Self:
        """Return an agent with the same network that always takes the action of largest value."""
        return self.evaluating(0.0)

    def follow(self, other: object) -> None:
        """Use the epsilon of another agent from now on.

        Args:
            other: an agent of this class.
        """
        assert isinstance(other, type(self))
        self.epsilon = other.epsilon

    def _epsilon_of(self, columns: slice) -> Tensor:
        return self.epsilon[columns] if len(self.epsilon) > 1 else self.epsilon


class EpsilonGreedyAgent(_EpsilonGreedy):
    """The agent of Q-learning: the action of largest value, or now and then a random one.

    If observations have a leaf ``action_mask``, it takes only actions that the mask allows.

    Args:
        model: the network, which computes values of actions.
        support: values of the atoms, ``[K]``, of a network that computes logits of atoms. None: the
            network computes values.
        epsilon: probability of a random action: ``[B]``, one for each environment, or ``[1]``, one
            for all. The learner replaces it.
        capture: how acting and learning are compiled, or recorded as CUDA graphs.
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
        """Choose an action for each of ``N`` environments.

        Args:
            observation: ``[N, ...]``.
            uniform: ``[N]`` random numbers in [0, 1).
            columns: the environments, as columns of the rollout.

        Returns:
            Actions ``[N]`` int64.
        """
        return self._choose(self, observation, uniform, self._epsilon_of(columns))


class RecurrentEpsilonGreedyAgent(_EpsilonGreedy):
    """An `EpsilonGreedyAgent` whose network has a memory.

    The agent itself keeps no recurrent state, since each environment has its own; see
    `RecurrentStates`. Its arguments are those of `EpsilonGreedyAgent`.
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
        """Choose an action for each of ``N`` environments.

        Args:
            observation: ``[N, ...]``.
            uniform: ``[N]`` random numbers in [0, 1).
            state: recurrent state ``[N, S]``, zeros where an episode begins.
            columns: the environments, as columns of the rollout.
            previous: previous actions and rewards ``[N, P]`` for a network with `PreviousInputs`,
                zeros where an episode begins.

        Returns:
            Actions ``[N]`` int64, and the recurrent state ``[N, S]`` after them.
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
    """Return the action of largest value where ``uniform >= epsilon``, and elsewhere a random one.

    Each allowed action, the best one too, is equally likely to be the random one. It is chosen by
    ``uniform / epsilon``, which is again uniform in [0, 1).

    Args:
        q_value: values of the actions, ``[N, A]``.
        uniform: ``[N]`` random numbers in [0, 1).
        epsilon: probability of a random action, ``[N]`` or ``[1]``.
        mask: ``[N, A]``, not 0 for allowed actions. None: all are allowed.

    Returns:
        Actions ``[N]`` int64.
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
