"""The agent of Q-learning: the action of the largest value, now and then a random one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from accel_rl.agents.agent import Agent
from accel_rl.agents.distributions import masked, split_mask
from accel_rl.graphs import Graphs
from accel_rl.models import Sequences
from accel_rl.models.memory import run
from accel_rl.models.q_value import with_noise


class QAgent(Agent):
    """The agent of Q-learning: the action of largest value, or now and then a random one.

    If observations have a leaf ``action_mask``, it takes only actions that the mask allows.

    Args:
        model: the network, which computes values of actions: a `QModel`, or a `RecurrentModel` that
            gives the same.
        support: values of the atoms, ``[K]``, of a network that computes logits of atoms. None: the
            network computes values, or quantiles.
        epsilon: probability of a random action: ``[B]``, one for each environment, or ``[1]``, one
            for all. The learner replaces it.
        graphs: records acting and learning as CUDA graphs. None: they run as they are.

    Attributes:
        noise: random numbers of noisy layers, ``[R]``, with which all environments act. The
            learner makes it, and writes other numbers there. None: actions have no such noise.
    """

    epsilon: Tensor
    noise: Tensor | None = None

    def __init__(
        self, model: Any, support: Tensor | None, epsilon: Tensor, graphs: Graphs | None = None
    ) -> None:
        self.model = model
        self.support = support
        self.epsilon = epsilon
        self.graphs = graphs

    def follow(self, other: Any) -> None:
        """Take over what another agent has beside its network."""
        super().follow(other)
        if self.noise is not None:
            self.noise.copy_(other.noise)

    @torch.inference_mode()
    def act(
        self, observation: Any, noise: Tensor, env_slice: slice, memory: Sequences | None = None
    ) -> Any:
        """Choose actions, see `Agent.act`."""
        observation, mask = split_mask(observation)
        with with_noise(self.model, self.noise):
            output, after = run(self.model, observation, memory)
        action = self.choose(self.q_values(output), noise, env_slice, mask)
        return action if memory is None else (action, after)

    def choose(
        self, outputs: Tensor, noise: Tensor, env_slice: slice, mask: Tensor | None = None
    ) -> Tensor:
        """Choose actions by `epsilon_greedy`, see `Agent.choose`.

        Args:
            outputs: values of the actions, ``[N, A]``.
            noise: random numbers, see `act`.
            env_slice: the environments, as columns of the rollout.
            mask: the action mask, ``[N, A]``. None allows everything.
        """
        epsilon = self.epsilon[env_slice] if len(self.epsilon) > 1 else self.epsilon
        return epsilon_greedy(outputs, noise, epsilon, mask)

    def q_values(self, output: Tensor) -> Tensor:
        """Return the values of all actions.

        Args:
            output: output of the network, ``[N, A, K]``.

        Returns:
            Values ``[N, A]``.
        """
        if output.shape[2] == 1:
            return output[:, :, 0]
        if self.support is None:
            return output.mean(2)
        return output.softmax(2) @ self.support

    def evaluating(self, epsilon: float) -> QAgent:
        """Return an agent with the same network and another epsilon, for evaluation.

        Args:
            epsilon: probability of a random action.
        """
        given = torch.full_like(self.epsilon[:1], epsilon)
        return QAgent(self.model, self.support, given, self.graphs)

    def greedy(self) -> QAgent:
        """Return an agent with the same network that always takes the action of largest value."""
        return self.evaluating(0.0)


def epsilon_greedy(
    q_value: Tensor, noise: Tensor, epsilon: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Return the action of largest value where ``noise >= epsilon``, and elsewhere a random one.

    Each allowed action, the best one too, is equally likely to be the random one. It is chosen by
    ``noise / epsilon``, which is again uniform in [0, 1).

    Args:
        q_value: values of the actions, ``[N, A]``.
        noise: ``[N]`` random numbers in [0, 1).
        epsilon: probability of a random action, ``[N]`` or ``[1]``.
        mask: ``[N, A]``, not 0 for allowed actions. None: all are allowed.

    Returns:
        Actions ``[N]`` int64.
    """
    num_actions = q_value.shape[1]
    if mask is None:
        explores, best = noise < epsilon, q_value.argmax(1)
        if explores.is_cpu and not explores.any():  # most often; on a GPU looking would wait
            return best
        any_action = (noise / epsilon * num_actions).long().clamp_(0, num_actions - 1)
        return torch.where(explores, any_action, best)
    is_allowed = mask != 0
    count = is_allowed.sum(1)
    number = (noise / epsilon * count).long().clamp_(min=0).minimum(count - 1)
    any_action = (is_allowed.cumsum(1) > number.unsqueeze(1)).int().argmax(1)
    return torch.where(noise < epsilon, any_action, masked(q_value, mask).argmax(1))
