"""What a training run is told: `TrainConfig`. Its presets are in `accel_rl.presets`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from accel_rl.algos import A2CConfig, LearnerConfig
from accel_rl.envs import (
    AtariConfig,
    EnvFactory,
    EnvSpec,
    is_atari_game,
    make_env_factory,
    probe_spec,
)
from accel_rl.envs.clipped import clipped
from accel_rl.options import check_settings, option, require, when
from accel_rl.parallel import Adam, ParallelConfig
from accel_rl.samplers import SamplerConfig
from accel_rl.trackers import TENSORBOARD, check_trackers

_GROUPS = {"parallel": ParallelConfig, "sampler": SamplerConfig, "atari": AtariConfig}


def _is_no_atari(run: TrainConfig) -> str | Literal[False]:
    return not is_atari_game(run.env) and f"env={run.env} is no Atari game"


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The options of one training run. A step is one decision of one environment.

    Raises:
        ValueError: a value is out of range.
    """

    algo: str = option("a2c", common=True)
    """Preset that all other options start from, or module:function that returns a preset of your
    own."""
    env: str = option("pong", common=True)
    """Environment: an Atari game, minatar/GAME, catch, a Gymnasium id, or
    module:function."""
    info_keys: tuple[str, ...] = option((), "watching")
    """Numbers to keep from the info of each step of a Gymnasium environment.
    Their means over the last steps of episodes become metrics, named episode_info_<key>_mean."""
    model: str = option("auto", common=True)
    """Network: auto, a3c, dqn, nature, nips, impala, btr, minatar, mlp, pqn, paac_nature, or
    module:function. auto chooses by the shape of observations; for images it is the preset's own
    network. paac_nature is nature with PAAC's initial weights, and pqn is for Q-learning, with
    layer normalization. ga3c_large_stride4 (or 3, 2, 1) are GA3C's larger networks, for
    comparing speeds."""
    memory: Literal["lstm", "gru"] | None = option(None, common=True)
    """Memory before the heads of the network, as wide as its hidden layer: lstm, gru, or none.
    The state of gated recurrent units has half the size of an LSTM's. With a2c, paac, a3c, impala,
    ppo, appo and pqn learning goes back horizon steps; dqn and its variants draw sequences of
    sequence_length steps from the replay."""
    previous_action_reward: bool = option(False, idle=when("memory", None))
    """Feed the previous action and its reward to the memory as well."""
    total_steps: int = option(10_000_000, "course", common=True)
    """Length of the run: steps of all environments of all learners.
    It is rounded up to whole rollouts, including steps that reset_policy=wait masks. With
    sync=store each learner finishes its last rollout."""
    schedule_steps: int | None = option(None, "course")
    """Steps after which schedules reach their end. none: total_steps."""
    max_minutes: float | None = option(None, "course", common=True)
    """Minutes after which the run stops and saves, so that resume can continue it.
    none: no limit."""
    stop_at_score: float | None = option(None, "course", common=True)
    """Score at which the run stops and saves: the mean of the last 100 games, with 20 or more.
    none: the run takes all its steps."""
    seed: int = option(0, "identity", common=True)
    """Seed of everything random: simulators, actions and initial parameters."""
    device: Literal["auto", "cpu", "cuda"] = option("auto", "engine", common=True)
    """Device of the network. auto: the GPU if there is one."""
    cuda_graphs: Literal["auto", "on", "off"] = option("auto", "engine")
    """Record acting and updates as CUDA graphs, which a GPU starts at once.
    auto: on a GPU, what can be recorded. on: what cannot be recorded is an error."""
    gpus: int | None = option(None, "engine", common=True)
    """Number of GPUs of this machine to use.
    Each gets a learner if learners is not given. none: one GPU if there is one. 0: no GPU."""
    learners: int | None = option(None, "course", common=True)
    """Number of processes that learn together, each with its own simulators.
    none: as many as gpus, or one. Learners share GPUs if there are fewer GPUs."""
    overlap: bool = option(False, common=True)
    """Collect the next rollout while the learner works on the last one.
    The policy is then one iteration behind. This helps with a GPU, or if simulators leave cores
    idle."""
    run_dir: str | None = option(None, "identity", common=True)
    """Directory for the files of the run. none: runs/<env>-<algo>-<seed>-<time>."""
    resume: str | None = option(None, "identity", common=True)
    """Directory of a run to continue from its last checkpoint, with its own configuration."""
    init: str | None = option(None, common=True)
    """Directory of a run, or a checkpoint, whose trained parameters this run starts from.
    Parameters are found by name and shape. The log names those that do not fit, such as the last
    layer for another number of actions."""
    trust: bool = option(False, "identity")
    """Allow code of other people.
    With resume or config, it imports module:function from their options and restores simulators
    from their checkpoints. Your own runs need no trust."""
    tracker: tuple[str, ...] = option((TENSORBOARD,), "watching", common=True)
    """Where to send the rows of metrics besides metrics.csv.
    Several of tensorboard, wandb, mlflow, and module:function that returns a tracker of your own,
    separated by commas. []: nowhere."""
    log_interval: int | None = option(None, "watching", common=True)
    """Steps between two rows of metrics. none: 10,000, or 75 * num_envs if that is larger."""
    checkpoint_interval: int | None = option(None, "watching", common=True)
    """Steps between two checkpoints; one is also written at the end, and the last 3 are kept.
    none: 500,000, or 3,750 * num_envs if that is larger."""
    checkpoint_minutes: float | None = option(None, "watching", common=True)
    """Minutes of training after which a checkpoint is written as well. none: by steps alone."""
    evaluation_interval: int = option(0, "watching", common=True)
    """Steps between two evaluations on separate environments. 0 disables evaluations."""
    evaluation_steps: int = option(125_000, "watching", idle=when("evaluation_interval", 0))
    """Steps of one evaluation, over its 16 environments, which learners in step divide.
    Each game that has begun is finished. A game that takes more steps, and more than 100,000, is
    given up; Atari games are cut off after 27,000 steps, and count."""
    evaluation_episodes: int | None = option(
        None, "watching", idle=when("evaluation_interval", 0), common=True
    )
    """Number of games of one evaluation, instead of steps."""
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    """Options of several learners"""
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    """Options of sampling"""
    atari: AtariConfig = field(default_factory=AtariConfig, metadata={"idle": _is_no_atari})
    """Protocol of Atari games"""
    learner: LearnerConfig = field(default_factory=A2CConfig)
    """Options of the learning algorithm"""

    def __post_init__(self) -> None:
        check_settings(self)
        for name, kind in _GROUPS.items():
            if type(getattr(self, name)) is not kind:  # what a subclass adds would do nothing
                words = f"an instance of {kind.__name__}, and of no subclass"
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be {words}")
        if not isinstance(self.learner, LearnerConfig):
            raise ValueError(
                f"learner is {self.learner!r}; it must be an instance of a subclass of "
                f"LearnerConfig, such as A2CConfig()"
            )
        lengths = ("total_steps", "schedule_steps", "evaluation_steps", "evaluation_episodes")
        intervals = ("log_interval", "checkpoint_interval", "learners")
        require(self, "at least 1", lambda value: value >= 1, *lengths, *intervals)
        sizes = ("seed", "evaluation_interval")
        require(self, "from 0 to 2**63 - 1", lambda value: 0 <= value < 2**63, *sizes)
        require(self, "at least 0", lambda value: value >= 0, "gpus")
        require(self, "above 0", lambda value: value > 0, "max_minutes", "checkpoint_minutes")
        require(self, "a number", lambda value: value == value, "stop_at_score")
        check_trackers(self.tracker)
        if self.run_dir == "":
            raise ValueError("run_dir= names no directory; name one, or leave it out")
        if self.schedule_steps is not None and self.schedule_steps < self.total_steps:
            raise ValueError(
                f"schedule_steps={self.schedule_steps} is less than total_steps="
                f"{self.total_steps}: the schedule would be at its end before the run is; "
                f"use schedule_steps={self.total_steps} or more, or a smaller total_steps"
            )
        if self.gpus is not None and self.device not in ("auto", "cuda" if self.gpus else "cpu"):
            raise ValueError(f"gpus={self.gpus} contradicts device={self.device}; leave out one")
        self._check_ways_of_running()
        if self.memory is not None and not self.learner.learns_sequences:
            raise ValueError(
                f"memory={self.memory} cannot be learned with algo={self.algo}; leave it out, or "
                f"use a2c, paac, a3c, impala, ppo, appo, pqn, or dqn and its variants"
            )
        if self.parallel.sync_period > 1:
            rule = self.learner.rule
            if not isinstance(rule, Adam) or rule.eps_after_correction:
                raise ValueError(
                    f"sync_period={self.parallel.sync_period} needs the update rule Adam(eps=...), "
                    f"and algo={self.algo} has {rule}; use sync_period=1"
                )
        self.learner.check_run(self)

    def _check_ways_of_running(self) -> None:
        is_apart = self.num_learners > 1 and self.parallel.sync == "store"
        if self.checkpoint_minutes is not None and is_apart:
            raise ValueError(
                f"checkpoint_minutes={self.checkpoint_minutes} is for one learner or "
                f"sync=all_reduce; use checkpoint_interval with sync=store"
            )
        if self.overlap and self.parallel.pull_steps is not None:
            raise ValueError(
                f"overlap=true acts with the parameters of the rollout's start, and pull_steps="
                f"{self.parallel.pull_steps} changes them within; use pull_steps=none, or leave "
                f"out overlap"
            )
        if self.overlap and self.checkpoint_steps <= self.steps_per_iteration:
            raise ValueError(
                f"overlap=true has no effect with checkpoint_interval={self.checkpoint_steps}: "
                f"before each checkpoint all is learned from, and a rollout has "
                f"{self.steps_per_iteration} steps; use a larger checkpoint_interval"
            )
        reason = self.learner.never_recorded(self)
        if self.cuda_graphs == "on" and reason is not None:
            raise ValueError(f"cuda_graphs=on does not support {reason}; use cuda_graphs=auto")

    @property
    def num_learners(self) -> int:
        """Number of learners of the run."""
        return self.learners or self.gpus or 1

    @property
    def env_factory(self) -> EnvFactory:
        """What makes the environments as the algorithm wants them.

        Raises:
            ValueError: there is no environment of that name.
        """
        factory = make_env_factory(self.env, self.atari, self.info_keys)
        return clipped(factory) if self.learner.clips_actions else factory

    def probe_spec(self) -> EnvSpec:
        """Return what the environments are like, as one tells that is made for it.

        Raises:
            ValueError: there is none, or it cannot be made here.
        """
        return probe_spec(self.env_factory)

    @property
    def title(self) -> str:
        """What the run is called for people."""
        return f"{self.env}, {self.algo}, seed {self.seed}"

    @property
    def steps_per_iteration(self) -> int:
        """Steps of one rollout."""
        return self.sampler.num_envs * self.sampler.horizon

    @property
    def row_steps(self) -> int:
        """Steps between rows of metrics.

        By default, they grow with the number of environments, since large numbers are for machines
        that take many steps a second: each row takes all learners some milliseconds.
        """
        if self.log_interval is not None:
            return self.log_interval
        return max(10_000, 75 * self.sampler.num_envs)

    @property
    def checkpoint_steps(self) -> int:
        """Steps between checkpoints: by default, those of 50 rows by default."""
        if self.checkpoint_interval is not None:
            return self.checkpoint_interval
        return max(500_000, 3_750 * self.sampler.num_envs)

    @property
    def planned_steps(self) -> int:
        """``total_steps`` rounded up to whole rollouts: exactly what an undisturbed run takes.

        Of several learners with a store one reaches it, and each other may end a rollout after it.
        Of GA3C's, which has none, ``total_steps``; its threads look ten times a second whether they
        are reached, so there are somewhat more.
        """
        if not self.learner.in_rollouts:
            return self.total_steps
        return -(-self.total_steps // self.steps_per_iteration) * self.steps_per_iteration

    def progress(self, steps: int) -> float:
        """How far schedules have run after ``steps`` steps, in [0, 1]."""
        return min(1.0, steps / (self.schedule_steps or self.total_steps))
