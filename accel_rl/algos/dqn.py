"""Q-learning from a replay memory: DQN and what became of it, by options of one learner.

DQN (Mnih et al. 2015), double (van Hasselt et al. 2016), dueling (Wang et al. 2016), prioritized
(Schaul et al. 2016), n-step, categorical (Bellemare et al. 2017), and all of them with epsilon
instead of noise: epsilon-Rainbow (Stooke and Abbeel 2018, arXiv:1803.02811, after Hessel et al.
2018). Quantiles, fixed or implicit (Dabney et al. 2017 and 2018), noisy layers (Fortunato et al.
2017) and Munchausen targets (Vieillard et al. 2020) make it BTR (Clark et al. 2024).

With a memory, R2D2 (Kapturowski et al. 2019): the replay draws sequences, and everything else is
the same for each of their steps.

A return that meets a lost worker is not learned from.

docs/algorithms/dqn.md lists deviations from the paper (arXiv:1803.02811) and its code.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from accel_rl.agents import Agent, QAgent, RolloutTensors
from accel_rl.agents.distributions import masked
from accel_rl.algos.learner import name_of
from accel_rl.algos.optimizer import shares, sums
from accel_rl.algos.q_learning import (
    QOutputs,
    importance_weights,
    linear_epsilon,
    make_q_agent,
    sequence_outputs,
    sequence_priority,
    transition_outputs,
)
from accel_rl.algos.replay import (
    Priorities,
    ReplaySpec,
    SequenceBatch,
    SequenceSpec,
    Transitions,
    send,
)
from accel_rl.algos.replay_config import ReplayConfig
from accel_rl.algos.replay_learner import ReplayLearner
from accel_rl.algos.specs import LearnerSpec, NetworkSpec, shares_updates
from accel_rl.algos.value_distributions import Atoms, Quantiles, Values, munchausen
from accel_rl.models.q_value import num_random, with_noise
from accel_rl.options import option, require, when
from accel_rl.parallel import Adam, FlatParameters, GradientSync, RMSProp, UpdateRule


def _has_atoms(run: Any) -> str | Literal[False]:
    learner = run.learner
    has_atoms = learner.num_atoms > 1 and learner.quantiles is None
    return has_atoms and "learner.num_atoms is above 1"


def _lacks_atoms(run: Any) -> str | Literal[False]:
    quantiles = run.learner.quantiles
    one = run.learner.num_atoms == 1 and "learner.num_atoms is 1"
    return one or (quantiles is not None and f"learner.quantiles is {quantiles}")


PRIORITY_OF_LARGEST = 0.9
"""weight of the largest priority among its steps in the priority of a sequence; the mean has the
remaining weight"""
NEW_PRIORITY = 1.0
"""priority of steps that have not been learned from: the largest of a TD error"""


@dataclass(frozen=True, kw_only=True)
class DQNConfig(ReplayConfig):
    """Options of DQN and its variants, which differ in their values.

    The defaults are those of arXiv:1803.02811 and its published code, at batch size 32. Steps are
    those of all environments together.

    Raises:
        ValueError: a value is out of range, or options do not fit each other.
    """

    learns_sequences: ClassVar[bool] = True

    lr: float = option(2.5e-4, common=True)
    """Learning rate."""
    n_step: int = option(1, common=True)
    """Number of rewards in a return, before the value of the state that follows."""
    double: bool = option(False, common=True)
    """Double Q-learning: the online network chooses the action whose value the target network
    estimates."""
    dueling: bool = option(False, common=True)
    """Use a dueling network: one stream for the value of the state, one for the advantages of
    actions."""
    num_atoms: int = 1
    """Number of atoms, or quantiles, of a distribution over values. 1: values only."""
    quantiles: Literal["fixed", "implicit"] | None = option(None, idle=when("learner.num_atoms", 1))
    """Learn num_atoms quantiles instead of the weights of atoms.
    fixed: at evenly spaced levels, as in QR-DQN. implicit: at random levels that are an input of
    the network, as in IQN."""
    v_min: float = option(-10.0, idle=_lacks_atoms)
    """Value of the lowest atom. Values start at the middle of the range, which should be near 0."""
    v_max: float = option(10.0, idle=_lacks_atoms)
    """Value of the highest atom."""
    munchausen: bool = option(False, idle=_has_atoms)
    """Munchausen targets: a softmax of the target network's values is the policy.
    The logarithm of its probability of the action is added to the reward, times a factor, and the
    value of a state is that of the policy instead of the best action's."""
    noisy: bool = False
    """Use noisy layers in the streams of the network.
    The noise of actions changes with every rollout."""
    value_rescaling: bool = option(False, idle=_has_atoms)
    """Learn h(value) with h(x) = sign(x) (sqrt(|x| + 1) - 1) + 0.001 x, as in R2D2.
    Returns of any size can then be learned without clipping rewards."""
    sequence_length: int = option(16, idle=when("memory", None), common=True)
    """Steps of a sequence that are learned from.
    batch_size / sequence_length sequences are drawn at once. A sequence begins every
    sequence_length / 2 steps."""
    burn_in: int = option(8, idle=when("memory", None), common=True)
    """Steps before a sequence that only renew the stored state of the memory."""
    target_update_interval: int | None = 10_000
    """Steps between two copies of the online network to the target network.
    none: as many as have 2,500 updates."""
    optimizer: Literal["rmsprop", "adam"] = "rmsprop"
    """Update rule."""
    rmsprop_decay: float = option(0.95, idle=when("learner.optimizer", "adam"))
    """Decay of the running mean of squared gradients in each update."""
    rmsprop_eps: float = option(1e-6, idle=when("learner.optimizer", "adam"))
    """Number that RMSProp adds to the running mean inside the root."""
    adam_eps: float | None = option(None, idle=when("learner.optimizer", "rmsprop"))
    """Number that Adam adds to the root of the running mean. none: 0.01 / batch_size."""
    prioritized: bool = option(False, common=True)
    """Draw steps by priority instead of uniformly."""
    priority_alpha: float = option(0.6, idle=when("learner.prioritized", False))
    """Power to which priorities are raised."""
    priority_beta: float = option(0.4, idle=when("learner.prioritized", False))
    """Exponent of the importance weights at the start."""
    priority_beta_steps: int = option(50_000_000, idle=when("learner.prioritized", False))
    """Steps after which the exponent of the importance weights reaches 1."""
    epsilon_final: float = option(0.1, common=True)
    """Probability of a random action at the end of the schedule."""
    epsilon_steps: int = option(1_000_000, common=True)
    """Steps in which epsilon falls linearly, from 1."""
    epsilon_per_env: bool = False
    """Let environment i of B end at epsilon_final ** (1 + 7 i / (B - 1)).
    Learners in step count all their environments together; with a store each learner counts its
    own."""
    epsilon_evaluation: float = 0.05
    """Probability of a random action in evaluations."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "above 0", lambda value: value > 0, "lr", "rmsprop_eps", "adam_eps")
        durations = ("target_update_interval", "priority_beta_steps", "epsilon_steps")
        lengths = ("n_step", "sequence_length")
        require(self, "at least 1", lambda value: value >= 1, *lengths, *durations)
        require(self, "from 1 to 10,000", lambda value: 1 <= value <= 10_000, "num_atoms")
        require(self, "at least 0", lambda value: value >= 0, "priority_alpha", "burn_in")
        shares = ("epsilon_final", "epsilon_evaluation", "priority_beta")
        require(self, "from 0 to 1", lambda value: 0 <= value <= 1, *shares)
        require(self, "at least 0 and below 1", lambda value: 0 <= value < 1, "rmsprop_decay")
        if self.v_min >= self.v_max:
            raise ValueError(f"v_min={self.v_min} must be below v_max={self.v_max}")
        for name in ("value_rescaling", "munchausen"):
            if getattr(self, name) and self.num_atoms > 1 and self.quantiles is None:
                raise ValueError(
                    f"{name}=true is for values, and num_atoms={self.num_atoms} learns "
                    f"distributions on atoms; use num_atoms=1 or quantiles, or leave out {name}"
                )
        if self.burn_in > self.sequence_length:
            raise ValueError(
                f"burn_in={self.burn_in} is longer than sequence_length={self.sequence_length}, so "
                f"that most of the computation would be for nothing; use a smaller burn_in or "
                f"longer sequences"
            )

    @property
    def target_steps(self) -> int:
        """Steps between two copies to the target network."""
        if self.target_update_interval is None:
            return ceil(2_500 * self.batch_size / self.training_intensity)
        return self.target_update_interval

    @property
    def return_steps(self) -> int:
        """Rewards in a return."""
        return self.n_step

    @property
    def rule(self) -> UpdateRule:
        """The update rule."""
        if self.optimizer == "adam":
            return Adam(eps=0.01 / self.batch_size if self.adam_eps is None else self.adam_eps)
        return RMSProp(decay=self.rmsprop_decay, eps=self.rmsprop_eps, initial=0.0)

    def make_agent(self, network: NetworkSpec) -> QAgent:
        """Return an agent that takes the best action or, now and then, any."""
        support = None
        if self.num_atoms > 1 and self.quantiles is None:
            support = torch.linspace(self.v_min, self.v_max, self.num_atoms, device=network.device)
        return make_q_agent(
            name_of(self),
            network,
            support,
            num_atoms=self.num_atoms,
            is_dueling=self.dueling,
            is_implicit=self.num_atoms > 1 and self.quantiles == "implicit",
            is_noisy=self.noisy,
        )

    def evaluating(self, agent: Any) -> Any:
        """Return an agent of the same network with the epsilon of evaluations."""
        return agent.evaluating(self.epsilon_evaluation)

    def make_learner(self, agent: Any, sync: GradientSync, task: LearnerSpec) -> DQN:
        """Return the learner of ``agent``, of `make_agent`, with a replay.

        Raises:
            ValueError: The replay does not fit these rollouts, or the memory of its device.
        """
        return DQN(agent, self, sync, task)

    def replay_spec(self, task: LearnerSpec, agent: Agent) -> ReplaySpec:
        """Return what the replay of one learner holds: sequences if the agent has a memory."""
        spec = super().replay_spec(task, agent)
        if not agent.remembers:
            return spec
        sequences = SequenceSpec(
            burn_in=self.burn_in,
            length=self.sequence_length,
            state_size=agent.model.state_size,
            previous=agent.model.previous,
        )
        return replace(spec, sequences=sequences)

    @property
    def sequence_steps(self) -> int:
        """Number of steps that a recurrent network goes through in one update."""
        return self.burn_in + self.sequence_length + self.n_step

    def check_run(self, run: Any) -> None:
        """Check that the run learns, and draws each step as often as ``training_intensity`` says.

        Raises:
            ValueError: It does not.
        """
        super().check_run(run)
        if run.memory is not None:
            self._check_sequences(run.num_learners if shares_updates(run) else 1)
        if self.prioritized and run.sampler.reset_policy == "wait":
            raise ValueError(
                "reset_policy=wait leaves steps out, which prioritized=true never draws, so that "
                "the others are used more often than training_intensity says; use "
                "reset_policy=immediate"
            )

    def _check_sequences(self, num_sharing: int) -> None:
        unit = self.sequence_length * num_sharing
        if self.batch_size % unit == 0:
            return
        learners = f" for each of {num_sharing} learners" if num_sharing > 1 else ""
        raise ValueError(
            f"batch_size={self.batch_size} must be whole sequences of sequence_length="
            f"{self.sequence_length} steps{learners} for a memory; use batch_size="
            f"{-(-self.batch_size // unit) * unit}, or another sequence_length"
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


class DQN(ReplayLearner):
    """The learner of DQN and its variants; `ReplayLearner` has the arguments."""

    agent: QAgent
    config: DQNConfig
    metrics = ("loss", "q_value", "priority", "epsilon")

    def __init__(
        self, agent: QAgent, config: DQNConfig, sync: GradientSync, task: LearnerSpec
    ) -> None:
        super().__init__(agent, config, sync, task)
        self._num_drawn = self.batch_size
        if agent.remembers:
            self._num_drawn //= config.sequence_length
        self._target_model: Any = copy.deepcopy(agent.model).requires_grad_(False)
        self._target = FlatParameters(self._target_model)
        self._is_random = num_random(agent.model, 1) > 0
        if num := num_random(agent.model):
            agent.noise = torch.zeros(num, device=self.device)
        self._priorities: Priorities | None = None
        if config.prioritized:
            self._priorities = Priorities(self.replay, config.priority_alpha, NEW_PRIORITY)
        B, num_sharing = task.num_envs, sync.num_sharing
        begin = task.ranks.rank % num_sharing * B  # 0 in a store
        finals = config.final_epsilons(range(begin, begin + B), num_sharing * B)
        self._final_epsilon = torch.tensor(finals)  # on the host, like the next
        self._epsilon, self._mean_epsilon = torch.empty(0), torch.tensor(0.0)
        self.adjust()

    def get_state(self) -> dict[str, Any]:
        """Return what a checkpoint holds besides parameters and the state of their rule."""
        state = {"target": self._target.to_named(self._target.parameter), **super().get_state()}
        if self.config.save_replay and self._priorities is not None:
            state["priorities"] = self._priorities.get_state()
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue. Without a replay in ``state``, it first waits ``learning_starts`` more steps.

        Args:
            state: the value that `get_state` returned.
        """
        super().set_state(state)
        self._target.from_named_(self._target.parameter, state["target"])
        if "replay" in state and self._priorities is not None:
            self._priorities.set_state(state["priorities"])
        self.adjust()

    def store(self, batch: RolloutTensors) -> None:
        """Add a rollout, ``[T, B]`` on the device of the replay."""
        super().store(batch)
        if self._priorities is not None:
            self._priorities.follow()

    def learn(self, progress: float) -> None:
        """Make an optimizer step, and give what was drawn its new priorities."""
        if self._priorities is None:
            at = self.replay.draw_uniformly(self._num_drawn, self._generator)
            batch, weight = self.gathered(*at, stays=True), None
        else:
            step, env, probability = self._priorities.draw(self._num_drawn, self._generator)
            at = step, env
            least = -self.sync.maximum(-probability.min())
            beta = self.config.beta(self.pace.steps)
            weight = send(importance_weights(probability, least, beta), self.device)
            batch = self.gathered(*at)
        lr = self.learning_rate(progress)
        noise: tuple[Tensor, ...] = ()
        if self._is_random:
            rows = batch.is_first.numel() if isinstance(batch, SequenceBatch) else self._num_drawn
            noise = (self.noise(2, num_random(self.agent.model, rows)),)
        priority = self.optimizer.minimize(self.loss, batch, weight, *noise, lr=lr)
        if self._priorities is not None:
            self._priorities.update(*at, priority.to(self.replay.device))

    def adjust(self) -> dict[str, Tensor]:
        """Renew the target network, epsilon, and the noise of actions, when it is time to."""
        if self.pace.has_passed(self.config.target_steps):
            self._target.parameter.copy_(self.sync.parameters.parameter)
        self._set_epsilon()
        if self.agent.noise is not None:  # after a resume the same, by its seed
            seeds = np.random.SeedSequence((self.task.seed, self.pace.steps))
            g = torch.Generator(self.device).manual_seed(int(seeds.generate_state(1)[0]))
            self.agent.noise.normal_(generator=g)
        return {"epsilon": self._mean_epsilon}

    def loss(
        self,
        batch: Transitions | SequenceBatch,
        weight: Tensor | None = None,
        noise: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """Return what each sample adds to the loss, metrics, and priorities ``[N]``.

        Args:
            batch: ``N`` transitions, or ``N`` sequences of ``L`` steps. The losses are ``[N]`` or
                ``[L, N]``.
            weight: importance weights ``[N]``, or None.
            noise: of `with_noise`, for the online network and for the target network, ``[2, R]``,
                or None.
        """
        outputs, valid = self._outputs(batch, noise), batch.valid
        goal, action = self.target(outputs, batch), batch.action.flatten()
        loss, priority = self.values.loss(outputs.online, action, goal, outputs.level)
        loss, priority = loss.view(valid.shape), priority.view(valid.shape)
        share = shares(valid, loss.dtype)
        loss = share * (loss if weight is None else weight * loss)
        q_value = self.agent.q_values(outputs.online.detach())
        best = masked(q_value, outputs.mask).amax(1).view(valid.shape)
        metrics = sums({"q_value": best, "priority": priority}, share)
        metrics["loss"] = loss.detach().sum()
        if isinstance(batch, SequenceBatch):
            priority, valid = sequence_priority(priority, valid, PRIORITY_OF_LARGEST), valid.any(0)
        if self._priorities is not None:
            priority = priority.masked_fill(~valid, 0.0)  # a final observation may be gone
        return loss, metrics, priority

    @property
    def values(self) -> Values | Atoms:
        """What the network learns of each action."""
        if self.agent.support is not None:
            return Atoms(self.agent.support)
        kind = Values if self.config.num_atoms == 1 else Quantiles
        return kind(is_rescaled=self.config.value_rescaling)

    @torch.no_grad()
    def target(self, outputs: QOutputs, batch: Transitions | SequenceBatch) -> Tensor:
        """Return what the values of ``M`` actions learn, or their distributions, ``[M, K]``.

        Args:
            outputs: outputs of the networks for the steps.
            batch: the steps from the replay.
        """
        values, before = self.values, outputs.before
        reward, discount, mask = batch.reward.flatten(), batch.discount.flatten(), outputs.next_mask
        if mask is not None:  # after an observation that allows nothing comes nothing
            discount = discount * mask.ne(0).any(1)
        if before is None:
            action_t = masked(self.agent.q_values(outputs.choosing), mask).argmax(1)
            rows = action_t.view(-1, 1, 1).expand(-1, 1, outputs.target.shape[2])
            chosen = outputs.target.gather(1, rows).squeeze(1)
            return values.target(reward, discount, values.decode(chosen))
        decoded, *q_values = map(values.decode, (outputs.target, before, outputs.choosing))
        q_value, q_value_t = (each.mean(2) for each in q_values)
        action, masks = batch.action.flatten(), (outputs.mask, mask)
        bonus, soft = munchausen(q_value, action, q_value_t, decoded, *masks)
        return values.target(reward + bonus, discount, soft)

    def _outputs(self, batch: Transitions | SequenceBatch, noise: Tensor | None) -> QOutputs:
        config, target = self.config, self._target_model
        own, behind = (None, None) if noise is None else noise.unbind()
        given: Any = self.agent, target, batch, config.precision
        more: Any = {"double": config.double, "before": config.munchausen}
        with with_noise(self.agent.model, own), with_noise(target, behind):
            if isinstance(batch, Transitions):
                return transition_outputs(*given, **more)
            return sequence_outputs(*given, burn_in=config.burn_in, **more)

    def _set_epsilon(self) -> None:
        progress = min(1.0, self.pace.steps / self.config.epsilon_steps)
        epsilon = linear_epsilon(self._final_epsilon, progress)
        if not torch.equal(epsilon, self._epsilon):
            self._epsilon, self._mean_epsilon = epsilon, epsilon.mean()
            self.agent.epsilon = send(epsilon, self.device)
