"""Where the time of a run goes, and what limits its speed."""

from __future__ import annotations

import math
from typing import NamedTuple

from accel_rl.config import TrainConfig
from accel_rl.envs import is_atari_game
from accel_rl.system.topology import cpu_info


class Reading(NamedTuple):
    """Clocks in seconds, and counts, at one moment.

    Attributes:
        wall: training time.
        waiting, inference, simulating: of the sampler.
        learning: of the learner, with what its device did later.
        evaluating: part of ``wall`` in which this learner evaluated while others went on.
        logging, saving: parts of ``wall`` for rows of metrics and for checkpoints that were due.
        core: processor time of ``learning``; 0: not measured.
        idle: of all CPUs that this process may use.
    """

    wall: float
    waiting: float
    inference: float
    simulating: float
    learning: float
    evaluating: float = 0.0
    logging: float = 0.0
    saving: float = 0.0
    core: float = 0.0
    idle: float = 0.0
    steps: int = 0
    updates: int = 0


_SHARES = ("waiting", "inference", "learning", "simulating", "logging", "saving", "core", "idle")


class TimeSplit(NamedTuple):
    """Shares of the wall time between two readings, without evaluations.

    ``waiting`` (for simulators), ``inference``, ``learning`` and ``other`` are of this process and
    add up to 1. ``simulating`` is how much of the time the simulators worked, on average, in
    their own processes. A serial sampler works in this process, where it is ``waiting``.

    On a GPU ``learning`` includes the wait for the device to finish the update, which comes where
    this process reads the first actions of the next rollout (`accel_rl.training.device_clock`).

    ``logging`` and ``saving`` are the parts of ``other`` that ``log_interval`` and
    ``checkpoint_interval`` make longer or shorter. ``core`` is the part of ``learning`` in which
    its thread had a core, or NaN; ``idle`` the number of CPUs that nobody used.
    """

    waiting: float
    inference: float
    learning: float
    other: float
    simulating: float
    logging: float = 0.0
    saving: float = 0.0
    core: float = math.nan
    idle: float = 0.0

    @property
    def is_disturbed(self) -> bool:
        """Whether other processes took the core of learning for a fair part of its time."""
        return self.learning > 0.1 and self.core < 0.75

    @classmethod
    def between(cls, before: Reading, after: Reading) -> TimeSplit:
        wall = after.wall - before.wall - (after.evaluating - before.evaluating)
        shares = {
            name: (getattr(after, name) - getattr(before, name)) / max(wall, 1e-9)
            for name in _SHARES
        }
        known = shares["waiting"] + shares["inference"] + shares["learning"]
        shares["core"] = shares["core"] / max(shares["learning"], 1e-9) or math.nan
        return cls(other=max(0.0, 1.0 - known), **shares)


class Bottleneck(NamedTuple):
    """What limits the speed, the share of time saved if it took none, and what to change."""

    name: str
    share: float
    hint: str


def find_bottleneck(split: TimeSplit, config: TrainConfig, *, on_gpu: bool) -> Bottleneck:
    """Return the measured part whose disappearance would save most.

    Time that was not measured (a run's start and its last records above all) is no candidate, since
    no option shortens it. Waiting for simulators would all be saved. Inference hides behind
    simulators that work meanwhile, so that no more is saved than the sampling time in which they do
    not.
    """
    sampling = split.waiting + split.inference
    saved = {
        "simulators": split.waiting,
        "inference": min(split.inference, max(0.0, sampling - split.simulating)),
        "learning": split.learning,
        "logging": split.logging,
        "checkpoints": split.saving,
    }
    name = max(saved, key=lambda each: saved[each])
    hint = _hint(name, config, on_gpu, has_idle=split.idle >= 0.8)
    return Bottleneck(name, saved[name], hint)


def _hint(name: str, config: TrainConfig, on_gpu: bool, has_idle: bool) -> str:
    """Return what to change; ``has_idle``: whether a CPU has nothing to do."""
    learner, is_serial = config.learner, config.sampler.num_workers == 0
    if name in ("logging", "checkpoints"):
        return f"a larger {'log_interval' if name == 'logging' else 'checkpoint_interval'}"
    if name == "simulators":
        if not has_idle:
            return "more CPU cores would help"
        return f"{'num_workers=none' if is_serial else 'a larger num_envs'} uses the idle cores"
    if name == "learning" and not on_gpu:
        if has_idle and learner.in_rollouts and config.num_learners == 1:
            if not is_serial and not config.overlap:
                return "overlap=true learns while simulators work"
            if "batch_size" not in learner.batches(config.sampler):
                return "learners=2 num_workers=0 uses the idle cores"
        is_float = learner.precision == "float32" and is_atari_game(config.env)
        if is_float and "avx512_bf16" in cpu_info("flags"):
            return "precision=bfloat16 computes faster"
        return learner.cheaper
    if not on_gpu:
        return "a larger num_envs, or a GPU"
    if name == "learning":
        if learner.in_rollouts and not config.overlap and config.parallel.pull_steps is None:
            return "overlap=true learns while simulators work"
        if learner.precision == "float32":
            return "precision=tf32 computes faster"
        if "num_envs" not in learner.batches(config.sampler):
            return "a smaller model"
    return "a larger num_envs makes larger batches"
