"""Where the time of a run goes, and what limits it."""

from __future__ import annotations

from typing import NamedTuple


class Clock(NamedTuple):
    """Readings of the accumulating clocks, in seconds: of the wall, the sampler and the learner.

    ``evaluating``: of the wall's, in which this learner evaluated while others went on.
    ``logging``, ``saving``: of the wall's, for rows of metrics and for checkpoints that were due.
    """

    wall: float
    waiting: float
    inference: float
    simulating: float
    learning: float
    evaluating: float = 0.0
    logging: float = 0.0
    saving: float = 0.0


class TimeSplit(NamedTuple):
    """Shares of the wall time between two readings, evaluations left out.

    ``waiting`` (for simulators), ``inference``, ``learning`` and ``other`` are this process' own
    and add up to 1. ``simulating`` is how much of the time the simulators worked, on average, in
    their own processes meanwhile; a serial sampler's work in this one, where it is ``waiting``.

    On a GPU ``inference`` includes what the device still has to do for the update before it: the
    read of the first actions of a rollout is where this process waits for it.

    ``logging`` and ``saving`` are the parts of ``other`` that ``log_interval`` and
    ``checkpoint_interval`` make longer or shorter.
    """

    waiting: float
    inference: float
    learning: float
    other: float
    simulating: float
    logging: float = 0.0
    saving: float = 0.0

    @classmethod
    def between(cls, before: Clock, after: Clock) -> TimeSplit:
        evaluating = after.evaluating - before.evaluating
        wall = max(after.wall - before.wall - evaluating, 1e-9)
        waiting = (after.waiting - before.waiting) / wall
        inference = (after.inference - before.inference) / wall
        learning = (after.learning - before.learning) / wall
        other = max(0.0, 1.0 - waiting - inference - learning)
        return cls(
            waiting,
            inference,
            learning,
            other,
            (after.simulating - before.simulating) / wall,
            (after.logging - before.logging) / wall,
            (after.saving - before.saving) / wall,
        )


class Bottleneck(NamedTuple):
    """What limits the speed, the share of time saved if it took none, and what to change."""

    name: str
    share: float
    hint: str


def find_bottleneck(split: TimeSplit, *, is_serial: bool, on_gpu: bool) -> Bottleneck:
    """The measured part whose disappearance would save most.

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
    return Bottleneck(name, saved[name], _hint(name, is_serial, on_gpu))


def _hint(name: str, is_serial: bool, on_gpu: bool) -> str:
    if name == "simulators":
        return "serial=false steps them in parallel" if is_serial else "more CPU cores would help"
    if name == "inference":
        return "a larger num_envs makes larger batches" if on_gpu else "a GPU or a smaller model"
    if name == "learning":
        return "a larger num_envs makes larger batches" if on_gpu else "a GPU or a smaller model"
    return f"a larger {'log_interval' if name == 'logging' else 'checkpoint_interval'}"
