"""Parallelised Q-learning (PQN): from rollouts, without replay and without a target network.

Gallici et al. 2024, "Simplifying Deep Temporal Difference Learning" (arXiv:2407.04811). Layer
normalization in the network keeps the learning stable; see `accel_rl.models.layer_norm`.

The values that returns mix are computed when the rollout is complete. These are the values of
acting, except with ``overlap`` or ``pull_steps``, where older parameters acted.

docs/algorithms/pqn.md lists deviations from the paper and its code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from accel_rl.agents import QAgent, RolloutTensors
from accel_rl.agents.distributions import split_mask
from accel_rl.algos.learner import Learner, name_of
from accel_rl.algos.minibatches import MinibatchConfig, Minibatches, all_steps, choose
from accel_rl.algos.optimizer import shares, sums
from accel_rl.algos.q_learning import (
    best_values,
    evaluate_q,
    linear_epsilon,
    make_q_agent,
)
from accel_rl.algos.returns import fold_truncation, lambda_returns, values_beyond
from accel_rl.algos.specs import LearnerSpec, NetworkSpec
from accel_rl.algos.value_distributions import squared_loss
from accel_rl.models import Sequences
from accel_rl.options import option, require
from accel_rl.parallel import GradientSync, RAdam
from accel_rl.spaces import map_leaves


@dataclass(frozen=True, kw_only=True)
class PQNConfig(MinibatchConfig):
    """Options of PQN. The defaults are those of arXiv:2407.04811 for Atari games.

    Raises:
        ValueError: a value is out of range.
    """

    learns_sequences: ClassVar[bool] = True

    lr: float = option(2.5e-4, common=True)
    """Learning rate."""
    epochs: int = option(2, common=True)
    minibatch_size: int = option(128, common=True)
    q_lambda: float = option(0.65, common=True)
    """Lambda of the Q(lambda) returns.
    0: one reward. 1: all rewards up to the end of the rollout."""
    max_gradient_norm: float | None = option(10.0, common=True)
    """Maximum L2 norm of the gradient, which is scaled down to it. none: no limit."""
    epsilon_final: float = option(0.001, common=True)
    """Probability of a random action at the end of the schedule."""
    exploration_fraction: float = option(0.1, common=True)
    """Share of total_steps, or of schedule_steps, in which epsilon falls linearly, from 1."""
    epsilon_evaluation: float = 0.0
    """Probability of a random action in evaluations."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "above 0", lambda value: value > 0, "lr")
        require(self, "above 0 and at most 1", lambda value: 0 < value <= 1, "exploration_fraction")
        shares = ("q_lambda", "epsilon_final", "epsilon_evaluation")
        require(self, "from 0 to 1", lambda value: 0 <= value <= 1, *shares)

    @property
    def rule(self) -> RAdam:
        """The update rule."""
        return RAdam(eps=1e-8)

    def make_agent(self, network: NetworkSpec) -> QAgent:
        """Return an agent that takes the best action or, now and then, any; with an LSTM if asked.

        Raises:
            ValueError: There is no such network, it does not fit the environment, or actions are
                not one of several.
        """
        if network.model == "auto":
            network = network._replace(model="pqn")
        return make_q_agent(name_of(self), network)

    def evaluating(self, agent: Any) -> Any:
        """Return an agent of the same network with the epsilon of evaluations."""
        return agent.evaluating(self.epsilon_evaluation)

    def make_learner(self, agent: Any, sync: GradientSync, task: LearnerSpec) -> PQN:
        """Return the learner of ``agent``, of `make_agent`."""
        return PQN(agent, self, sync, task)


class PQNBatch(NamedTuple):
    """``N`` steps of a rollout, constants of the loss."""

    action: Tensor  # [N] int64
    return_: Tensor  # [N] float
    valid: Tensor  # [N] bool
    observation: Any  # [N, ...]
    sequences: Sequences | None = None  # the order of the steps, for a network with a memory


class PQN(Learner):
    """The PQN learner, which makes ``epochs`` passes over each rollout in shuffled minibatches.

    `Learner` has the arguments. The agent acts with the epsilon that the learner sets. If
    ``task.schedule_steps`` is None, epsilon follows the progress before a rollout.
    """

    agent: QAgent
    config: PQNConfig
    metrics = ("loss", "q_value", "mean_value_target", "epsilon")

    def __init__(
        self, agent: QAgent, config: PQNConfig, sync: GradientSync, task: LearnerSpec
    ) -> None:
        super().__init__(agent, config, sync, task)
        self._minibatches = Minibatches(self, choose)
        self.parts.append(self._minibatches)
        self._final_epsilon = torch.tensor([config.epsilon_final], device=self.device)
        self._set_epsilon(0.0)

    def get_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, without parameters and optimizer state."""
        return {"epsilon_progress": self._progress, **super().get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of `get_state`."""
        super().set_state(state)
        self._set_epsilon(state["epsilon_progress"])

    def update(
        self, batch: RolloutTensors, progress: float, steps: int | None = None
    ) -> dict[str, Tensor]:
        """Make optimizer steps on minibatches of a rollout; see `Learner.update`.

        Returns:
            Means of the metrics over the steps.
        """
        lr = self.learning_rate(progress)
        for chosen in self._minibatches.of(batch):
            self.optimizer.minimize(self.loss, chosen, lr=lr)
        if steps is not None and self.task.schedule_steps is not None:
            progress = min(1.0, steps / self.task.schedule_steps)  # of the next rollout
        self._set_epsilon(progress)
        epsilon = self.agent.epsilon.mean()
        mean_return = self._minibatches.mean_return
        return self.optimizer.take_metrics(mean_value_target=mean_return, epsilon=epsilon)

    @torch.no_grad()
    def prepare(self, batch: RolloutTensors) -> PQNBatch:
        """Return all steps of a rollout, ``[T * B]``, with returns.

        Args:
            batch: the rollout, ``[T, B]``.
        """
        T, B = batch.reward.shape
        config = self.config
        observation = all_steps(map_leaves(lambda each: each[:T], batch.observation))
        values = []
        at_once = max(1, config.minibatch_size // B)
        for start in range(1, T, at_once):
            rows = slice(start, min(start + at_once, T))
            flat = slice(rows.start * B, rows.stop * B)
            seen = map_leaves(lambda each, flat=flat: each[flat], observation)
            values.append(self._best_values(seen, batch.sequences(rows)))
        last, final_value = values_beyond(
            self._best_values, batch, bootstrap_on_truncation=config.bootstrap_on_truncation
        )
        next_value = torch.cat((*values, last)).view(T, B)
        reward, discount = fold_truncation(
            batch.reward, batch.terminated, batch.truncated, batch.valid, final_value, config.gamma
        )
        return_ = lambda_returns(reward, discount, next_value, config.q_lambda)
        return PQNBatch(
            action=batch.action.flatten(),
            return_=return_.flatten(),
            valid=batch.valid.flatten(),
            observation=observation,
            sequences=batch.sequences(slice(0, T)),
        )

    def loss(self, batch: PQNBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return what each of ``N`` steps adds to the loss, ``[N]``, and metrics.

        Args:
            batch: the minibatch.
        """
        seen, mask = split_mask(batch.observation)
        q_value = self._q_values(seen, batch.sequences)
        error = squared_loss(q_value, batch.action, batch.return_)
        share = shares(batch.valid, error.dtype)
        best = best_values(q_value.detach(), mask)
        return share * error, sums({"loss": error, "q_value": best}, share)

    def _best_values(self, observation: Any, sequences: Sequences | None) -> Tensor:
        """Return the largest values, ``[N]``, of ``observation``, ``[N, ...]``."""
        seen, mask = split_mask(observation)
        return best_values(self._q_values(seen, sequences), mask)

    def _q_values(self, observation: Tensor, sequences: Sequences | None) -> Tensor:
        """Return values of all actions, ``[N, A]`` float32, with gradient."""
        agent, precision = self.agent, self.config.precision
        output, _ = evaluate_q(agent.model, observation, precision, sequences)
        return agent.q_values(output)

    def _set_epsilon(self, progress: float) -> None:
        self._progress = progress
        done = min(1.0, progress / self.config.exploration_fraction)
        self.agent.epsilon = linear_epsilon(self._final_epsilon, done)
