"""GA3C (Babaeizadeh et al. 2017, arXiv:1611.06256): actor-critic on segments from a queue.

Predictors and trainers are threads that work on one model (`accel_rl.ga3c.versions`). Here are the
settings, and what one trainer does with a batch. Returns come with the segments. Advantages are
measured from the values of the trainer's own parameters. With ``vtrace`` the trainer makes both of
what the segments' returns say of rewards.

docs/algorithms/ga3c.md lists deviations from the paper and its code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from accel_rl.agents import Agent, PolicyAgent
from accel_rl.algos.a2c import A2CLoss
from accel_rl.algos.actor_critic import evaluate, make_policy_agent
from accel_rl.algos.learner import LearnerConfig, name_of, remaining
from accel_rl.algos.optimizer import Optimizer, sums
from accel_rl.algos.specs import LearnerSpec, NetworkSpec
from accel_rl.graphs import Graphs
from accel_rl.models import PolicyValue
from accel_rl.options import option, require
from accel_rl.parallel import GradientSync, RMSProp

LOG_EPS = 1e-6
"""number added to probabilities in logarithms"""


@dataclass(frozen=True, kw_only=True)
class GA3CConfig(LearnerConfig):
    """GA3C's settings. The defaults are those of the paper and the code published with it.

    Agents are processes that step ``num_envs / num_groups`` environments each; at the start there
    are ``num_groups`` of them. Raises ValueError where a value is out of range.
    """

    in_rollouts: ClassVar[bool] = False

    lr: float = option(3e-4, common=True)
    """Learning rate. The loss is a sum, so one rate suits any number of samples."""
    value_coefficient: float = option(0.5, common=True)
    """Weight of the squared value error."""
    entropy_coefficient: float = option(0.01, common=True)
    """Weight of the entropy of the policy, in nats."""
    loss_reduction: Literal["sum", "mean"] = "sum"
    """Combination of the losses of a batch's samples."""
    vtrace: bool = False
    """Use returns and advantages of V-trace within each segment (Espeholt et al.
    2018), against the policy lag."""
    rmsprop_decay: float = 0.99
    """Decay of the running mean of squared gradients in each update."""
    rmsprop_eps: float = 0.1
    """Number added to the running mean inside the root.
    Where the squares of gradients are smaller, as with rare rewards, updates are small, too. Then a
    smaller number helps, such as 1e-8."""
    rmsprop_initial: float = 1.0
    """Initial value of the running mean."""
    num_predictors: int = option(2, "engine", common=True)
    """Number of threads that choose actions, at the start."""
    num_trainers: int = option(2, "engine", common=True)
    """Number of threads that learn, at the start."""
    min_training_batch: int = option(20, common=True)
    """Minimum number of samples of an update.
    An update takes whole segments until it has as many, or fewer if a full training queue holds
    fewer."""
    training_queue_size: int = option(100, common=True)
    """Maximum number of segments in the training queue.
    With the number of environments it bounds the age of experience."""
    tuner: bool = option(True, "engine", common=True)
    """Change the numbers of predictors, trainers and agents every minute, for the most updates a
    second. There are at most four times num_groups agents, for which memory is reserved."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "above 0", lambda value: value > 0, "lr", "rmsprop_eps")
        counts = ("num_predictors", "num_trainers", "training_queue_size")
        require(self, "at least 1", lambda value: value >= 1, *counts)
        at_least_zero = ("value_coefficient", "entropy_coefficient", "rmsprop_initial")
        require(self, "at least 0", lambda value: value >= 0, *at_least_zero, "min_training_batch")
        require(self, "at least 0 and below 1", lambda value: 0 <= value < 1, "rmsprop_decay")

    def make_agent(self, network: NetworkSpec) -> PolicyAgent:
        """Return an agent that draws actions from a softmax."""
        network.env.check_plain(name_of(self))
        agent = make_policy_agent(network)
        if agent.remembers:
            raise ValueError(f"model={network.model} has a memory, which GA3C does not learn")
        return agent

    def make_learner(  # type: ignore[override]  # it learns from samples, and so only in its own run
        self, agent: Agent, sync: GradientSync, task: LearnerSpec
    ) -> GA3C:
        """Return what trainers do with the parameters of ``agent``, of `make_agent`."""
        assert isinstance(agent, PolicyAgent)
        return GA3C(agent, self, sync)

    def check_run(self, run: Any) -> None:
        """Check that there is one learner, with agents in processes and a long enough queue."""
        if run.num_learners > 1:
            raise ValueError(
                f"algo={run.algo} has one model, and {run.num_learners} learners were asked for; "
                f"use learners=1 (and one GPU at most), or algo=a3c for several"
            )
        if run.overlap:
            raise ValueError(
                f"algo={run.algo} samples and learns at the same time in any case; leave out "
                f"overlap=true"
            )
        if run.sampler.num_workers == 0:
            raise ValueError(f"algo={run.algo} has agents in processes; leave out num_workers=0")
        most = self.training_queue_size * run.sampler.horizon
        if self.min_training_batch > most:
            raise ValueError(
                f"min_training_batch is {self.min_training_batch}, more than the training "
                f"queue holds: training_queue_size={self.training_queue_size} segments of "
                f"horizon={run.sampler.horizon} steps; use a larger training_queue_size"
            )
        if run.parallel.sync != "all_reduce":
            raise ValueError(
                f"sync={run.parallel.sync} is for several learners, and algo={run.algo} has one; "
                f"leave it out"
            )

    @property
    def rule(self) -> RMSProp:
        """The update rule."""
        return RMSProp(decay=self.rmsprop_decay, eps=self.rmsprop_eps, initial=self.rmsprop_initial)


class Samples(NamedTuple):
    """A batch of ``N`` samples from segments of at most ``T`` steps, on the learner's device."""

    observation: Tensor  # [N, ...]
    action: Tensor  # [N] int64
    return_: Tensor  # [N] float32
    behaviour_probability: Tensor | None = None  # [N] float32, with which they were chosen
    discount: Tensor | None = None  # [N] float32, 0 at the last step of a segment
    longest: int = 0  # T
    weight: Tensor | None = None  # [N] float32, 0 of what only fills up the batch; None: 1


def ga3c_loss(
    output: PolicyValue,
    action: Tensor,
    return_: Tensor,
    advantage: Tensor,
    value_coefficient: float,
    entropy_coefficient: float,
    log_eps: float,
) -> A2CLoss:
    """Return the loss of GA3C (Babaeizadeh et al. 2017, arXiv:1611.06256, section 4.1).

    ``total = policy_loss + value_coefficient * value_loss - entropy_coefficient * entropy``, with
    ``policy_loss = -advantage * l(pi(action))``, in the paper with the advantage ``R - V``,
    ``value_loss = (R - V) ** 2`` and ``entropy = -sum_a pi(a) * l(pi(a))``;
    ``l(p) = log(p + log_eps)``.

    Args:
        output: logits ``[N, A]`` and value ``[N]``, float.
        action: ``[N]`` int64.
        return_: ``[N]`` float, constant.
        advantage: ``[N]`` float, constant.
    """
    N = len(output.logits)
    if any(x.shape != (N,) for x in (output.value, action, return_, advantage)):
        raise ValueError(f"expected [N] with N = {N} in all arguments but the logits")
    pi = output.logits.softmax(1)
    log_pi = (pi + log_eps).log()
    log_prob = log_pi.gather(1, action.unsqueeze(1)).squeeze(1)
    policy_loss = -(advantage * log_prob)
    value_loss = (return_ - output.value).square()
    entropy = -(pi * log_pi).sum(1)
    total = policy_loss + value_coefficient * value_loss - entropy_coefficient * entropy
    return A2CLoss(total, policy_loss, value_loss, entropy)


@torch.no_grad()
def importance_ratios(logits: Tensor, action: Tensor, behaviour_probability: Tensor) -> Tensor:
    """Return ``pi(action) / mu(action)``, ``[N]``.

    Args:
        logits: ``[N, A]``, of ``pi``.
        action: ``[N]`` int64, drawn from ``mu``.
        behaviour_probability: ``[N]`` float, of ``action`` under ``mu``.
    """
    if action.shape != logits.shape[:1] or behaviour_probability.shape != action.shape:
        raise ValueError(f"expected [N] with N = {len(logits)} in all arguments but the logits")
    pi = logits.softmax(1).gather(1, action.unsqueeze(1)).squeeze(1)
    return pi / behaviour_probability


@torch.no_grad()
def segment_vtrace(
    samples: Samples, value: Tensor, ratio: Tensor, rho_clip: float = 1.0, c_clip: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return returns and advantages of `accel_rl.algos.returns.vtrace` for segments, ``[N]`` each.

    Behind a segment comes the value that its n-step returns end with. The rewards follow from them:
    ``reward[t] = return_[t] - discount[t] * return_[t + 1]``, so that ``td_error[t] = n_step[t] -
    discount[t] * n_step[t + 1]`` with ``n_step = return_ - value``.

    Args:
        samples: must have ``discount``.
    """
    discount = samples.discount
    assert discount is not None
    n_step = samples.return_ - value
    following = torch.roll(n_step, -1)  # behind the last one, where the discount is 0, of no effect
    td_error = torch.addcmul(n_step, discount, following, value=-1)
    rho = ratio.clamp(max=rho_clip)
    own, decay = rho * td_error, discount * ratio.clamp(max=c_clip)
    # Each pass takes in one step more of what follows.
    before, after = torch.cat((own, own.new_zeros(1))), own.new_zeros(len(own) + 1)
    for _ in range(samples.longest - 1):
        torch.addcmul(own, decay, before[1:], out=after[:-1])
        before, after = after, before
    correction = before[:-1]
    return value + correction, rho * torch.addcmul(td_error, discount, before[1:])


class GA3C:
    """Makes one update for each batch of a trainer.

    The losses and the entropy in the metrics are means over samples with any ``loss_reduction``.
    """

    def __init__(
        self,
        agent: PolicyAgent,
        config: GA3CConfig,
        sync: GradientSync,
        graphs: Graphs | None = None,
    ) -> None:
        self.config = config
        self._agent = agent
        self.optimizer = Optimizer(sync, graphs, log_norms=config.log_norms)
        self.metric_names = (*A2CLoss._fields[1:], "mean_value_target", *self.optimizer.names)
        self.get_state, self.set_state = self.optimizer.get_state, self.optimizer.set_state

    def update(self, batch: Samples, progress: float) -> dict[str, Tensor]:
        """Take one optimizer step on ``batch``; ``progress`` in [0, 1] is for the schedule.

        Return metrics as 0-d tensors on the batch's device, without waiting for it. With graphs
        batches of equal size must be in the same memory.
        """
        lr = self.config.lr * remaining(self.config, progress)
        self.optimizer.minimize(self.loss, self.optimizer.fixed(batch), lr=lr)
        return self.optimizer.take_metrics()

    def loss(self, batch: Samples) -> tuple[Tensor, dict[str, Tensor]]:
        """Return what each sample adds to the loss, ``[N]``, and metrics."""
        config, weight = self.config, batch.weight
        output = evaluate(self._agent, batch.observation, config.precision)
        return_, advantage = self._targets(output, batch)
        coefficients = config.value_coefficient, config.entropy_coefficient
        loss = ga3c_loss(output, batch.action, return_, advantage, *coefficients, LOG_EPS)
        N: Any = len(batch.action)
        if weight is not None:
            N = weight.sum()
            loss = A2CLoss(*(each * weight for each in loss))
        metrics = {name: each / N for name, each in sums(loss._asdict()).items()}
        metrics["mean_value_target"] = (
            return_.mean() if weight is None else (return_ * weight).sum() / N
        )
        total = loss.total if config.loss_reduction == "sum" else loss.total / N
        return total, metrics

    @torch.no_grad()
    def _targets(self, output: PolicyValue, batch: Samples) -> tuple[Tensor, Tensor]:
        """Return the targets of values, and the advantages of the actions: ``[N]`` each."""
        config, value = self.config, output.value.detach()
        if not config.vtrace:
            return batch.return_, batch.return_ - value
        mu = batch.behaviour_probability
        if mu is None:
            raise ValueError(
                "vtrace=true needs the probabilities with which actions were chosen, and these "
                "samples have none; give behaviour_probability in each Prediction, or leave it out"
            )
        ratio = importance_ratios(output.logits, batch.action, mu)
        return segment_vtrace(batch, value, ratio)
