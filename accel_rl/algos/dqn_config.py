"""The settings of Q-learning, of every kind here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from accel_rl.algos.learner_config import LearnerConfig, require
from accel_rl.parallel import Adam, RMSProp, Rule


@dataclass(frozen=True, kw_only=True)
class DQNConfig(LearnerConfig):
    """DQN's settings; the others' differ by options. Steps are those of all environments together.

    The defaults are those of arXiv:1803.02811 and the code published with it, at batch size 32.

    Raises:
        ValueError: a value is out of range, or options do not fit each other.
    """

    lr: float = 2.5e-4
    """learning rate"""
    batch_size: int = 32
    """transitions in one update"""
    training_intensity: float = 8.0
    """how often each step is used, on average: updates * batch_size / steps"""
    min_steps: int = 50_000
    """steps taken before the first update"""
    n_step: int = 1
    """rewards in a return, before the value of what comes after"""
    double: bool = False
    """the online network chooses the action that the target network values"""
    dueling: bool = False
    """the network has a stream for the state's value and one for the actions' advantages"""
    num_atoms: int = 1
    """of a distribution over values; 1: values alone"""
    v_min: float = -10.0
    """value of the lowest atom"""
    v_max: float = 10.0
    """value of the highest atom"""
    huber_delta: float = 1.0
    """TD errors count in full up to this; beyond, their gradient grows no more"""
    target_update_steps: int = 10_000
    """steps between two copies of the online network to the target network"""
    optimizer: Literal["rmsprop", "adam"] = "rmsprop"
    """update rule"""
    rmsprop_decay: float = 0.95
    """of the running mean of squared gradients, for each update"""
    rmsprop_eps: float = 1e-6
    """added to that mean inside the root"""
    adam_eps: float | None = None
    """added to the root of that mean; none: 0.01 / batch_size"""
    replay_size: int = 1_000_000
    """steps that the replay holds, rounded up to a multiple of num_envs"""
    replay_device: Literal["auto", "cpu", "cuda"] = "auto"
    """where the replay lies; auto: where the network runs"""
    save_replay: bool = False
    """checkpoints hold the replay, which takes its size in memory once more while one is written;
    otherwise a resumed run fills it anew"""
    prioritized: bool = False
    """steps are drawn by priority instead of uniformly"""
    priority_alpha: float = 0.6
    """power to which priorities are raised"""
    priority_beta: float = 0.4
    """of the importance weights, at the start"""
    priority_beta_steps: int = 50_000_000
    """steps after which that is 1"""
    priority_default: float | None = None
    """priority of new steps; none: huber_delta, or 1 with num_atoms"""
    epsilon_initial: float = 1.0
    """probability of a random action at the start"""
    epsilon_final: float = 0.1
    """the same at the end"""
    epsilon_steps: int = 1_000_000
    """steps in which it falls, linearly"""
    epsilon_per_env: bool = False
    """environment i of B ends at epsilon_final ** (1 + 7 i / (B - 1)) instead, counted over all
    learners in step; a learner of a store counts its own"""
    epsilon_evaluation: float = 0.05
    """the same while evaluating"""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive = ("lr", "training_intensity", "huber_delta", "rmsprop_eps")
        require(self, "above 0", lambda value: value > 0, *positive, "adam_eps", "priority_default")
        counts = ("batch_size", "n_step", "replay_size")
        durations = ("target_update_steps", "priority_beta_steps", "epsilon_steps")
        require(self, "at least 1", lambda value: value >= 1, *counts, *durations)
        require(self, "from 1 to 10,000", lambda value: 1 <= value <= 10_000, "num_atoms")
        require(self, "at least 0", lambda value: value >= 0, "min_steps", "priority_alpha")
        shares = ("epsilon_initial", "epsilon_final", "epsilon_evaluation", "priority_beta")
        require(self, "from 0 to 1", lambda value: 0 <= value <= 1, *shares)
        require(self, "at least 0 and below 1", lambda value: 0 <= value < 1, "rmsprop_decay")
        if self.v_min >= self.v_max:
            raise ValueError(f"v_min={self.v_min} must be below v_max={self.v_max}")
        if self.min_steps > self.replay_size:
            raise ValueError(
                f"min_steps={self.min_steps} is more than the replay holds, replay_size="
                f"{self.replay_size}; use a smaller min_steps or a larger replay"
            )
        self.check_halves("batch_size", self.batch_size)

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
