"""Advantage actor-critic, synchronous (A2C), with the settings of Stooke and Abbeel 2018.

All learners have the same parts in this order: options, loss, and a learner with ``update``,
``prepare`` (what the loss needs besides the rollout) and ``loss``.

Values that advantages are measured from come from the update's own forward pass, not from acting.
These are the same numbers, except with ``overlap`` or ``pull_steps``, where older parameters acted.
So on a CPU `ForwardCache` saves the pass for pictures.

With ``vtrace`` returns and advantages are corrected for the older policy that acted, whose
log-probabilities were kept when it did: to compute them again takes a third of an update.

docs/algorithms/a2c.md lists deviations from the paper (arXiv:1803.02811) and its code.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar, Literal, NamedTuple

from torch import Tensor

from accel_rl.agents import CATEGORICAL, Evaluated, PolicyAgent, RolloutTensors
from accel_rl.algos.actor_critic import (
    ActorCritic,
    ActorCriticConfig,
    bootstrap_values,
    check_ratios,
    fold_ends,
    normalize,
    returns_and_advantages,
    rollout_outputs,
)
from accel_rl.algos.learner import remaining
from accel_rl.algos.optimizer import masked_mean, shares, sums
from accel_rl.algos.returns import importance_ratio, vtrace
from accel_rl.algos.specs import LearnerSpec, shares_updates
from accel_rl.models import PolicyValue
from accel_rl.models.cpu_cache import ForwardCache
from accel_rl.models.image import ImageNetwork
from accel_rl.options import option, require
from accel_rl.parallel import GradientSync, Local, RMSProp
from accel_rl.spaces import map_leaves

LR_BASE, LR_BASE_NUM_ENVS = 7e-4, 16


def _learns_from_its_own(run: Any) -> str | Literal[False]:
    if run.overlap or run.parallel.pull_steps is not None:
        return False
    return "overlap is false and parallel.pull_steps is none, so that the policy that acts learns"


@dataclass(frozen=True, kw_only=True)
class A2CConfig(ActorCriticConfig):
    """Options of A2C. The defaults are those of arXiv:1803.02811 and its published code.

    Raises:
        ValueError: a value is out of range.
    """

    learns_sequences: ClassVar[bool] = True
    learns_all_spaces: ClassVar[bool] = True

    lr: float | None = option(None, common=True)
    """Learning rate, for any num_envs. none: 7e-4 * sqrt(num_envs / 16)."""
    loss_reduction: Literal["mean", "sum", "sum_over_time"] = "mean"
    """How the losses of all samples become one, before max_gradient_norm limits its gradient.
    sum_over_time: the sum over the steps of a rollout, and the mean over environments."""
    vtrace: bool = option(False, idle=_learns_from_its_own)
    """Use the returns and advantages of V-trace (Espeholt et al. 2018).
    They correct for older parameters that acted, with overlap or pull_steps. gae_lambda is the
    lambda of V-trace."""
    rmsprop_decay: float = 0.9
    """Decay of the running mean of squared gradients in each update."""
    rmsprop_eps: float = 1e-6
    """Number added to the running mean inside the root.
    Where the squares of gradients are smaller, as with rare rewards, updates are small, too. Then a
    smaller number helps, such as 1e-8."""
    rmsprop_initial: float = 0.0
    """Initial value of the running mean."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "above 0", lambda value: value > 0, "lr", "rmsprop_eps")
        require(self, "at least 0", lambda value: value >= 0, "rmsprop_initial")
        require(self, "at least 0 and below 1", lambda value: 0 <= value < 1, "rmsprop_decay")

    @property
    def uses_ratios(self) -> bool:
        """Whether it uses probability ratios: with V-trace."""
        return self.vtrace

    @property
    def rule(self) -> RMSProp:
        """The update rule."""
        return RMSProp(decay=self.rmsprop_decay, eps=self.rmsprop_eps, initial=self.rmsprop_initial)

    def make_learner(self, agent: Any, sync: GradientSync, task: LearnerSpec) -> A2C:
        """Return the learner of ``agent``, of `make_agent`."""
        return A2C(agent, self, sync, task)

    def never_recorded(self, run: Any) -> str | None:
        """Return what does not go together with ``cuda_graphs=on`` and why; None: nothing."""
        if self.normalize_advantage and shares_updates(run):
            return "normalize_advantage=true of several learners, who meet within A2C's loss"
        return super().never_recorded(run)

    def learning_rate(self, num_envs: int, progress: float) -> float:
        """For ``num_envs`` environments in all, ``progress`` in [0, 1] of the schedule done."""
        lr = LR_BASE * sqrt(num_envs / LR_BASE_NUM_ENVS) if self.lr is None else self.lr
        return lr * remaining(self, progress)


class A2CLoss(NamedTuple):
    """What each sample adds, ``[N]`` each. ``total`` carries the gradient of all.

    The sums of the other fields are metrics by these names.
    """

    total: Tensor
    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor


def a2c_loss(
    output: PolicyValue,
    action: Any,
    return_: Tensor,
    advantage: Tensor,
    valid: Tensor,
    value_coefficient: float,
    entropy_coefficient: float,
    evaluated: Evaluated | None = None,
) -> A2CLoss:
    """The loss of advantage actor-critic (Mnih et al. 2016, arXiv:1602.01783, section 4).

    ``total = policy_loss + value_coefficient * value_loss - entropy_coefficient * entropy``, with
    ``policy_loss = mean(-advantage * log pi(action))``, ``value_loss = mean((return_ - V) ** 2)``
    and ``entropy = mean(-sum_a pi(a) log pi(a))``, where ``mean(x) = sum(valid * x) / sum(valid)``.
    Each is returned as its ``N`` summands.

    ``output``: logits ``[N, A]`` and value ``[N]``, float. ``action``: ``[N]`` int64.
    ``return_``, ``advantage``: ``[N]`` float, taken as constants. ``valid``: ``[N]`` bool.
    ``evaluated``: log-probabilities and entropies, with gradient; none: of the softmax.
    """
    N = len(output.logits)
    if any(x.shape != (N,) for x in (output.value, return_, advantage, valid)):
        raise ValueError(f"expected [N] with N = {N} in all arguments but the logits")
    weight = shares(valid, output.value.dtype)
    log_prob, entropy = evaluated or CATEGORICAL.evaluate(output.logits, action)
    policy_loss = -(weight * advantage.detach() * log_prob)
    value_loss = weight * (return_.detach() - output.value).square()
    entropy = weight * entropy
    total = policy_loss + value_coefficient * value_loss - entropy_coefficient * entropy
    return A2CLoss(total, policy_loss, value_loss, entropy)


class A2C(ActorCritic):
    """The A2C learner, which makes one update for each rollout; see `Learner`."""

    config: A2CConfig
    metrics = (*A2CLoss._fields[1:], "mean_value_target")

    def __init__(
        self, agent: PolicyAgent, config: A2CConfig, sync: GradientSync, task: LearnerSpec
    ) -> None:
        super().__init__(agent, config, sync, task)
        is_plain = self.device.type == "cpu" and config.precision != "bfloat16"
        if is_plain and isinstance(sync, Local) and type(agent.model) is ImageNetwork:
            agent.cache = ForwardCache(agent.model, sync.parameters.parameter)

    def update(
        self, batch: RolloutTensors, progress: float, steps: int | None = None
    ) -> dict[str, Tensor]:
        """Make one optimizer step on a rollout; see `Learner.update`.

        Raises:
            ValueError: V-trace has no log-probabilities of the policy that acted.
        """
        if self.config.vtrace:
            check_ratios(batch)
        num_envs = batch.reward.shape[1] * self.sync.num_sharing
        lr = self.config.learning_rate(num_envs, progress)
        self.optimizer.minimize(self.loss, self.given(self.normalized(batch)), lr=lr)
        return self.optimizer.take_metrics()

    def prepare(
        self, batch: RolloutTensors, value: Tensor, log_prob: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return what values learn, and advantages: ``[T, B]`` each, without gradient.

        Args:
            batch: the rollout.
            value: values of the observations, ``[T, B]``, of the forward pass of the loss.
            log_prob: log-probabilities of the actions, ``[T, B]``, of the same pass.
        """
        config = self.config
        bootstrap_value, final_value = bootstrap_values(self.agent, batch, config)
        if not config.vtrace:
            return returns_and_advantages(batch, value, bootstrap_value, final_value, config)
        assert batch.log_prob is not None, "`update` checked it"
        ratio = importance_ratio(log_prob, batch.log_prob, batch.valid)
        folded = fold_ends(batch, final_value, config.gamma)
        return vtrace(*folded, value, bootstrap_value, ratio, config.gae_lambda)

    def loss(self, batch: RolloutTensors) -> tuple[Tensor, dict[str, Tensor]]:
        """Return what each sample of a rollout adds to the loss, ``[T, B]``, and metrics.

        Args:
            batch: the rollout, normalized if the run normalizes.
        """
        config, (T, B) = self.config, batch.reward.shape
        output = rollout_outputs(self.agent, batch, config.precision)
        action = map_leaves(lambda each: each.flatten(0, 1), batch.action)
        evaluated = self.agent.distribution.evaluate(output.logits, action)
        value, log_prob = (each.detach().view(T, B) for each in (output.value, evaluated.log_prob))
        return_, advantage = self.prepare(batch, value, log_prob)
        advantage, valid = advantage.flatten(), batch.valid.flatten()
        if config.normalize_advantage:
            advantage = normalize(advantage, valid, self.sync)
        loss = a2c_loss(
            output,
            action,
            return_.flatten(),
            advantage,
            valid,
            config.value_coefficient,
            config.entropy_coefficient,
            evaluated,
        )
        mean_return = masked_mean(return_, batch.valid)
        metrics = sums(loss._asdict()) | {"mean_value_target": mean_return}
        samples = T * B * self.sync.num_sharing
        factors = {"mean": 1, "sum": samples, "sum_over_time": T}
        factor = factors[config.loss_reduction]
        total = loss.total.view(T, B)
        return total if factor == 1 else total * float(factor), metrics
