"""Advantage actor-critic, synchronous (A2C), with the settings of Stooke and Abbeel 2018.

Every algorithm here has the same skeleton: prepare (returns), loss, backward, ``exchange.step``.

Where it leaves the paper (arXiv:1803.02811) or the code published with it:

- A time limit bootstraps from the final observation (``time_limit_terminal`` gives theirs).
- The square-root rule for the learning rate holds at any number of environments. The paper states
  3e-3 at 512 of them, where the rule gives 3.96e-3; set ``lr`` for that.
- Logarithms of probabilities are exact, without 1e-8 added inside.
- Values that advantages are measured from come from the update's own forward pass, not from acting.
  The parameters are the same, so these are the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from accel_rl.agents import CategoricalAgent, RolloutTensors
from accel_rl.algos.returns import fold_truncation, generalized_advantages
from accel_rl.models import PolicyValue
from accel_rl.parallel import Exchange, RMSProp

LR_BASE_NUM_ENVS = 16
ADVANTAGE_EPS = 1e-6


@dataclass(frozen=True, kw_only=True)
class A2CConfig:
    """A2C's settings. The defaults are those of arXiv:1803.02811 and the code published with it.

    Raises:
        ValueError: a value is out of range.
    """

    lr: float | None = None
    """learning rate, whatever num_envs; none: lr_base * sqrt(num_envs / 16)"""
    lr_base: float = 7e-4
    """learning rate at 16 environments"""
    lr_schedule: Literal["constant", "linear"] = "constant"
    """linear: the learning rate falls to 0 over the run"""
    gamma: float = 0.99
    """discount of one step"""
    gae_lambda: float = 1.0
    """of generalized advantage estimates; 1: n-step returns up to the end of the rollout"""
    value_coefficient: float = 0.25
    """weight of the mean squared value error; there is no factor 1/2 besides"""
    entropy_coefficient: float = 0.01
    """weight of the mean policy entropy, in nats"""
    max_gradient_norm: float | None = 0.5
    """the gradient is scaled down to this L2 norm; none: never"""
    normalize_advantage: bool = False
    """advantages of each update are shifted and scaled to mean 0 and standard deviation 1"""
    time_limit_terminal: bool = False
    """true: a time limit ends the task, as in the papers; false: the value goes on behind it"""
    rmsprop_decay: float = 0.9
    """of the running mean of squared gradients, for each update"""
    rmsprop_eps: float = 1e-6
    """added to that mean inside the root"""
    rmsprop_initial: float = 0.0
    """what that mean begins with"""
    precision: Literal["float32", "bfloat16"] = "float32"
    """of the network's arithmetic in updates; parameters and acting are always float32"""

    def __post_init__(self) -> None:
        for name in ("lr", "lr_base", "max_gradient_norm", "rmsprop_eps"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} is {value}; it must be above 0")
        for name in ("gamma", "gae_lambda"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be from 0 to 1")
        for name in ("value_coefficient", "entropy_coefficient", "rmsprop_initial"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 0")
        if not 0 <= self.rmsprop_decay < 1:
            raise ValueError(
                f"rmsprop_decay is {self.rmsprop_decay}; it must be at least 0 and below 1"
            )

    @property
    def rule(self) -> RMSProp:
        """The update rule, for the exchange."""
        return RMSProp(decay=self.rmsprop_decay, eps=self.rmsprop_eps, initial=self.rmsprop_initial)

    def learning_rate(self, num_envs: int, progress: float) -> float:
        """For ``num_envs`` environments in all, ``progress`` in [0, 1] of the schedule done."""
        lr = self.lr_base * sqrt(num_envs / LR_BASE_NUM_ENVS) if self.lr is None else self.lr
        return lr * (1 - progress) if self.lr_schedule == "linear" else lr


class A2CLoss(NamedTuple):
    """0-d tensors. ``total`` carries the gradient of all."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor


def a2c_loss(
    output: PolicyValue,
    action: Tensor,
    return_: Tensor,
    advantage: Tensor,
    valid: Tensor,
    value_coefficient: float,
    entropy_coefficient: float,
) -> A2CLoss:
    """The loss of advantage actor-critic (Mnih et al. 2016, arXiv:1602.01783, section 4).

    ``total = policy + value_coefficient * value - entropy_coefficient * entropy``, with
    ``policy = mean(-advantage * log pi(action))``, ``value = mean((return_ - V) ** 2)`` and
    ``entropy = mean(-sum_a pi(a) log pi(a))``, where ``mean(x) = sum(valid * x) / sum(valid)``.

    ``output``: logits ``[N, A]`` and value ``[N]``, float. ``action``: ``[N]`` int64.
    ``return_``, ``advantage``: ``[N]`` float, taken as constants. ``valid``: ``[N]`` bool.
    """
    N = len(output.logits)
    if any(x.shape != (N,) for x in (output.value, action, return_, advantage, valid)):
        raise ValueError(f"expected [N] with N = {N} in all arguments but the logits")
    weight = valid.to(output.value.dtype)
    weight = weight / weight.sum()
    log_probs = output.logits.log_softmax(1)
    log_prob = log_probs.gather(1, action.unsqueeze(1)).squeeze(1)
    policy = -(weight * advantage.detach() * log_prob).sum()
    value = (weight * (return_.detach() - output.value).square()).sum()
    entropy = -(weight * (log_probs.exp() * log_probs).sum(1)).sum()
    total = policy + value_coefficient * value - entropy_coefficient * entropy
    return A2CLoss(total, policy, value, entropy)


class A2C:
    """The A2C learner: one update for each rollout.

    ``exchange`` holds the flat parameters of ``agent.model`` and applies the gradients.
    """

    def __init__(self, agent: CategoricalAgent, config: A2CConfig, exchange: Exchange) -> None:
        self.config = config
        self._agent = agent
        self._exchange = exchange

    def update(self, batch: RolloutTensors, progress: float) -> dict[str, Tensor]:
        """One optimizer step on ``batch``; ``progress`` in [0, 1] is for the schedules.

        Returns metrics as 0-d tensors on the batch's device, without waiting for it.
        """
        T, B = batch.action.shape
        self._exchange.parameters.zero_gradient()
        output = self._evaluate(batch.observation[:T].flatten(0, 1))
        return_, advantage = self._targets(batch, output.value.detach().view(T, B))
        loss = a2c_loss(
            output,
            batch.action.flatten(),
            return_.flatten(),
            advantage.flatten(),
            batch.valid.flatten(),
            self.config.value_coefficient,
            self.config.entropy_coefficient,
        )
        loss.total.backward()  # type: ignore[no-untyped-call]
        gradient_norm = self._exchange.step(self.config.learning_rate(B, progress))
        return {
            "policy_loss": loss.policy.detach(),
            "value_loss": loss.value.detach(),
            "entropy": loss.entropy.detach(),
            "gradient_norm": gradient_norm,
            "mean_value_target": _masked_mean(return_, batch.valid),
        }

    def _evaluate(self, observation: Tensor) -> PolicyValue:
        with torch.autocast(
            observation.device.type, torch.bfloat16, enabled=self.config.precision == "bfloat16"
        ):
            output = self._agent.evaluate(observation)
        return PolicyValue(output.logits.float(), output.value.float())

    def _targets(self, batch: RolloutTensors, value: Tensor) -> tuple[Tensor, Tensor]:
        """Returns and advantages, ``[T, B]`` each, from values ``[T, B]``."""
        config = self.config
        bootstrap_value, final_value = self._bootstrap(batch)
        reward, discount = fold_truncation(
            batch.reward, batch.terminated, batch.truncated, final_value, config.gamma
        )
        advantage = generalized_advantages(
            reward, discount, value, bootstrap_value, config.gae_lambda
        )
        return_ = advantage + value
        if config.normalize_advantage:
            advantage = _normalize(advantage, batch.valid)
        return return_, advantage

    @torch.no_grad()
    def _bootstrap(self, batch: RolloutTensors) -> tuple[Tensor, Tensor]:
        """Values ``[B]`` of the last observations; ``[T, B]`` of final ones, 0 where none is."""
        observation, final_value = batch.observation[-1], torch.zeros_like(batch.reward)
        # A shape: known without asking the device.
        if len(batch.final_step) == 0 or self.config.time_limit_terminal:
            return self._evaluate(observation).value, final_value
        B = len(observation)
        value = self._evaluate(torch.cat((observation, batch.final_observation))).value
        final_value[batch.final_step, batch.final_env] = value[B:]
        return value[:B], final_value


def _masked_mean(x: Tensor, valid: Tensor) -> Tensor:
    return (x * valid).sum() / valid.sum()


def _normalize(advantage: Tensor, valid: Tensor) -> Tensor:
    centred = advantage - _masked_mean(advantage, valid)
    return centred / (_masked_mean(centred.square(), valid).sqrt() + ADVANTAGE_EPS)
