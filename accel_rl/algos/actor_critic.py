"""What A2C and PPO share: settings, normalization, and targets from a rollout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from accel_rl.agents import PolicyAgent, RolloutTensors, make_distribution
from accel_rl.algos.learner import Learner, LearnerConfig, name_of
from accel_rl.algos.normalization import Normalization
from accel_rl.algos.returns import fold_truncation, generalized_advantages, values_beyond
from accel_rl.algos.specs import LearnerSpec, NetworkSpec
from accel_rl.models import PolicyValue, Sequences, make_model
from accel_rl.options import option, require
from accel_rl.parallel import GradientSync
from accel_rl.spaces import first_leaf, map_leaves, without_mask

_DEVIATION_EPS = 1e-8  # as in OpenAI's baselines and CleanRL
_ROUNDING = 8
"""units of rounding, of a mean, up to which a deviation is not one"""


@dataclass(frozen=True, kw_only=True)
class ActorCriticConfig(LearnerConfig):
    """Options that A2C and PPO share. The defaults are those of arXiv:1803.02811 and its published
    code.

    Raises:
        ValueError: a value is out of range.
    """

    clips_actions: ClassVar[bool] = True
    learns_all_spaces: ClassVar[bool] = False
    """whether its learner takes every space, by the agent's distribution, and normalizes by
    `Normalization`; one that does not say so takes plain spaces alone"""
    scales_actions: ClassVar[bool] = True
    """whether floats are drawn around the middle of their bounds, in units of half the width, and
    not around 0"""

    gae_lambda: float = option(1.0, common=True)
    """Lambda of generalized advantage estimation.
    1: n-step returns up to the end of the rollout."""
    value_coefficient: float = option(0.25, common=True)
    """Weight of the mean squared value error, without a factor 1/2."""
    entropy_coefficient: float = option(0.01, common=True)
    """Weight of the mean entropy of the policy, in nats."""
    max_gradient_norm: float | None = option(0.5, common=True)
    """Maximum L2 norm of the gradient, which is scaled down to it. none: no limit."""
    normalize_advantage: bool = False
    """Shift and scale the advantages of each update to mean 0 and standard deviation 1."""
    normalize_observation: bool = False
    """Shift and scale observations by running means and deviations.
    They are saved with the run and used wherever its policy acts."""
    normalize_reward: bool = False
    """Divide rewards by the running standard deviation of each environment's discounted sum of
    rewards."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.normalize_observation or self.normalize_reward) and not self.learns_all_spaces:
            raise ValueError(
                f"normalize_observation and normalize_reward must be false, since the learner of "
                f"{name_of(self)} does not use them"
            )
        require(self, "from 0 to 1", lambda value: 0 <= value <= 1, "gae_lambda")
        coefficients = ("value_coefficient", "entropy_coefficient")
        require(self, "at least 0", lambda value: value >= 0, *coefficients)

    def make_agent(self, network: NetworkSpec) -> PolicyAgent:
        """Return an agent that draws actions from a distribution, with a memory if asked for."""
        if not self.learns_all_spaces:
            network.env.check_plain(name_of(self))
        agent = make_policy_agent(network, scale_actions=self.scales_actions)
        agent.tells_log_prob = self.uses_ratios
        return agent


class ActorCritic(Learner):
    """Base class of actor-critic learners, with the options `ActorCriticConfig`.

    Attributes:
        normalization: normalizes rollouts; None if the options do not ask for it.
    """

    agent: PolicyAgent
    config: Any

    def __init__(self, agent: Any, config: Any, sync: GradientSync, task: LearnerSpec) -> None:
        super().__init__(agent, config, sync, task)
        self.normalization: Normalization | None = None
        if config.normalize_observation or config.normalize_reward:
            self.normalization = Normalization(
                agent,
                sync,
                task,
                observation=config.normalize_observation,
                reward=config.normalize_reward,
                gamma=config.gamma,
            )
            self.parts.append(self.normalization)

    def update(
        self, batch: RolloutTensors, progress: float, steps: int | None = None
    ) -> Mapping[str, Tensor]:
        """Make one optimizer step on a rollout, normalized if the options say so."""
        return super().update(self.normalized(batch), progress, steps)

    def normalized(self, batch: RolloutTensors) -> RolloutTensors:
        """Return a rollout as the loss sees it. Each rollout must be passed once.

        Args:
            batch: the rollout, ``[T, B]``.
        """
        if self.normalization is None:
            return batch
        return self.normalization.take(batch)._replace(stays=False)


def make_policy_agent(network: NetworkSpec, *, scale_actions: bool = True) -> PolicyAgent:
    """Return an agent of a network with a policy and a value, with fresh parameters.

    Args:
        network: Which network, and where.
        scale_actions: Draw floats in units of half the width of their bounds, around their middle.

    Raises:
        ValueError: There is no such network, or it does not fit the environment.
    """
    env, device = network.env, network.device
    distribution = make_distribution(env.action, device, in_units=scale_actions)
    space = without_mask(env.observation)
    head = distribution.num_outputs
    model = make_model(network.model, space, head, network.memory_spec, device, network.unmasked)
    return PolicyAgent(model, network.graphs, distribution=distribution)


def evaluate(
    agent: PolicyAgent,
    observation: Any,
    precision: str,
    sequences: Sequences | None = None,
) -> PolicyValue:
    """Logits ``[N, A]`` and values ``[N]``, float32, computed in ``precision``.

    ``sequences``: in which order ``observation`` came, for an agent with a recurrent network.
    """
    if precision != "bfloat16":
        return agent.evaluate(observation, sequences)
    with torch.autocast(first_leaf(observation).device.type, torch.bfloat16):
        output = agent.evaluate(observation, sequences)
    return PolicyValue(output.logits.float(), output.value.float())


def rollout_outputs(agent: PolicyAgent, batch: RolloutTensors, precision: str) -> PolicyValue:
    """Return the network's outputs for all steps of a rollout, ``[T * B]``."""
    T = len(batch.reward)
    observation = map_leaves(lambda each: each[:T].flatten(0, 1), batch.observation)
    return evaluate(agent, observation, precision, batch.sequences(slice(0, T)))


class Steps(NamedTuple):
    """What a policy gives for the steps of a rollout, float32 ``[T, B]`` each, with gradient.

    Attributes:
        log_prob: log-probabilities of the actions that were taken; densities for floats.
        entropy: entropies of the policy, in nats.
        value: values of the observations.
    """

    log_prob: Tensor
    entropy: Tensor
    value: Tensor


def evaluate_steps(agent: PolicyAgent, batch: RolloutTensors, precision: str) -> Steps:
    """Run the network on the steps of a rollout, with gradient. This works with every space.

    Args:
        agent: the agent, of `make_policy_agent`.
        batch: the rollout, ``[T, B]``.
        precision: number format of the products, `LearnerConfig.precision`.

    Returns:
        Log-probabilities, entropies and values.
    """
    output = rollout_outputs(agent, batch, precision)
    action = map_leaves(lambda each: each.flatten(0, 1), batch.action)
    evaluated = agent.distribution.evaluate(output.logits, action)
    shape = batch.reward.shape
    return Steps(*(each.view(shape) for each in (*evaluated, output.value)))


def check_ratios(batch: RolloutTensors) -> None:
    """Check that a rollout has what probability ratios need."""
    if batch.log_prob is None:
        raise ValueError(
            "probability ratios need the log-probabilities with which actions were chosen, and "
            "this rollout has none; set tells_log_prob of the agent that acts"
        )


@torch.no_grad()
def returns_and_advantages(
    batch: RolloutTensors,
    value: Tensor,
    bootstrap_value: Tensor,
    final_value: Tensor,
    config: ActorCriticConfig,
) -> tuple[Tensor, Tensor]:
    """Generalized advantages, and returns: advantage + value. ``[T, B]`` each.

    ``value``: ``[T, B]``, of all observations but the last; the others as `bootstrap_values` gives
    them.
    """
    reward, discount = fold_ends(batch, final_value, config.gamma)
    advantage = generalized_advantages(reward, discount, value, bootstrap_value, config.gae_lambda)
    return advantage + value, advantage


def fold_ends(batch: RolloutTensors, final_value: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """Express the ends of a rollout's episodes as rewards and discounts; see `fold_truncation`.

    Args:
        batch: the rollout, ``[T, B]``.
        final_value: ``[T, B]`` float, of `bootstrap_values`.
        gamma: discount of one step.

    Returns:
        Rewards and discounts, ``[T, B]`` each, without gradient.
    """
    ends = batch.terminated, batch.truncated, batch.valid
    return fold_truncation(batch.reward, *ends, final_value, gamma)


def normalize(advantage: Tensor, valid: Tensor, sync: GradientSync) -> Tensor:
    """``(advantage - mean) / (deviation + 1e-8)``, of one shape with ``advantage``.

    ``advantage``, ``valid``: ``[N]``, or ``[M, N]`` of ``M`` batches, each by itself.

    Mean and standard deviation (of the population) are those where ``valid``, over the batches of
    all learners that share the update. A single advantage has no deviation, and stays as it is;
    what rounding leaves of equal ones becomes 0.
    """
    total, count = (each.sum(-1, keepdim=True) for each in (advantage * valid, valid))
    if sync.num_sharing > 1:
        total, count = sync.sum(torch.stack((total, count)))
    mean = total / count.clamp(min=1)
    centred = advantage - mean
    squares = (centred.square() * valid).sum(-1, keepdim=True)
    variance = sync.sum(squares) / count.clamp(min=1)
    deviation = variance.sqrt()
    is_rounding = deviation <= _ROUNDING * torch.finfo(mean.dtype).eps * mean.abs()
    normalized = torch.where(is_rounding, 0.0, centred / (deviation + _DEVIATION_EPS))
    return torch.where(count > 1, normalized, advantage)


def bootstrap_values(
    agent: PolicyAgent, batch: RolloutTensors, config: LearnerConfig
) -> tuple[Tensor, Tensor]:
    """Return the values behind the steps of a rollout, without gradient.

    Args:
        agent: the agent whose network gives them.
        batch: the rollout, ``[T, B]``.
        config: its ``precision`` and ``bootstrap_on_truncation`` are used.

    Returns:
        Values ``[B]`` of the last observations; and ``[T, B]`` of the final observations of
        truncated episodes, 0 elsewhere.
    """
    return values_beyond(
        lambda *seen: evaluate(agent, seen[0], config.precision, seen[1]).value,
        batch,
        bootstrap_on_truncation=config.bootstrap_on_truncation,
    )
