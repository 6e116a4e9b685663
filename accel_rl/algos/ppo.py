"""Proximal policy optimization (PPO), with the settings of Stooke and Abbeel 2018.

Every algorithm here has the same skeleton: prepare (returns), loss per sample, `Update.step`.

Values and log-probabilities of the behaviour policy are those that were kept when it acted, in
float32. With ``overlap`` or ``pull_steps`` the parameters that learn are newer.

docs/algorithms/ppo.md lists deviations from the paper (arXiv:1803.02811) and its code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from accel_rl.agents import CATEGORICAL, Agent, Distribution, PolicyAgent, RolloutTensors
from accel_rl.algos.actor_critic import (
    ActorCriticConfig,
    bootstrap_values,
    check_ratios,
    evaluate,
    normalize,
    returns_and_advantages,
)
from accel_rl.algos.learner_config import require
from accel_rl.algos.minibatches import MinibatchConfig, Minibatches, all_steps, rows_of
from accel_rl.algos.normalization import make_normalization
from accel_rl.algos.task import LearnerSpec
from accel_rl.algos.update import Update, masked_mean, masked_shares, sums
from accel_rl.graphs import Fixed, Held
from accel_rl.models import PolicyValue, Sequences
from accel_rl.options import option, when
from accel_rl.parallel import Adam, Exchange
from accel_rl.spaces import map_leaves


@dataclass(frozen=True, kw_only=True)
class PPOConfig(ActorCriticConfig, MinibatchConfig):
    """Options of PPO. The defaults are those of arXiv:1803.02811 and its published code.

    Raises:
        ValueError: a value is out of range.
    """

    learns_sequences: ClassVar[bool] = True
    learns_all_spaces: ClassVar[bool] = True

    lr: float = option(1e-3, common=True)
    """Learning rate."""
    lr_schedule: Literal["constant", "linear"] = option("linear", common=True)
    """Schedule of the learning rate. linear: it falls to 0 over the run, and clip_range with it."""
    gae_lambda: float = option(0.95, common=True)
    """Lambda of generalized advantage estimation.
    1: n-step returns up to the end of the rollout."""
    value_coefficient: float = option(1.0, common=True)
    """Weight of the mean squared value error, without a factor 1/2."""
    max_gradient_norm: float | None = option(None, common=True)
    """Maximum L2 norm of the gradient, which is scaled down to it. none: no limit."""
    epochs: int = option(4, common=True)
    minibatch_size: int = option(512, common=True)
    clip_range: float = option(0.2, common=True)
    """Distance from 1 beyond which a probability ratio does not increase the objective."""
    clip_schedule: Literal["constant", "linear"] = option(
        "linear", idle=when("learner.lr_schedule", "constant")
    )
    """Schedule of clip_range. constant: it keeps its value while the learning rate falls."""
    clip_value: bool = False
    """Whether values are clipped to within clip_range of the values at acting time."""
    adam_eps: float = 1e-5
    """Number added to the root of the running mean of squared gradients."""
    adam_eps_after_correction: bool = False
    """Whether adam_eps is added after the correction of the bias, as in PyTorch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "above 0", lambda value: value > 0, "lr", "clip_range", "adam_eps")

    @property
    def uses_ratios(self) -> bool:
        """Whether it uses probability ratios: always."""
        return True

    @property
    def rule(self) -> Adam:
        """The update rule, for the exchange."""
        return Adam(eps=self.adam_eps, eps_after_correction=self.adam_eps_after_correction)

    def make_learner(self, agent: Agent, exchange: Exchange, task: LearnerSpec) -> PPO:
        """Return the learner of ``agent``, of `make_agent`."""
        assert isinstance(agent, PolicyAgent)
        return PPO(agent, self, exchange, task.seed, task)


class PPOLoss(NamedTuple):
    """What each sample adds, ``[N]`` each. ``total`` carries the gradient of the first three.

    The sums of the other fields are metrics by these names.

    ``kl``: mean of ``ratio - 1 - log(ratio)``, an estimate of KL(behaviour || policy).
    ``clip_fraction``: share of steps whose ratio lies outside the clip range.
    """

    total: Tensor
    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    kl: Tensor
    clip_fraction: Tensor


class Minibatch(NamedTuple):
    """``N`` steps of a rollout, constants of the loss."""

    action: Any  # [N, ...], of the agent's distribution
    return_: Tensor  # [N] float
    advantage: Tensor  # [N] float
    behaviour_log_prob: Tensor  # [N] float
    behaviour_value: Tensor  # [N] float
    valid: Tensor  # [N] bool


def ppo_loss(
    output: PolicyValue,
    batch: Minibatch,
    clip_range: float,
    clip_value: bool,
    value_coefficient: float,
    entropy_coefficient: float,
    distribution: Distribution = CATEGORICAL,
) -> PPOLoss:
    """The clipped objective (Schulman et al. 2017, arXiv:1707.06347, equations 7 and 9).

    ``total = policy_loss + value_coefficient * value_loss - entropy_coefficient * entropy``, with
    ``ratio = pi(action) / behaviour``, ``policy_loss = mean(-min(ratio * advantage,
    clip(ratio, 1 - clip_range, 1 + clip_range) * advantage))``,
    ``value_loss = mean((return_ - V) ** 2)`` and ``entropy = mean(-sum_a pi(a) log pi(a))``, where
    ``mean(x) = sum(valid * x) / sum(valid)``. Each is returned as its ``N`` summands.
    With ``clip_value`` the square is the larger of itself and ``(return_ - behaviour_value -
    clip(V - behaviour_value, -clip_range, clip_range)) ** 2``, as in OpenAI's baselines.

    ``output``: logits ``[N, A]``, or the outputs ``[N, P]`` of another ``distribution``, and value
    ``[N]``, float.
    """
    N = len(output.logits)
    if any(x.shape != (N,) for x in (output.value, *batch[1:])):
        raise ValueError(f"expected [N] with N = {N} in all arguments but the logits")
    valid = batch.valid
    log_prob, entropy = distribution.evaluate(output.logits, batch.action)
    log_ratio = log_prob - batch.behaviour_log_prob
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip_range, 1 + clip_range)
    objective = torch.minimum(ratio * batch.advantage, clipped * batch.advantage)
    policy_loss = -masked_shares(objective, valid)
    error = (batch.return_ - output.value).square()
    if clip_value:
        move = (output.value - batch.behaviour_value).clamp(-clip_range, clip_range)
        error = torch.maximum(error, (batch.return_ - batch.behaviour_value - move).square())
    value_loss = masked_shares(error, valid)
    entropy = masked_shares(entropy, valid)
    total = policy_loss + value_coefficient * value_loss - entropy_coefficient * entropy
    with torch.no_grad():
        kl = masked_shares(ratio - 1 - log_ratio, valid)
        is_clipped = (ratio - 1).abs() > clip_range
        clip_fraction = masked_shares(is_clipped.to(ratio.dtype), valid)
    return PPOLoss(total, policy_loss, value_loss, entropy, kl, clip_fraction)


class PPO:
    """The PPO learner, which makes ``epochs`` passes over each rollout in shuffled minibatches.

    Args:
        agent: the agent whose parameters learn.
        config: the options.
        exchange: holds the flat parameters of ``agent.model`` and applies the gradients.
        seed: seed of the shuffling.
        task: the part of the run that this learner has.

    Attributes:
        agent: the agent whose parameters learn.
        config: the options.
        metric_names: names of all metrics that `update` may return.
    """

    def __init__(
        self,
        agent: PolicyAgent,
        config: PPOConfig,
        exchange: Exchange,
        seed: int,
        task: LearnerSpec | None = None,
    ) -> None:
        self.config = config
        self.agent = agent
        self._exchange = exchange
        self._update = Update(config, exchange, agent.graphs)
        self._held = Held()
        self._normalization = make_normalization(config, agent, exchange, task)
        self.metric_names = (*PPOLoss._fields[1:], "mean_value_target", *self._update.names)
        device = exchange.parameters.parameter.device
        self._minibatches = Minibatches(config, exchange.num_sharing, seed, device)

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint holds beside the exchange's."""
        moments = self._normalization.get_state() if self._normalization else {}
        return {**self._minibatches.get_state(), **self._update.get_state(), **moments}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._minibatches.set_state(state)
        self._update.set_state(state)
        if self._normalization is not None:
            self._normalization.set_state(state)

    def update(
        self, batch: RolloutTensors, progress: float, steps: int | None = None
    ) -> dict[str, Tensor]:
        """Optimizer steps on ``batch``; ``progress`` in [0, 1] is for the schedules.

        Returns metrics, means over these steps, as 0-d tensors on the batch's device, without
        waiting for it.

        Raises:
            ValueError: the rollout has no log-probabilities of the policy that acted.
        """
        check_ratios(batch)
        config = self.config
        if self._normalization is not None:
            batch = self._normalization.take(batch)
        observation, whole = self._prepare(batch)
        lr = config.lr * config.remaining(progress)
        clip_range = config.clip_range
        if config.clip_schedule == "linear":
            clip_range *= config.remaining(progress)
        is_recorded = self.agent.graphs is not None
        # Learners meet to normalize, which no graph does for them.
        meets = config.normalize_advantage and self._exchange.num_sharing > 1
        gathers = is_recorded and not meets
        if gathers:
            observation, whole = self._held.hold((observation, whole))
        for index, sequences in self._minibatches.of(batch):
            more = sequences, clip_range
            if gathers:
                held = Fixed((observation, whole))
                self._update.run(self._gather, lr, held, index, *more)
            else:
                chosen = self._choose(observation, whole, index)
                self._update.run(self._evaluate, lr, *chosen, *more)
        mean_return = masked_mean(whole.return_, whole.valid)
        return self._update.take(mean_value_target=mean_return)

    def _choose(self, observation: Any, whole: Minibatch, index: Tensor) -> tuple[Any, Minibatch]:
        """Observations and minibatch of the steps ``index``, ``[N]``."""
        minibatch = Minibatch(*(rows_of(field, index) for field in whole))
        if self.config.normalize_advantage:
            advantage = normalize(minibatch.advantage, minibatch.valid, self._exchange)
            minibatch = minibatch._replace(advantage=advantage)
        return rows_of(observation, index), minibatch

    def _gather(
        self,
        steps: tuple[Any, Minibatch],
        index: Tensor,
        sequences: Sequences | None,
        clip_range: float,
    ) -> tuple[Tensor, dict[str, Tensor], Tensor, None]:
        return self._evaluate(*self._choose(*steps, index), sequences, clip_range)

    def _evaluate(
        self,
        observation: Any,
        batch: Minibatch,
        sequences: Sequences | None,
        clip_range: float,
    ) -> tuple[Tensor, dict[str, Tensor], Tensor, None]:
        loss, metrics = self.compute_losses(observation, batch, sequences, clip_range)
        return loss, metrics, batch.valid.sum(), None

    def compute_losses(
        self,
        observation: Any,
        batch: Minibatch,
        sequences: Sequences | None,
        clip_range: float,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of a minibatch of ``N`` steps. A subclass may define another.

        Args:
            observation: ``[N, ...]``, normalized if the run normalizes.
            batch: the steps, each field ``[N]`` or ``[N, ...]``.
            sequences: in which order the steps came, for a network with a memory.
            clip_range: the clip range now.

        Returns:
            What each sample adds to the loss, ``[N]``, and metrics of `metric_names`, 0-d.
        """
        config = self.config
        output = evaluate(self.agent, observation, config.precision, sequences)
        loss = ppo_loss(
            output,
            batch,
            clip_range,
            config.clip_value,
            config.value_coefficient,
            config.entropy_coefficient,
            self.agent.distribution,
        )
        return loss.total, sums(loss._asdict())

    @torch.no_grad()
    def _prepare(self, batch: RolloutTensors) -> tuple[Any, Minibatch]:
        """Observations ``[T * B, ...]``, and all steps as one `Minibatch`."""
        T, config = len(batch.reward), self.config
        observation = all_steps(map_leaves(lambda each: each[:T], batch.observation))
        action = map_leaves(lambda each: each.flatten(0, 1), batch.action)
        assert batch.log_prob is not None and batch.value is not None, "they come together"
        beyond = bootstrap_values(self.agent, batch, config)
        return_, advantage = returns_and_advantages(batch, batch.value, *beyond, config)
        steps = Minibatch(
            action=action,
            return_=return_.flatten(),
            advantage=advantage.flatten(),
            behaviour_log_prob=batch.log_prob.flatten(),
            behaviour_value=batch.value.flatten(),
            valid=batch.valid.flatten(),
        )
        return observation, steps
