"""What a training run is told: `TrainConfig`. Its presets are in `accel_rl.presets`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from accel_rl.algos import A2CConfig, LearnerConfig
from accel_rl.algos.task import remembers_nothing
from accel_rl.envs import (
    AtariConfig,
    EnvFactory,
    EnvSpec,
    is_atari_game,
    make_env_factory,
    probe_spec,
)
from accel_rl.envs.clipped import clipped
from accel_rl.parallel import Adam, ParallelConfig
from accel_rl.samplers import SamplerConfig
from accel_rl.settings import check_settings, option, when

_MOST_CAPTURED_STEPS = 32  # of a memory


_GROUPS = {"parallel": ParallelConfig, "sampler": SamplerConfig, "atari": AtariConfig}


def _cpus_are_idle(run: TrainConfig) -> str | Literal[False]:
    if run.sampler.affinity == "off":
        return "sampler.affinity is off"
    return run.serial and run.num_learners == 1 and "serial is true"  # several divide the cores


def _has_no_schedule(run: TrainConfig) -> str | Literal[False]:
    return not run.learner.has_schedule and "learner.lr_schedule is constant"


def _is_no_atari(run: TrainConfig) -> str | Literal[False]:
    return not is_atari_game(run.env) and f"env={run.env} is no Atari game"


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One training run. A step is one decision of one environment.

    Raises:
        ValueError: a value is out of range.
    """

    algo: str = option("a2c", common=True)
    """preset that every other option starts from, or module:function that returns one of your
    own"""
    env: str = option("pong", common=True)
    """Atari game, catch, counting, a Gymnasium id, or module:function that returns one"""
    info_keys: tuple[str, ...] = option((), "watching")
    """numbers to keep of what each step of a Gymnasium environment tells in its info: their means
    over last steps of episodes become metrics, as episode_info_<key>_mean"""
    model: str = option("auto", common=True)
    """network: a3c, dqn, nature, nips, impala, mlp, or auto: by the shape of the observations, for
    images the preset's own; paac_nature: nature with PAAC's initial weights; pqn: for Q-learning,
    with layer normalization; GA3C's larger ones for comparing speeds, ga3c_large_stride4 (or 3, 2,
    1: the first layer's stride); or module:function that returns one of your own"""
    lstm: bool = option(False, common=True)
    """the network remembers: an LSTM, as wide as its hidden layer, comes before the heads. With
    a2c, paac, a3c, impala, ppo, appo and pqn, which learn through whole rollouts: horizon is how
    far back; and with dqn and its variants, which draw sequences from the replay:
    sequence_length"""
    gru: bool = option(False, common=True)
    """the same with gated recurrent units, which have a state of half the size"""
    previous_action_reward: bool = option(False, idle=remembers_nothing)
    """the memory also gets the action before each observation, and its reward"""
    total_steps: int = option(10_000_000, "course", common=True)
    """steps of all environments of all learners; rounded up to whole rollouts, of which those count
    too that reset_policy=wait masks; with sync=store each learner ends the rollout that it is in"""
    schedule_steps: int | None = option(
        None,
        "course",
        idle=_has_no_schedule,
    )
    """steps after which schedules have run to their end; none: total_steps"""
    max_minutes: float | None = option(None, "course", common=True)
    """minutes after which the run ends as if it were stopped, with everything saved, so that
    resume goes on with it; none: no limit"""
    seed: int = option(0, "identity", common=True)
    """of everything random: simulators, actions, initial parameters"""
    device: Literal["auto", "cpu", "cuda"] = option("auto", "engine", common=True)
    """where the network runs; auto: the GPU if there is one"""
    capture: Literal["off", "on", "auto"] = option("off", "engine")
    """on: acting, losses and the update rule of a single learner are compiled at the start, which
    takes a minute or more, and on a GPU replayed as CUDA graphs; auto: on a GPU, where the other
    options allow it, and on a CPU, where that was measured to save more time than compiling takes.
    Off as long as it has run on no GPU"""
    gpus: int | None = option(None, "engine", common=True)
    """GPUs of this machine to use, by as many learners if learners is not given; none: one if there
    is one; 0: none"""
    learners: int | Literal["auto"] = option("auto", "course", common=True)
    """processes that learn together, each with simulators of its own. auto: as many as gpus;
    without GPUs one on each core, with serial=true, where that was measured to be faster, else 1.
    More than there are GPUs share them"""
    serial: bool = option(False, "engine", common=True)
    """step all environments in this process, without workers; works on every system"""
    cpus: tuple[int, ...] = option((), "engine", idle=_cpus_are_idle)
    """CPUs that workers and several learners may be pinned to; empty: all this process may use"""
    overlap: bool = option(False, common=True)
    """the next rollout is collected while the learner works on the last one, so its policy is one
    iteration behind: for a GPU, or more cores than simulators keep busy"""
    run_dir: str | None = option(None, "identity", common=True)
    """directory for what the run leaves behind; none: runs/<env>-<algo>-<seed>-<time>"""
    resume: str | None = option(None, "identity", common=True)
    """directory of a run to go on with, from its last checkpoint, in its own config"""
    trust: bool = option(False, "identity")
    """with resume or config: run code that the options there name as module:function, and restore
    simulators from the checkpoint, although they may be somebody else's; your own need no trust"""
    log_interval: int = option(10_000, "watching", common=True)
    """steps between rows of metrics"""
    checkpoint_interval: int = option(500_000, "watching", common=True)
    """steps between checkpoints; one is also written at the end"""
    num_checkpoints: int = option(3, "watching")
    """checkpoints kept, the last ones"""
    evaluation_interval: int = option(0, "watching", common=True)
    """steps between evaluations on separate environments; 0: none"""
    evaluation_steps: int = option(125_000, "watching", idle=when("evaluation_interval", 0))
    """steps of one evaluation, its environments together; a game that has begun is played to its
    end or cut off after 27,000"""
    evaluation_envs: int = option(16, "watching", idle=when("evaluation_interval", 0))
    """environments of an evaluation"""
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    """how several learners work together"""
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    """how experience is gathered"""
    atari: AtariConfig = field(default_factory=AtariConfig, metadata={"idle": _is_no_atari})
    """the Atari protocol"""
    learner: LearnerConfig = field(default_factory=A2CConfig)
    """the learning algorithm"""

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
        for name in (
            "total_steps",
            "log_interval",
            "checkpoint_interval",
            "num_checkpoints",
            "evaluation_steps",
            "evaluation_envs",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("seed", "evaluation_interval"):
            if not 0 <= getattr(self, name) < 2**63:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be from 0 to 2**63 - 1")
        if self.run_dir == "":
            raise ValueError("run_dir= names no directory; name one, or leave it out")
        if self.schedule_steps is not None and self.schedule_steps < 1:
            raise ValueError(f"schedule_steps is {self.schedule_steps}; it must be at least 1")
        if self.schedule_steps is not None and self.schedule_steps < self.total_steps:
            raise ValueError(
                f"schedule_steps={self.schedule_steps} is less than total_steps="
                f"{self.total_steps}: the schedule would be at its end before the run is; "
                f"use schedule_steps={self.total_steps} or more, or a smaller total_steps"
            )
        if self.gpus is not None and self.gpus < 0:
            raise ValueError(f"gpus is {self.gpus}; it must be at least 0")
        if self.learners != "auto" and self.learners < 1:
            raise ValueError(f"learners is {self.learners}; it must be at least 1, or auto")
        if self.gpus is not None and self.device not in ("auto", "cuda" if self.gpus else "cpu"):
            raise ValueError(f"gpus={self.gpus} contradicts device={self.device}; leave out one")
        self._check_ways_of_running()
        if self.lstm and self.gru:
            raise ValueError("lstm=true and gru=true contradict each other; leave out one")
        if self.has_memory and not self.learner.learns_sequences:
            raise ValueError(
                f"{self.memory}=true cannot be learned with algo={self.algo}; leave it out, or use "
                f"a2c, paac, a3c, impala, ppo, appo, pqn, or dqn and its variants"
            )
        if self.parallel.sync_period > 1 and not isinstance(self.learner.rule, Adam):
            raise ValueError(
                f"sync_period={self.parallel.sync_period} needs Adam as the update rule, and "
                f"algo={self.algo} has {type(self.learner.rule).__name__}; use sync_period=1"
            )
        self.learner.check_run(self)

    def _check_ways_of_running(self) -> None:
        if self.max_minutes is not None and not self.max_minutes > 0:
            raise ValueError(f"max_minutes is {self.max_minutes}; it must be above 0")
        if self.overlap and self.parallel.pull_steps is not None:
            raise ValueError(
                f"overlap=true acts with the parameters of the rollout's start, and pull_steps="
                f"{self.parallel.pull_steps} changes them within; use pull_steps=none, or leave "
                f"out overlap"
            )
        if self.overlap and self.checkpoint_interval <= self.steps_per_iteration:
            raise ValueError(
                f"overlap=true has no effect with checkpoint_interval={self.checkpoint_interval}: "
                f"before each checkpoint all is learned from, and a rollout has "
                f"{self.steps_per_iteration} steps; use a larger checkpoint_interval"
            )
        if self.capture == "on" and self.never_captured is not None:
            raise ValueError(
                f"capture=on cannot be had with {self.never_captured}; use capture=off"
            )

    @property
    def num_learners(self) -> int:
        """Learners in all. ``learners=auto`` counts as what it is without `choose_learners`."""
        return self.learners if self.learners != "auto" else self.gpus or 1

    @property
    def memory(self) -> str:
        """The option that gives the network a memory; empty: it has none."""
        return "lstm" if self.lstm else "gru" if self.gru else ""

    @property
    def has_memory(self) -> bool:
        """Whether the network remembers."""
        return bool(self.memory)

    @property
    def never_captured(self) -> str | None:
        """The option that does not go together with ``capture``, and why; None: there is none."""
        if reason := self.learner.never_captured(self):
            return reason
        if self.overlap:
            return "overlap=true, whose second thread has not been tried with CUDA graphs"
        if self.has_memory and self.sampler.horizon > _MOST_CAPTURED_STEPS:
            return (
                f"{self.memory}=true and horizon={self.sampler.horizon}: a sequence is compiled "
                f"step by step, minutes above {_MOST_CAPTURED_STEPS}"
            )
        return None

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
        return probe_spec(self.env_factory, self.sampler.reset_timeout_seconds)

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
