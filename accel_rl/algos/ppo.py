"""Proximal policy optimization (PPO), with the settings of Stooke and Abbeel 2018.

Values and log-probabilities of the behaviour policy are those that were kept when it acted, in
float32. With ``overlap`` or ``pull_steps`` the parameters that learn are newer.

docs/algorithms/ppo.md lists deviations from the paper (arXiv:1803.02811) and its code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from accel_rl.agents import CATEGORICAL, Distribution, PolicyAgent, RolloutTensors
from accel_rl.algos.actor_critic import (
    ActorCritic,
    ActorCriticConfig,
    bootstrap_values,
    check_ratios,
    evaluate,
    normalize,
    returns_and_advantages,
)
from accel_rl.algos.learner import remaining
from accel_rl.algos.minibatches import MinibatchConfig, Minibatches, all_steps, choose
from accel_rl.algos.optimizer import shares, sums
from accel_rl.algos.specs import LearnerSpec
from accel_rl.models import PolicyValue, Sequences
from accel_rl.options import option, require, when
from accel_rl.parallel import Adam, GradientSync
from accel_rl.spaces import map_leaves


@dataclass(frozen=True, kw_only=True)
class PPOConfig(ActorCriticConfig, MinibatchConfig):
    """Options of PPO. The defaults are those of arXiv:1803.02811 and its published code.

    Raises:
        ValueError: a value is out of range.
    """

    learns_sequences: ClassVar[bool] = True
    learns_all_spaces: ClassVar[bool] = True
    adam_eps_after_correction: ClassVar[bool] = False
    """whether adam_eps is added after the correction of the bias, as in PyTorch"""

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
    target_kl: float | None = option(None, common=True)
    """KL divergence from the policy that acted to which updates of a rollout are limited.
    The first minibatch whose mean is above 1.5 times this number is the last one of its rollout.
    none: no limit."""
    clip_value: bool = False
    """Whether values are clipped to within clip_range of the values at acting time."""
    adam_eps: float = 1e-5
    """Number added to the root of the running mean of squared gradients."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self, "above 0", lambda value: value > 0, "lr", "clip_range", "target_kl", "adam_eps"
        )

    @property
    def uses_ratios(self) -> bool:
        """Whether it uses probability ratios: always."""
        return True

    @property
    def rule(self) -> Adam:
        """The update rule."""
        return Adam(eps=self.adam_eps, eps_after_correction=self.adam_eps_after_correction)

    def make_learner(self, agent: Any, sync: GradientSync, task: LearnerSpec) -> PPO:
        """Return the learner of ``agent``, of `make_agent`."""
        return PPO(agent, self, sync, task)


@dataclass(frozen=True, kw_only=True)
class MujocoPPOConfig(PPOConfig):
    """Options of PPO as CleanRL has it for MuJoCo: Adam of PyTorch, and actions around 0."""

    adam_eps_after_correction: ClassVar[bool] = True
    scales_actions: ClassVar[bool] = False


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


class PPOBatch(NamedTuple):
    """``N`` steps of a rollout, constants of the loss."""

    action: Any  # [N, ...], of the agent's distribution
    return_: Tensor  # [N] float
    advantage: Tensor  # [N] float
    behaviour_log_prob: Tensor  # [N] float
    behaviour_value: Tensor  # [N] float
    valid: Tensor  # [N] bool
    observation: Any = None  # [N, ...], normalized if the run normalizes
    sequences: Sequences | None = None  # the order of the steps, for a network with a memory


def ppo_loss(
    output: PolicyValue,
    batch: PPOBatch,
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
    if any(x.shape != (N,) for x in (output.value, *batch[1:6])):
        raise ValueError(f"expected [N] with N = {N} in all arguments but the logits")
    valid = batch.valid
    log_prob, entropy = distribution.evaluate(output.logits, batch.action)
    log_ratio = log_prob - batch.behaviour_log_prob
    ratio = log_ratio.exp()
    error = (batch.return_ - output.value).square()
    # Clipped terms are constants, and so is the choice of the term that counts.
    with torch.no_grad():
        clipped = ratio.clamp(1 - clip_range, 1 + clip_range)
        is_less = clipped * batch.advantage < ratio * batch.advantage
        if clip_value:
            move = output.value - batch.behaviour_value
            clipped_move = move.clamp(-clip_range, clip_range)
            clipped_error = (batch.return_ - batch.behaviour_value - clipped_move).square()
            # Unclipped, the two differ by rounding, and the gradient is that of `error`.
            is_more = (clipped_error > error) & (clipped_move != move)
    objective = torch.where(is_less, clipped, ratio) * batch.advantage
    if clip_value:
        error = torch.where(is_more, clipped_error, error)
    share = shares(valid, ratio.dtype)
    total = value_coefficient * error - objective
    if entropy_coefficient:
        total = total - entropy_coefficient * entropy
    total = share * total
    with torch.no_grad():
        moved = ratio - 1
        is_clipped = (moved.abs() > clip_range).to(ratio.dtype)
        parts = torch.stack((-objective, error, entropy, moved - log_ratio, is_clipped))
        return PPOLoss(total, *(share * parts))


class PPO(ActorCritic):
    """The PPO learner, which makes ``epochs`` passes over each rollout in shuffled minibatches.

    `Learner` has the arguments. The seed of the task is that of the shuffling.
    """

    config: PPOConfig
    metrics = (*PPOLoss._fields[1:], "mean_value_target")

    def __init__(
        self, agent: PolicyAgent, config: PPOConfig, sync: GradientSync, task: LearnerSpec
    ) -> None:
        super().__init__(agent, config, sync, task)
        # Learners meet to normalize, which no graph does for them.
        meets = config.normalize_advantage and sync.num_sharing > 1
        self._minibatches = Minibatches(self, self._choose, is_recorded=not meets)
        self.parts.append(self._minibatches)

    def update(
        self, batch: RolloutTensors, progress: float, steps: int | None = None
    ) -> dict[str, Tensor]:
        """Make optimizer steps on minibatches of a rollout; see `Learner.update`.

        Returns:
            Means of the metrics over the steps.

        Raises:
            ValueError: the rollout has no log-probabilities of the policy that acted.
        """
        check_ratios(batch)
        config = self.config
        clip_range = config.clip_range
        if config.clip_schedule == "linear":
            clip_range *= remaining(config, progress)
        lr = self.learning_rate(progress)
        for chosen in self._minibatches.of(self.normalized(batch)):
            divergence = self.optimizer.minimize(self.loss, chosen, clip_range, lr=lr)
            if config.target_kl is not None:
                # Waits for the device. The sums are those of all learners, who stop together.
                total, count = self.sync.sum(divergence).tolist()
                if total > 1.5 * config.target_kl * count:
                    break
        return self.optimizer.take_metrics(mean_value_target=self._minibatches.mean_return)

    @torch.no_grad()
    def prepare(self, batch: RolloutTensors) -> PPOBatch:
        """Return all steps of a rollout, ``[T * B]``, with returns and advantages.

        Args:
            batch: the rollout, normalized if the run normalizes.
        """
        T, config = len(batch.reward), self.config
        observation = all_steps(map_leaves(lambda each: each[:T], batch.observation))
        action = map_leaves(lambda each: each.flatten(0, 1), batch.action)
        assert batch.log_prob is not None and batch.value is not None, "they come together"
        beyond = bootstrap_values(self.agent, batch, config)
        return_, advantage = returns_and_advantages(batch, batch.value, *beyond, config)
        return PPOBatch(
            action=action,
            return_=return_.flatten(),
            advantage=advantage.flatten(),
            behaviour_log_prob=batch.log_prob.flatten(),
            behaviour_value=batch.value.flatten(),
            valid=batch.valid.flatten(),
            observation=observation,
            sequences=batch.sequences(slice(0, T)),
        )

    def loss(self, batch: PPOBatch, clip_range: float) -> tuple[Any, ...]:
        """Return what each of ``N`` steps adds to the loss, ``[N]``, and metrics.

        With ``target_kl`` it also returns the sum of the steps' divergences and their number.

        Args:
            batch: the minibatch, with normalized advantages if the options say so.
            clip_range: the clip range now.
        """
        config = self.config
        output = evaluate(self.agent, batch.observation, config.precision, batch.sequences)
        loss = ppo_loss(
            output,
            batch,
            clip_range,
            config.clip_value,
            config.value_coefficient,
            config.entropy_coefficient,
            self.agent.distribution,
        )
        metrics = sums(loss._asdict())
        if config.target_kl is None:
            return loss.total, metrics
        count = batch.valid.sum().to(metrics["kl"].dtype)
        return loss.total, metrics, torch.stack((count * metrics["kl"], count))

    def _choose(self, whole: PPOBatch, chosen: Tensor) -> PPOBatch:
        batch: PPOBatch = choose(whole, chosen)
        if not self.config.normalize_advantage:
            return batch
        advantage = normalize(batch.advantage, batch.valid, self.sync)
        return batch._replace(advantage=advantage)
