"""An algorithm of your own: A2C that keeps its policy smooth in time, with Adam.

accel_rl train algo=examples.own_algorithm:make env=catch smoothness_coefficient=0.02

Beside A2C's loss it minimizes the divergence between the policies of consecutive observations, the
temporal regularization of CAPS (Mysore et al. 2021, arXiv:2012.06644) for a softmax.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from accel_rl.agents import RolloutTensors
from accel_rl.algos import (
    ActorCritic,
    ActorCriticConfig,
    LearnerSpec,
    bootstrap_values,
    masked_shares,
)
from accel_rl.algos.a2c import a2c_loss
from accel_rl.algos.actor_critic import returns_and_advantages, rollout_outputs
from accel_rl.config import TrainConfig
from accel_rl.parallel import Adam, GradientSync
from accel_rl.samplers import SamplerConfig


@dataclass(frozen=True, kw_only=True)
class SmoothConfig(ActorCriticConfig):
    """A2C's options and two more; they appear in --help, in config.yaml and in sweeps."""

    lr: float = 2e-3
    """learning rate"""
    smoothness_coefficient: float = 0.01
    """weight of the mean divergence between the policies of consecutive observations"""

    rule = Adam(eps=1e-5)  # how gradients are applied

    def make_learner(self, agent: Any, sync: GradientSync, task: LearnerSpec) -> "Smooth":
        """Return the learner of ``agent``."""
        return Smooth(agent, self, sync, task)


class Smooth(ActorCritic):
    """The learner: one optimizer step for each rollout."""

    metrics = ("policy_loss", "value_loss", "divergence")

    def loss(self, batch: RolloutTensors) -> tuple[Tensor, dict[str, Tensor]]:
        """Return what each sample of a rollout adds to the loss, ``[T, B]``, and metrics."""
        (T, B), config, valid = batch.action.shape, self.config, batch.valid
        output = rollout_outputs(self.agent, batch, config.precision)
        bounds = bootstrap_values(self.agent, batch, config)
        value = output.value.detach().view(T, B)
        targets = returns_and_advantages(batch, value, *bounds, config)
        loss = a2c_loss(
            output,
            *(each.flatten() for each in (batch.action, *targets, valid)),
            config.value_coefficient,
            config.entropy_coefficient,
        )
        log_pi = output.logits.log_softmax(1).view(T, B, -1)
        divergence = (log_pi[:-1].exp() * (log_pi[:-1] - log_pi[1:])).sum(2)  # [T - 1, B]
        goes_on = valid[:-1] & valid[1:] & ~(batch.terminated | batch.truncated)[:-1]
        divergence = masked_shares(divergence, goes_on)
        total = loss.total.view(T, B)
        total[:-1] += config.smoothness_coefficient * divergence
        parts = (loss.policy_loss, loss.value_loss, divergence)
        return total, dict(zip(self.metrics, (each.sum() for each in parts), strict=True))


def make() -> TrainConfig:
    """A2C with a smooth policy, for small environments."""
    return TrainConfig(sampler=SamplerConfig(num_envs=16, horizon=8), learner=SmoothConfig())
