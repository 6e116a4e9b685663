"""Soft actor-critic (SAC): continuous control from a replay memory.

Every algorithm here has the same skeleton: prepare (replay insert and sample), loss per sample,
`Update.step`. Here the three losses of policy, critics and temperature make one update: none of
them has a gradient in the others' parameters, and Adam treats each parameter by itself.

Haarnoja et al. 2018, arXiv:1812.05905. docs/algorithms/sac.md lists deviations.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call

from accel_rl.agents import AnyAgent, RolloutTensors
from accel_rl.agents.squashed import SquashedAgent, squash
from accel_rl.algos.generator import restore
from accel_rl.algos.learner_config import name_of, require
from accel_rl.algos.replay import Replay, ReplaySpec, Transitions
from accel_rl.algos.replay_config import PACE_METRICS, Pace, ReplayConfig, sent
from accel_rl.algos.task import Network, Task
from accel_rl.algos.update import Update, masked_shares, sums
from accel_rl.models.soft import SoftModel, flat
from accel_rl.parallel import ALONE, Adam, Exchange, Ranks
from accel_rl.settings import option
from accel_rl.spaces import Leaf, describe, leaves_of, map_leaves


def _is_temperature_given(run: Any) -> str | Literal[False]:
    return run.learner.temperature is not None and "learner.temperature is given"


@dataclass(frozen=True, kw_only=True)
class SACConfig(ReplayConfig):
    """Options of SAC. The defaults are those of table 1 of the paper (arXiv:1812.05905).

    Raises:
        ValueError: a value is out of range, or options do not fit each other.
    """

    lr: float = option(3e-4, common=True)
    """Learning rate of policy, critics and temperature."""
    batch_size: int = option(256, common=True)
    """Transitions in one update."""
    training_intensity: float = option(256.0, common=True)
    """Average number of times each step is used: updates * batch_size / steps.
    256 with batches of 256 is one update a step."""
    min_steps: int = option(10_000, common=True)
    """Steps before the first update, taken by random actions."""
    target_rate: float = option(0.005, common=True)
    """Share by which the target critics move towards the critics in each update."""
    temperature: float | None = option(None, common=True)
    """Weight of the entropy. none: learned, so that the entropy reaches target_entropy."""
    target_entropy: float | None = option(None, idle=_is_temperature_given)
    """Target of the entropy, in nats. none: minus the number of floats in an action."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "above 0", lambda value: value > 0, "lr", "temperature")
        require(self, "above 0 and at most 1", lambda value: 0 < value <= 1, "target_rate")

    @property
    def rule(self) -> Adam:
        """The update rule, for the exchange."""
        return Adam(eps=1e-8)

    def make_agent(self, network: Network) -> SquashedAgent:
        """Return an agent that draws floats between bounds.

        Raises:
            ValueError: Actions are something else, observations are images, or another network is
                asked for.
        """
        env, name = network.env, name_of(self)
        action = env.action
        if not all(_is_bounded(leaf) for _, leaf in leaves_of(action)):
            raise ValueError(
                f"{name} cannot use this environment: the actions of {env.name} are "
                f"{describe(action)}; they must be floats between finite bounds (Box spaces); "
                f"for others use algo=ppo"
            )
        for _, leaf in leaves_of(env.observation):
            if len(leaf.shape) == 3 and leaf.dtype.name == "uint8":
                raise ValueError(
                    f"{name} cannot use this environment: the observations of {env.name} are "
                    f"{describe(env.observation)}, with images, for which it has no network; use "
                    f"algo=ppo"
                )
        if network.model not in ("auto", "mlp"):
            raise ValueError(
                f"model={network.model} is for other algorithms; {name} has networks of its own: "
                f"leave it out"
            )
        temperature = 1.0 if self.temperature is None else self.temperature
        num_actions = sum(prod(leaf.shape) for _, leaf in leaves_of(action))
        model = SoftModel(env.observation, num_actions, temperature).to(network.device)
        return SquashedAgent(model, action, network.capture)

    def evaluating(self, agent: AnyAgent) -> SquashedAgent:
        """Return an agent of the same network that takes the mean."""
        assert isinstance(agent, SquashedAgent)
        return agent.greedy()

    def make_learner(self, agent: AnyAgent, exchange: Exchange, task: Task) -> SAC:
        """Return the learner of ``agent``, of `make_agent`, with a replay.

        Raises:
            ValueError: The replay does not fit these rollouts, or the memory of its device.
        """
        assert isinstance(agent, SquashedAgent)
        return SAC(agent, self, exchange, self.replay_spec(task), task.seed, task.ranks)


def _is_bounded(leaf: Leaf) -> bool:
    has_bounds = (bound is not None and isfinite(abs(bound).max()) for bound in leaf.bounds)
    return leaf.dtype.kind == "f" and all(has_bounds)


class SoftLoss(NamedTuple):
    """What each sample adds, ``[N]`` each; ``total`` carries the gradients."""

    total: Tensor
    critic_loss: Tensor
    actor_loss: Tensor
    temperature_loss: Tensor


def critic_loss(value: Tensor, target: Tensor) -> Tensor:
    """``sum_i (Q_i - target) ** 2 / 2`` (equation 5), ``[N]``.

    ``value``: ``[2, N]``. ``target``: ``[N]``, constants.
    """
    return (value - target.detach()).square().sum(0) / 2


def soft_target(
    reward: Tensor, discount: Tensor, value: Tensor, log_prob: Tensor, temperature: Tensor
) -> Tensor:
    """``reward + discount * (min_i Q_i - temperature * log pi)`` (equations 3 and 5), ``[N]``.

    ``value``: ``[2, N]``, of the target critics for an action that the policy draws behind;
    ``log_prob``: ``[N]``, its logarithm of density. All else ``[N]`` or 0-d.
    """
    return reward + discount * (value.amin(0) - temperature * log_prob)


class SAC:
    """The learner of soft actor-critic.

    Args:
        agent: the agent of `SACConfig.make_agent`.
        config: the options.
        exchange: holds the flat parameters of ``agent.model`` and applies the gradients.
        replay_spec: content of the replay.
        seed: seed of the draws from the replay and of the actions in updates.
        ranks: which of the run's learners this is; their steps count together.

    Raises:
        ValueError: the replay does not fit the memory of its device, or options do not fit.
    """

    behaviour = None

    def __init__(
        self,
        agent: SquashedAgent,
        config: SACConfig,
        exchange: Exchange,
        replay_spec: ReplaySpec,
        seed: int,
        ranks: Ranks = ALONE,
    ) -> None:
        self.config = config
        self._agent, self._exchange = agent, exchange
        self._batch_size = config.batch_size // exchange.num_sharing
        self._device = exchange.parameters.parameter.device
        on = config.where_replay_lies(replay_spec, self._device, ranks.size)
        self.replay = Replay(replay_spec, on, ranks.size, ranks.local_size)
        self._generator = torch.Generator(on).manual_seed(seed)
        self._noise = torch.Generator(self._device).manual_seed(seed)
        self._target = copy.deepcopy(agent.model.critics).requires_grad_(False)
        given = config.target_entropy
        self._target_entropy = -float(agent.num_actions) if given is None else given
        self._pace = Pace(config, ranks.size, exchange.num_sharing)
        self._losses = agent.capture(self._compute_losses)
        self._update = Update(config, exchange, agent.capture)
        own = ("q_value", "entropy", "temperature")
        self.metric_names = (*SoftLoss._fields[1:], *own, *PACE_METRICS, *self._update.names)
        agent.is_random = not self._pace.has_begun

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint holds beside the exchange's."""
        state = {
            "target": map_leaves(lambda each: each.cpu().clone(), self._target.state_dict()),
            "generator": self._generator.get_state(),
            "noise": self._noise.get_state(),
            **self._pace.get_state(),
            **self._update.get_state(),
        }
        if self.config.save_replay:
            state["replay"] = self.replay.get_state()
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Without a replay in it, learning waits until ``min_steps`` more steps were taken.

        Until then the policy acts as it has learned.
        """
        self._target.load_state_dict(state["target"])
        for generator, name in ((self._generator, "generator"), (self._noise, "noise")):
            if name in state:
                restore(generator, state[name])
        self._update.set_state(state)
        if "replay" in state:
            self.replay.set_state(state["replay"])
        self._pace.set_state(state, has_replay=self.replay.num_stored > 0)
        self._agent.is_random = state["steps"] < self.config.min_steps

    def update(
        self, batch: RolloutTensors, progress: float, steps: int | None = None
    ) -> dict[str, Tensor]:
        """Store ``batch``, and as many optimizer steps as its steps call for.

        ``progress`` in [0, 1] is for the schedule of the learning rate. ``steps``: taken by all
        learners so far, this batch's included; None: there is no other learner. Returns metrics,
        means over the optimizer steps, as 0-d tensors on the learner's device, without waiting for
        it; nothing where there was no such step.
        """
        config = self.config
        batch = config.limited(batch)
        self.replay.append(batch.map(lambda field: field.to(self.replay.device)))
        due = self._pace.take(batch.reward.numel(), steps, self.replay.can_be_drawn)
        lr = config.lr * config.remaining(progress)
        shape = (2, self._batch_size, self._agent.num_actions)
        critics: list[Tensor] = [*self._agent.model.critics.parameters()]
        for _ in range(due):
            drawn = self.replay.draw_uniformly(self._batch_size, self._generator)
            transitions = sent(self.replay.gather(*drawn), self._device)
            noise = torch.randn(shape, generator=self._noise, device=self._device)
            self._update.run(self._evaluate, lr, transitions, noise)
            with torch.no_grad():
                torch._foreach_lerp_(list(self._target.parameters()), critics, config.target_rate)
        self._agent.is_random = self._agent.is_random and not self._pace.has_begun
        return {**self._update.take(), **self._pace.metrics(self._device)} if due else {}

    def _evaluate(
        self, batch: Transitions, noise: Tensor
    ) -> tuple[Tensor, dict[str, Tensor], Tensor, None]:
        loss, metrics = self._losses(batch, noise)
        return loss, metrics, batch.valid.sum(), None

    def _compute_losses(
        self, batch: Transitions, noise: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return what each sample adds to the losses, ``[N]``, and metrics.

        ``noise``: ``[2, N, D]`` standard normal numbers, for actions behind and in front.
        """
        is_short = self.config.precision == "bfloat16"
        with torch.autocast(self._device.type, torch.bfloat16, enabled=is_short):
            model, valid = self._agent.model, batch.valid
            seen, behind = flat(batch.observation), flat(batch.next_observation)
            temperature = model.log_temperature.detach().exp()
            with torch.no_grad():
                next_action, next_log_prob = squash(*self._gaussian(behind), noise[0])
                next_value = self._target(torch.cat((behind, next_action), 1)).float()
                target = soft_target(
                    batch.reward, batch.discount, next_value, next_log_prob, temperature
                )
            value = model.critics(torch.cat((seen, self._agent.unit(batch.action)), 1)).float()
            action, log_prob = squash(*self._gaussian(seen), noise[1])
            constants = {name: each.detach() for name, each in model.critics.named_parameters()}
            pairs = torch.cat((seen, action), 1)
            judged = functional_call(model.critics, constants, (pairs,)).float().amin(0)
        actor = temperature * log_prob - judged  # equation 7
        about = torch.zeros_like(actor)
        if self.config.temperature is None:  # equation 18, by the logarithm
            about = -model.log_temperature * (log_prob.detach() + self._target_entropy)
        losses = (critic_loss(value, target), actor, about)
        loss = SoftLoss(*(masked_shares(each, valid) for each in (sum(losses), *losses)))  # type: ignore[arg-type]
        metrics = sums(loss._asdict()) | {
            "q_value": masked_shares(value.detach().mean(0), valid).sum(),
            "entropy": -masked_shares(log_prob.detach(), valid).sum(),
            "temperature": temperature,
        }
        return loss.total, metrics

    def _gaussian(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self._agent.model.gaussian(observation)
        return mean.float(), log_std.float()
