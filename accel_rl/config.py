"""What a training run is told: `TrainConfig`, and the presets that ``algo=NAME`` chooses from.

Presets are functions that return a config; the command line overrides single options of it
(`accel_rl.training.command_line`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from accel_rl.algos import A2CConfig, ActorCriticConfig, PPOConfig
from accel_rl.envs import AtariConfig
from accel_rl.samplers import SamplerConfig


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One training run. A step is one decision of one environment.

    Raises:
        ValueError: a value is out of range.
    """

    algo: str = "a2c"
    """preset that every other option starts from"""
    env: str = "pong"
    """Atari game, catch, counting, a Gymnasium id, or module:function that returns one"""
    model: str = "auto"
    """network: a3c, dqn, nature, mlp, or auto: by the shape of the observations"""
    total_steps: int = 10_000_000
    """steps of all environments together; rounded up to whole rollouts, of which those count too
    that reset_policy=wait masks"""
    schedule_steps: int | None = None
    """steps after which schedules have run to their end; none: total_steps"""
    seed: int = 0
    """of everything random: simulators, actions, initial parameters"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """where the network runs; auto: the GPU if there is one"""
    serial: bool = False
    """step all environments in this process, without workers; works on every system"""
    cpus: tuple[int, ...] = ()
    """CPUs that workers may be pinned to; empty: all that this process may use"""
    run_dir: str | None = None
    """directory for what the run leaves behind; none: runs/<env>-<algo>-<seed>-<time>"""
    resume: str | None = None
    """directory of a run to go on with, from its last checkpoint, in its own config"""
    log_interval: int = 10_000
    """steps between rows of metrics"""
    checkpoint_interval: int = 500_000
    """steps between checkpoints; one is also written at the end"""
    num_checkpoints: int = 3
    """checkpoints kept, the last ones"""
    evaluation_interval: int = 0
    """steps between evaluations on separate environments; 0: none"""
    evaluation_episodes: int = 16
    """whole games in one evaluation, each in an environment of its own"""
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    """how experience is gathered"""
    atari: AtariConfig = field(default_factory=AtariConfig)
    """the Atari protocol"""
    learner: ActorCriticConfig = field(default_factory=A2CConfig)
    """the learning algorithm"""

    def __post_init__(self) -> None:
        for name in (
            "total_steps",
            "log_interval",
            "checkpoint_interval",
            "num_checkpoints",
            "evaluation_episodes",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("seed", "evaluation_interval"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 0")
        if self.schedule_steps is not None and self.schedule_steps < self.total_steps:
            raise ValueError(
                f"schedule_steps={self.schedule_steps} is less than total_steps="
                f"{self.total_steps}: the learning rate would be at its end before the run is; "
                f"use schedule_steps={self.total_steps} or more, or a smaller total_steps"
            )

        if isinstance(self.learner, PPOConfig):
            self.learner.check_rollout(self.sampler.num_envs, self.sampler.horizon)

    @property
    def title(self) -> str:
        """What the run is called for people."""
        return f"{self.env}, {self.algo}, seed {self.seed}"

    @property
    def steps_per_iteration(self) -> int:
        """Steps of one rollout."""
        return self.sampler.num_envs * self.sampler.horizon

    @property
    def planned_steps(self) -> int:
        """``total_steps`` rounded up to whole rollouts: exactly what an undisturbed run takes."""
        return -(-self.total_steps // self.steps_per_iteration) * self.steps_per_iteration

    def progress(self, steps: int) -> float:
        """How far schedules have run after ``steps`` steps, in [0, 1]."""
        return min(1.0, steps / (self.schedule_steps or self.total_steps))


_SAMPLER = SamplerConfig(
    # The paper decorrelates start states without giving a number; 2,000 random steps are several
    # games of most titles.
    decorrelation_steps=2_000,
    affinity="rotate",
    on_worker_failure="restart",
)


_A2C_SAMPLER = replace(_SAMPLER, num_envs=16, horizon=5)
PPO_BATCH = 2_048


def a2c() -> TrainConfig:
    """A2C as in Stooke and Abbeel 2018 (arXiv:1803.02811)

    16 simulators, horizon 5, A3C-Net; the learning rate grows with the square root of num_envs
    (section 5.1). 25 M steps is the length of the paper's policy-gradient runs (table 1).
    """
    return TrainConfig(
        algo="a2c",
        total_steps=25_000_000,
        sampler=_A2C_SAMPLER,
    )


def a2c_baselines() -> TrainConfig:
    """A2C with the numbers of OpenAI's baselines, for comparison with its published curves

    Their defaults: 84x84 images, the network of Mnih et al. 2015, TensorFlow's RMSProp (epsilon
    inside the root, accumulator from 1), learning rate falling to 0. The published curves
    fall over 10 M steps, so a shorter run here follows their first part. Start states are
    decorrelated as in our other presets, theirs are not.
    """
    return TrainConfig(
        algo="a2c_baselines",
        model="nature",
        total_steps=10_000_000,
        schedule_steps=10_000_000,
        sampler=_A2C_SAMPLER,
        atari=AtariConfig(observation_size="84x84"),
        learner=A2CConfig(
            lr=7e-4,
            lr_schedule="linear",
            value_coefficient=0.5,
            entropy_coefficient=0.01,
            max_gradient_norm=0.5,
            rmsprop_decay=0.99,
            rmsprop_eps=1e-5,
            rmsprop_initial=1.0,
        ),
    )


def ppo(num_envs: int = 8) -> TrainConfig:
    """PPO as in Stooke and Abbeel 2018 (arXiv:1803.02811)

    8 simulators x horizon 256: 2,048 steps in 4 minibatches, for 4 epochs; A3C-Net. More simulators
    have a shorter horizon, so that nothing else changes (section 5.2). 25 M steps is the length of
    the paper's policy-gradient runs (table 1).

    Raises:
        ValueError: ``num_envs`` does not divide 2,048.
    """
    if num_envs < 1 or PPO_BATCH % num_envs:
        raise ValueError(
            f"num_envs={num_envs} does not divide PPO's {PPO_BATCH} steps of one rollout; use a "
            f"power of two up to {PPO_BATCH}, or give horizon as well"
        )
    return TrainConfig(
        algo="ppo",
        total_steps=25_000_000,
        sampler=replace(_SAMPLER, num_envs=num_envs, horizon=PPO_BATCH // num_envs),
        learner=PPOConfig(),
    )


def ppo_baselines() -> TrainConfig:
    """PPO with the numbers of OpenAI's baselines, for comparison with its published curves

    Their defaults: 8 simulators x horizon 128, 4 minibatches, 4 epochs, 84x84 images, the network
    of Mnih et al. 2015, normalised advantages, clipped values, learning rate and clip range falling
    to 0 over 10 M steps; a shorter run here follows the first part. Start states are decorrelated
    as in our other presets, theirs are not.
    """
    return TrainConfig(
        algo="ppo_baselines",
        model="nature",
        total_steps=10_000_000,
        schedule_steps=10_000_000,
        sampler=replace(_SAMPLER, num_envs=8, horizon=128),
        atari=AtariConfig(observation_size="84x84"),
        learner=PPOConfig(
            lr=2.5e-4,
            value_coefficient=0.25,  # theirs is 0.5, of half the square
            max_gradient_norm=0.5,
            normalize_advantage=True,
            minibatch_size=256,
            clip_range=0.1,
            clip_value=True,
        ),
    )


PRESETS: dict[str, Callable[..., TrainConfig]] = {
    "a2c": a2c,
    "a2c_baselines": a2c_baselines,
    "ppo": ppo,
    "ppo_baselines": ppo_baselines,
}
"""those that take ``num_envs`` follow their paper's rule for scaling"""
