"""Q-learning from a replay memory: DQN and what became of it, by options of one learner.

Every algorithm here has the same skeleton: prepare (replay insert and sample), loss per sample,
`Update.step`.

DQN (Mnih et al. 2015), double (van Hasselt et al. 2016), dueling (Wang et al. 2016), prioritized
(Schaul et al. 2016), n-step, categorical (Bellemare et al. 2017), and all of them with epsilon
instead of noise: epsilon-Rainbow (Stooke and Abbeel 2018, arXiv:1803.02811, after Hessel et al.
2018).

A return that meets a lost worker is not learned from.

docs/algorithms/dqn.md lists deviations from the paper (arXiv:1803.02811) and its code.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from accel_rl.agents import AnyAgent, EpsilonGreedyAgent, RolloutTensors
from accel_rl.agents.masks import masked, split_mask
from accel_rl.algos.generator import restore
from accel_rl.algos.learner_config import name_of, require
from accel_rl.algos.q_learning import (
    QLoss,
    best_actions,
    categorical_loss,
    evaluate_q,
    huber_loss,
    importance_weights,
    linear_epsilon,
    make_q_agent,
    project,
    q_target,
)
from accel_rl.algos.replay import Priorities, Replay, ReplaySpec, Transitions
from accel_rl.algos.replay_config import PACE_METRICS, Pace, ReplayConfig, send, sent
from accel_rl.algos.task import Network, RunOptions, Task
from accel_rl.algos.update import Update, masked_mean, masked_shares
from accel_rl.capture import Compiled
from accel_rl.models import QModel
from accel_rl.parallel import ALONE, Adam, Exchange, FlatParameters, Ranks, RMSProp, Rule
from accel_rl.settings import option, when


def _has_atoms(run: Any) -> str | Literal[False]:
    return run.learner.num_atoms > 1 and "learner.num_atoms is above 1"


@dataclass(frozen=True, kw_only=True)
class DQNConfig(ReplayConfig):
    """DQN's settings; the others' differ by options. Steps are those of all environments together.

    The defaults are those of arXiv:1803.02811 and the code published with it, at batch size 32.

    Raises:
        ValueError: a value is out of range, or options do not fit each other.
    """

    # 0.03 and 0.13 were saved in two comparisons, benchmarks/results/training_gate_2cores.json.
    compiled: ClassVar = Compiled(seconds=83.0, share=0.08, per_million=8700.0)
    batches = ReplayConfig.batches  # here, too, since a class says for itself that it divides

    lr: float = option(2.5e-4, common=True)
    """learning rate"""
    n_step: int = option(1, common=True)
    """rewards in a return, before the value of what comes after"""
    double: bool = option(False, common=True)
    """the online network chooses the action that the target network values"""
    dueling: bool = option(False, common=True)
    """the network has a stream for the state's value and one for the actions' advantages"""
    num_atoms: int = 1
    """of a distribution over values; 1: values alone"""
    v_min: float = option(-10.0, idle=when("learner.num_atoms", 1))
    """value of the lowest atom"""
    v_max: float = option(10.0, idle=when("learner.num_atoms", 1))
    """value of the highest atom"""
    huber_delta: float = option(1.0, idle=_has_atoms)
    """TD errors count in full up to this; beyond, their gradient grows no more"""
    target_update_steps: int = 10_000
    """steps between two copies of the online network to the target network"""
    optimizer: Literal["rmsprop", "adam"] = "rmsprop"
    """update rule"""
    rmsprop_decay: float = option(0.95, idle=when("learner.optimizer", "adam"))
    """of the running mean of squared gradients, for each update"""
    rmsprop_eps: float = option(1e-6, idle=when("learner.optimizer", "adam"))
    """added to that mean inside the root"""
    adam_eps: float | None = option(None, idle=when("learner.optimizer", "rmsprop"))
    """added to the root of that mean; none: 0.01 / batch_size"""
    prioritized: bool = option(False, common=True)
    """steps are drawn by priority instead of uniformly"""
    priority_alpha: float = option(0.6, idle=when("learner.prioritized", False))
    """power to which priorities are raised"""
    priority_beta: float = option(0.4, idle=when("learner.prioritized", False))
    """of the importance weights, at the start"""
    priority_beta_steps: int = option(50_000_000, idle=when("learner.prioritized", False))
    """steps after which that is 1"""
    priority_default: float | None = option(None, idle=when("learner.prioritized", False))
    """priority of new steps; none: huber_delta, or 1 with num_atoms"""
    epsilon_initial: float = 1.0
    """probability of a random action at the start"""
    epsilon_final: float = option(0.1, common=True)
    """the same at the end"""
    epsilon_steps: int = option(1_000_000, common=True)
    """steps in which it falls, linearly"""
    epsilon_per_env: bool = False
    """environment i of B ends at epsilon_final ** (1 + 7 i / (B - 1)) instead, counted over all
    learners in step; a learner of a store counts its own"""
    epsilon_evaluation: float = 0.05
    """the same while evaluating"""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive = ("lr", "huber_delta", "rmsprop_eps")
        require(self, "above 0", lambda value: value > 0, *positive, "adam_eps", "priority_default")
        durations = ("target_update_steps", "priority_beta_steps", "epsilon_steps")
        require(self, "at least 1", lambda value: value >= 1, "n_step", *durations)
        require(self, "from 1 to 10,000", lambda value: 1 <= value <= 10_000, "num_atoms")
        require(self, "at least 0", lambda value: value >= 0, "priority_alpha")
        shares = ("epsilon_initial", "epsilon_final", "epsilon_evaluation", "priority_beta")
        require(self, "from 0 to 1", lambda value: 0 <= value <= 1, *shares)
        require(self, "at least 0 and below 1", lambda value: 0 <= value < 1, "rmsprop_decay")
        if self.v_min >= self.v_max:
            raise ValueError(f"v_min={self.v_min} must be below v_max={self.v_max}")

    @property
    def return_steps(self) -> int:
        """Rewards in a return."""
        return self.n_step

    @property
    def new_priority(self) -> float:
        """The priority of steps that have not been learned from."""
        if self.priority_default is not None:
            return self.priority_default
        return self.huber_delta if self.num_atoms == 1 else 1.0

    @property
    def rule(self) -> Rule:
        """The update rule, for the exchange."""
        if self.optimizer == "adam":
            return Adam(eps=0.01 / self.batch_size if self.adam_eps is None else self.adam_eps)
        return RMSProp(decay=self.rmsprop_decay, eps=self.rmsprop_eps, initial=0.0)

    def make_agent(self, network: Network) -> EpsilonGreedyAgent:
        """Return an agent that takes the best action or, now and then, any."""
        support = None
        if self.num_atoms > 1:
            support = torch.linspace(self.v_min, self.v_max, self.num_atoms, device=network.device)
        name, epsilon = name_of(self), self.epsilon_initial
        return make_q_agent(name, network, epsilon, support, is_dueling=self.dueling)

    def evaluating(self, agent: AnyAgent) -> EpsilonGreedyAgent:
        """Return an agent of the same network with the epsilon of evaluations."""
        assert isinstance(agent, EpsilonGreedyAgent)
        return agent.evaluating(self.epsilon_evaluation)

    def make_learner(self, agent: AnyAgent, exchange: Exchange, task: Task) -> DQN:
        """Return the learner of ``agent``, of `make_agent`, with a replay.

        Raises:
            ValueError: The replay does not fit these rollouts, or the memory of its device.
        """
        assert isinstance(agent, EpsilonGreedyAgent)
        return DQN(agent, self, exchange, self.replay_spec(task), task.seed, task.ranks)

    def check_run(self, run: RunOptions) -> None:
        """Check that the run learns, and draws each step as often as ``training_intensity`` says.

        Raises:
            ValueError: It does not.
        """
        super().check_run(run)
        if self.prioritized and run.sampler.reset_policy == "wait":
            raise ValueError(
                "reset_policy=wait leaves steps out, which prioritized=true never draws, so that "
                "the others are used more often than training_intensity says; use "
                "reset_policy=immediate"
            )

    def final_epsilons(self, envs: range, num_envs: int) -> list[float]:
        """What epsilon falls to: one for all, or one for each of ``envs`` among ``num_envs``."""
        if not self.epsilon_per_env:
            return [self.epsilon_final]
        powers = [1 + 7 * i / max(1, num_envs - 1) for i in envs]
        return [self.epsilon_final**power for power in powers]

    def beta(self, steps: int) -> float:
        """Power of the importance weights after ``steps`` steps."""
        progress = min(1.0, steps / self.priority_beta_steps)
        return self.priority_beta + progress * (1 - self.priority_beta)


METRICS = ("loss", "q_value", "priority", "epsilon", *PACE_METRICS)


class DQN:
    """The Q-learning learner.

    ``exchange`` holds the flat parameters of ``agent.model`` and applies the gradients. ``seed``:
    of the draws from the replay. ``ranks``: which of a run's learners it is, whose steps count
    together.

    Raises:
        ValueError: the replay does not fit the memory of its device, or options do not fit.
    """

    behaviour = None

    def __init__(
        self,
        agent: EpsilonGreedyAgent,
        config: DQNConfig,
        exchange: Exchange,
        replay_spec: ReplaySpec,
        seed: int,
        ranks: Ranks = ALONE,
    ) -> None:
        self.config = config
        self._agent = agent
        self._exchange = exchange
        self._batch_size = config.batch_size // exchange.num_sharing
        self._device = exchange.parameters.parameter.device
        on = config.where_replay_lies(replay_spec, self._device, ranks.size)
        self._target_model = copy.deepcopy(agent.model).requires_grad_(False)
        self._target = FlatParameters(self._target_model)
        self.replay = Replay(replay_spec, on, ranks.size, ranks.local_size)
        self._priorities: Priorities | None = None
        if config.prioritized:
            self._priorities = Priorities(self.replay, config.priority_alpha, config.new_priority)
        self._generator = torch.Generator(on).manual_seed(seed)
        B, num_sharing = replay_spec.num_envs, exchange.num_sharing
        begin = ranks.rank % num_sharing * B  # 0 in a store
        finals = config.final_epsilons(range(begin, begin + B), num_sharing * B)
        self._final_epsilon = torch.tensor(finals, device=self._device)
        self._pace = Pace(config, ranks.size, num_sharing)
        self._losses = agent.capture(self._compute_losses)
        self._update = Update(config, exchange)
        self.metric_names = (*METRICS, *self._update.names)
        self._set_epsilon()

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint holds beside the exchange's."""
        state = {
            "target": self._target.to_named(self._target.parameter),
            "generator": self._generator.get_state(),
            **self._pace.get_state(),
            **self._update.get_state(),
        }
        if self.config.save_replay:
            state["replay"] = self.replay.get_state()
            if self._priorities is not None:
                state["priorities"] = self._priorities.get_state()
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Without a replay in it, learning waits until ``min_steps`` more steps were taken."""
        self._target.from_named_(self._target.parameter, state["target"])
        if "generator" in state:
            restore(self._generator, state["generator"])
        self._update.set_state(state)
        if "replay" in state:
            self.replay.set_state(state["replay"])
            if self._priorities is not None:
                self._priorities.set_state(state["priorities"])
        self._pace.set_state(state, has_replay=self.replay.num_stored > 0)
        self._set_epsilon()

    def update(
        self, batch: RolloutTensors, progress: float, steps: int | None = None
    ) -> dict[str, Tensor]:
        """Store ``batch``, and as many optimizer steps as its steps call for.

        ``progress`` in [0, 1] is for the schedule of the learning rate. ``steps``: taken by all
        learners so far, this batch's included; by those the other schedules go. None: there is no
        other learner. Returns metrics, means over the optimizer steps, as 0-d tensors on the
        learner's device, without waiting for it; nothing where there was no such step.
        """
        batch = self.config.limited(batch)
        self.replay.append(batch.map(lambda field: field.to(self.replay.device)))
        if self._priorities is not None:
            self._priorities.follow()
        config, lr = self.config, self.config.lr * self.config.remaining(progress)
        before = self._pace.steps
        num_updates = self._pace.take(batch.reward.numel(), steps, self.replay.can_be_drawn)
        for _ in range(num_updates):
            step, env, weight = self._draw()
            drawn = sent(self.replay.gather(step, env), self._device)
            loss, priority, metrics = self._losses(drawn, weight)
            self._update.step(loss, metrics, lr, drawn.valid.sum())
            if self._priorities is not None:
                priority = priority.masked_fill(~drawn.valid, 0.0)  # a final one may be gone
                self._priorities.update(step, env, priority.to(self.replay.device))
        if self._pace.steps // config.target_update_steps > before // config.target_update_steps:
            self._target.parameter.copy_(self._exchange.parameters.parameter)
        self._set_epsilon()
        if num_updates == 0:
            return {}
        return {
            **self._update.take(),
            "epsilon": self._agent.epsilon.mean(),
            **self._pace.rates(self._device),
        }

    def _draw(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the steps and environments of a batch, and importance weights, ``[N]`` each."""
        if self._priorities is None:
            return *self.replay.draw_uniformly(self._batch_size, self._generator), None
        step, env, probability = self._priorities.draw(self._batch_size, self._generator)
        least = -self._exchange.maximum(-probability.min())
        beta = self.config.beta(self._pace.steps)
        return step, env, send(importance_weights(probability, least, beta), self._device)

    def _compute_losses(
        self, batch: Transitions, weight: Tensor | None
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return what each sample adds to the loss, priorities, ``[N]`` both, and metrics."""
        observation, mask = split_mask(batch.observation)
        output = self._evaluate(self._agent.model, observation)
        each = self._loss(output, batch)
        loss = masked_shares(each.loss if weight is None else weight * each.loss, batch.valid)
        q_value = self._agent.q_values(output.detach())
        metrics = {
            "loss": loss.detach().sum(),
            "q_value": masked_mean(masked(q_value, mask).amax(1), batch.valid),
            "priority": masked_mean(each.priority, batch.valid),
        }
        return loss, each.priority, metrics

    def _loss(self, output: Tensor, batch: Transitions) -> QLoss:
        agent, reward, discount = self._agent, batch.reward, batch.discount
        next_observation, mask = split_mask(batch.next_observation)
        with torch.no_grad():
            target_output = self._evaluate(self._target_model, next_observation)
            choosing = target_output
            if self.config.double:
                choosing = self._evaluate(agent.model, next_observation)
            action_t = best_actions(masked(agent.q_values(choosing), mask))
            if mask is not None:  # behind an observation that allows nothing comes nothing
                discount = discount * mask.ne(0).any(1)
        if agent.support is None:
            target = q_target(reward, discount, agent.q_values(target_output), action_t)
            return huber_loss(agent.q_values(output), batch.action, target, self.config.huber_delta)
        rows = torch.arange(len(action_t), device=action_t.device)
        probability_t = target_output[rows, action_t].softmax(1)
        target = project(reward, discount, probability_t, agent.support)
        return categorical_loss(output, batch.action, target)

    def _evaluate(self, model: QModel, observation: Tensor) -> Tensor:
        """``[N, A, K]`` float32."""
        return evaluate_q(model, observation, self.config.precision)

    def _set_epsilon(self) -> None:
        config = self.config
        progress = min(1.0, self._pace.steps / config.epsilon_steps)
        final = self._final_epsilon
        self._agent.epsilon = linear_epsilon(config.epsilon_initial, final, progress)
