"""Soft actor-critic (SAC): continuous control from a replay memory.

The three losses of policy, critics and alpha make one update: none of them has a gradient in the
others' parameters, and Adam treats each parameter by itself.

Haarnoja et al. 2018, arXiv:1812.05905. docs/algorithms/sac.md lists deviations.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from accel_rl.agents import Agent
from accel_rl.agents.bounded import BoundedAgent
from accel_rl.algos.learner import name_of
from accel_rl.algos.optimizer import shares, sums
from accel_rl.algos.replay import Transitions
from accel_rl.algos.replay_config import ReplayConfig
from accel_rl.algos.replay_learner import ReplayLearner
from accel_rl.algos.specs import LearnerSpec, NetworkSpec
from accel_rl.models.soft import SoftModel, flat
from accel_rl.options import option, require
from accel_rl.parallel import Adam, GradientSync
from accel_rl.spaces import map_leaves, size_of


@dataclass(frozen=True, kw_only=True)
class SACConfig(ReplayConfig):
    """Options of SAC. The defaults are those of table 1 of the paper (arXiv:1812.05905), which
    has no number of random first steps.

    Raises:
        ValueError: a value is out of range, or options do not fit each other.
    """

    lr: float = option(3e-4, common=True)
    """Learning rate of policy, critics and alpha."""
    batch_size: int = option(256, common=True)
    """Transitions in one update."""
    training_intensity: float = option(256.0, common=True)
    """Average number of times each step is used: updates * batch_size / steps.
    256 with batches of 256 is one update a step."""
    learning_starts: int = option(1_000, common=True)
    """Steps before the first update, taken by random actions."""
    tau: float = option(0.005, common=True)
    """Share by which the target critics move towards the critics in each update."""
    alpha: float | None = option(None, common=True)
    """Weight of the entropy, the temperature.
    none: learned, so that the entropy in nats reaches minus the number of floats in an action."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "above 0", lambda value: value > 0, "lr", "alpha")
        require(self, "above 0 and at most 1", lambda value: 0 < value <= 1, "tau")

    @property
    def rule(self) -> Adam:
        """The update rule."""
        return Adam(eps=1e-8, eps_after_correction=True)

    def make_agent(self, network: NetworkSpec) -> BoundedAgent:
        """Return an agent that draws floats between bounds.

        Raises:
            ValueError: Actions are something else, observations are images, or another network is
                asked for.
        """
        env, name = network.env, name_of(self)
        env.check_bounded(name)
        network.check_given(name, "auto", "mlp")
        alpha = 1.0 if self.alpha is None else self.alpha
        model = SoftModel(env.observation, size_of(env.action), alpha).to(network.device)
        return BoundedAgent(model, env.action, explore, decide, network.graphs)

    def evaluating(self, agent: Agent) -> Agent:
        """Return an agent of the same network that takes the mean."""
        return agent.greedy()

    def make_learner(self, agent: Any, sync: GradientSync, task: LearnerSpec) -> SAC:
        """Return the learner of ``agent``, of `make_agent`, with a replay.

        Raises:
            ValueError: The replay does not fit these rollouts, or the memory of its device.
        """
        return SAC(agent, self, sync, task)


LOSSES = ("critic_loss", "actor_loss", "alpha_loss")


def critic_loss(value: Tensor, target: Tensor) -> Tensor:
    """``sum_i (Q_i - target) ** 2 / 2`` (equation 5), ``[N]``.

    ``value``: ``[2, N]``. ``target``: ``[N]``, constants.
    """
    return (value - target.detach()).square().sum(0) / 2


def soft_target(
    reward: Tensor, discount: Tensor, value: Tensor, log_prob: Tensor, alpha: Tensor
) -> Tensor:
    """``reward + discount * (min_i Q_i - alpha * log pi)`` (equations 3 and 5), ``[N]``.

    ``value``: ``[2, N]``, of the target critics for an action that the policy draws behind;
    ``log_prob``: ``[N]``, its logarithm of density. All else ``[N]`` or 0-d.
    """
    return reward + discount * (value.amin(0) - alpha * log_prob)


def squash(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``tanh(mean + exp(log_std) * noise)`` and the logarithm of its density.

    ``log pi(a) = sum(log N(u; mean, std) - log(1 - tanh(u) ** 2))`` (Haarnoja et al. 2018,
    arXiv:1812.05905, appendix C), where ``log(1 - tanh(u) ** 2) = 2 (log 2 - u - softplus(-2 u))``.

    Args:
        mean: ``[N, D]``.
        log_std: ``[N, D]``.
        noise: ``[N, D]``, standard normal numbers.

    Returns:
        Actions ``[N, D]`` between -1 and 1, and ``[N]``.
    """
    u = mean + log_std.exp() * noise
    density = -(noise.square() + log(2 * torch.pi)) / 2 - log_std
    slope = 2 * (log(2) - u - F.softplus(-2 * u))
    return u.tanh(), (density - slope).sum(1)


def explore(model: SoftModel, observation: Tensor, noise: Tensor) -> Tensor:
    """Return actions that the policy draws, ``[N, D]`` between -1 and 1; see `BoundedAgent`."""
    mean, log_std = model.gaussian(observation)
    return torch.tanh(mean + log_std.exp() * noise)


def decide(model: SoftModel, observation: Tensor) -> Tensor:
    """Return the policy's means, ``[N, D]`` between -1 and 1; see `BoundedAgent`."""
    return torch.tanh(model.gaussian(observation)[0])


class SAC(ReplayLearner):
    """The learner of soft actor-critic, with an agent of `SACConfig.make_agent`.

    `ReplayLearner` has the arguments. The seed of the task is for the actions in updates, too.
    """

    agent: BoundedAgent
    config: SACConfig
    metrics = (*LOSSES, "q_value", "entropy", "alpha")

    def __init__(
        self, agent: BoundedAgent, config: SACConfig, sync: GradientSync, task: LearnerSpec
    ) -> None:
        super().__init__(agent, config, sync, task)
        if config.alpha is not None:  # init=RUN has brought that of another run
            agent.model.log_alpha.detach().fill_(log(config.alpha))
        self._target = copy.deepcopy(agent.model.critics).requires_grad_(False)
        self._targets = list(self._target.parameters())
        self._critics = list(agent.model.critics.parameters())
        self.optimizer.after = self._move_target
        self._target_entropy = -float(agent.num_actions)
        self.adjust()

    def get_state(self) -> dict[str, Any]:
        """Return what a checkpoint holds besides parameters and the state of their rule."""
        target = map_leaves(lambda each: each.cpu().clone(), self._target.state_dict())
        return {"target": target, **super().get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue. Without a replay in ``state``, it first waits ``learning_starts`` more steps.

        Until then the policy acts as it has learned.
        """
        super().set_state(state)
        self._target.load_state_dict(state["target"])
        self.adjust()

    def learn(self, progress: float) -> None:
        """Make an optimizer step, after which the target critics move towards the critics."""
        batch, noise = self.draw(), self.noise(2, self.batch_size, self.agent.num_actions)
        self.optimizer.minimize(self.loss, batch, noise, lr=self.learning_rate(progress))

    @torch.no_grad()
    def _move_target(self) -> None:
        torch._foreach_lerp_(self._targets, self._critics, self.config.tau)

    def adjust(self) -> None:
        """Take random actions until the first update."""
        self.agent.is_random = self.pace.awaits_first

    def loss(self, batch: Transitions, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return what each sample adds to the losses, ``[N]``, and metrics.

        Args:
            batch: the transitions.
            noise: standard normal numbers ``[2, N, D]``, for the actions after the transitions and
                before them.
        """
        taken = self.agent.unit(batch.action)  # not in autocast, which knows no float16 on a CPU
        with self.autocast():
            model, valid = self.agent.model, batch.valid
            seen, behind = flat(batch.observation), flat(batch.next_observation)
            alpha = model.log_alpha.detach().exp()
            with torch.no_grad():
                next_action, next_log_prob = squash(*self._gaussian(behind), noise[0])
                next_value = self._target(torch.cat((behind, next_action), 1)).float()
                target = soft_target(batch.reward, batch.discount, next_value, next_log_prob, alpha)
            value = model.critics(torch.cat((seen, taken), 1)).float()
            action, log_prob = squash(*self._gaussian(seen), noise[1])
            pairs = torch.cat((seen, action), 1)
            judged = model.critics(pairs, are_constant=True).float().amin(0)
        actor = alpha * log_prob - judged  # equation 7
        about = torch.zeros_like(actor)
        if self.config.alpha is None:  # equation 18, by the logarithm
            about = -model.log_alpha * (log_prob.detach() + self._target_entropy)
        losses = (critic_loss(value, target), actor, about)
        share = shares(valid, value.dtype)
        parts = dict(zip(LOSSES, losses, strict=True))
        parts |= {"q_value": value.mean(0), "entropy": -log_prob}
        return share * sum(losses), {**sums(parts, share), "alpha": alpha}

    def _gaussian(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.agent.model.gaussian(observation)
        return mean.float(), log_std.float()
