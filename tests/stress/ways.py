"""The ways of running that chaos tries, the faults it injects, and what must come of each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[2]
INTERVAL = 400
"""steps between two checkpoints"""
STEP_SECONDS = 2.0
"""``step_timeout_seconds`` of all ways with workers"""
LEARNER_SECONDS = 8.0
"""``ACCEL_RL_TIMEOUT_SECONDS`` of several learners"""
ANSWER_SECONDS = {"worker": STEP_SECONDS, "rank0": LEARNER_SECONDS, "rank1": LEARNER_SECONDS}
"""after which a process that is stopped by SIGSTOP has not answered in time"""
HOLD_SECONDS = {"worker": 2 * STEP_SECONDS} | dict.fromkeys(
    ("rank0", "rank1"), 1.5 * LEARNER_SECONDS
)
"""for which a process is stopped by SIGSTOP; others for `SHORT_HOLD_SECONDS`"""
SHORT_HOLD_SECONDS = 1.5
NAMED_SECONDS = 5.0
"""within which a casualty is named, after its death or the limit for an answer"""

CATCH = ("env=catch", "num_envs=4", "seed=3", "decorrelation_steps=0")
RECORDS = (f"log_interval={INTERVAL}", f"checkpoint_interval={INTERVAL}")
TOTAL_STEPS = 8000
LENGTH = (f"total_steps={TOTAL_STEPS}",)
A2C = ("algo=a2c", *CATCH, *RECORDS, *LENGTH)
WORKERS = ("learners=1", "num_workers=2", f"step_timeout_seconds={STEP_SECONDS}")
RAISE = "on_worker_failure=raise"
LEARNERS = ("learners=2", "num_workers=0")
TORCHRUN = ("-m", "torch.distributed.run")
TRAIN = ("-m", "accel_rl", "train")
SCRIPT = "launch/train.py"

QUICK = ("serial", "parallel", "restart", "overlap", "evaluation", "evaluate", "vector", "ga3c")
"""ways of which a trial takes a third of the time; each of their cases is tried `QUICK_TIMES`"""
QUICK_TIMES = 2

Signal = Literal["KILL", "TERM", "INT", "INT2", "STOP", "TERM+KILL"]
"""INT2: SIGINT twice. STOP: SIGSTOP, and SIGCONT later. TERM+KILL: SIGTERM to who was started,
then SIGKILL to the target"""
Phase = Literal["start", "steps", "checkpoint"]
Outcome = Literal["ends", "goes on", "either"]


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way of running.

    Attributes:
        program: arguments of Python.
        targets: processes that faults hit; ``root`` is the one that was started.
        twin: options of a run that gives the same parameters, or none if no run does.
        resumes: how the run is resumed: in this process, by a command, as a sweep, or not at all.
    """

    program: tuple[str, ...]
    targets: tuple[str, ...]
    twin: tuple[str, ...] | None = None
    resumes: Literal["here", "command", "sweep", "no"] = "here"
    phases: tuple[Phase, ...] = ("start", "steps", "checkpoint")


@dataclass(frozen=True)
class Expected:
    """What must come of a fault: exit codes of the first process if it ends, who is named."""

    outcome: Outcome
    codes: frozenset[int] = frozenset()
    named: str | None = None


SERIAL_TWIN = (*A2C, "num_workers=0", "learners=1")
STEP_TWIN = (*A2C, "learners=2", "num_workers=0")
EVALUATING = ("evaluation_interval=800", "evaluation_steps=100")


def make_ways(folder: Path, trained: Path | None = None) -> dict[str, Way]:
    """All ways, by name, for runs in ``folder``. ``trained``: a run that `evaluate` evaluates."""
    return _of_one_learner(folder, trained) | _of_several(folder)


def _of_one_learner(folder: Path, trained: Path | None) -> dict[str, Way]:
    into = f"run_dir={folder}"
    ga3c = ("algo=ga3c", *CATCH, *RECORDS, *LENGTH, "num_groups=2")
    alone, simulated = ("root",), ("root", "worker", "all")
    return {
        "serial": Way(program=(*TRAIN, *SERIAL_TWIN, into), targets=alone, twin=SERIAL_TWIN),
        "parallel": Way(
            program=(*TRAIN, *A2C, *WORKERS, RAISE, into), targets=simulated, twin=SERIAL_TWIN
        ),
        "restart": Way(
            program=(*TRAIN, *A2C, *WORKERS, "on_worker_failure=restart", into),
            targets=simulated,
            twin=SERIAL_TWIN,
        ),
        "overlap": Way(
            program=(*TRAIN, *A2C, *WORKERS, RAISE, "overlap=true", into),
            targets=simulated,  # no twin: only what resumes from a regular checkpoint is equal
        ),
        "evaluation": Way(
            program=(*TRAIN, *A2C, *WORKERS, RAISE, *EVALUATING, into),
            targets=simulated,
            twin=SERIAL_TWIN,
        ),
        "evaluate": Way(
            program=(*TRAIN, "evaluate", str(trained), "num_steps=20000", f"out={folder}.json"),
            targets=simulated,
            resumes="no",
            phases=("start",),
        ),
        "vector": Way(
            program=("tests/stress/embedding.py", str(folder)),
            targets=simulated,
            resumes="no",
            phases=("start", "steps"),
        ),
        "ga3c": Way(
            program=(*TRAIN, *ga3c, RAISE, f"step_timeout_seconds={STEP_SECONDS}", into),
            targets=simulated,
        ),
    }


def _of_several(folder: Path) -> dict[str, Way]:
    into = f"run_dir={folder}"
    two = ("root", "rank0", "rank1", "all")
    torchrun = (*TORCHRUN, "--nproc-per-node=2", "--standalone", SCRIPT)
    swept = [x for x in A2C if not x.startswith("seed=")]
    sweep = ("seed=3,4", "num_workers=0", "slots=2", f"sweep_dir={folder}")
    return {
        "in step": Way(
            program=(*TRAIN, *A2C, *LEARNERS, into),
            targets=two,
            twin=STEP_TWIN,
            resumes="command",
        ),
        "store": Way(
            program=(*TRAIN, *A2C, *LEARNERS, "sync=store", into), targets=two, resumes="command"
        ),
        "torchrun": Way(
            program=(*torchrun, *A2C, *LEARNERS, into),
            targets=two,
            twin=STEP_TWIN,
            resumes="command",
        ),
        "sweep": Way(
            program=(*TRAIN, "sweep", *swept, *sweep),
            targets=("root", "run", "all"),
            twin=SERIAL_TWIN,
            resumes="sweep",
            phases=("start", "steps"),
        ),
    }


def make_cases(ways: dict[str, Way]) -> Iterator[tuple[str, str, Signal]]:
    """Yield each way, target and signal."""
    signals: tuple[Signal, ...] = ("KILL", "STOP", "TERM", "INT2", "INT", "TERM+KILL")
    for signal in signals:
        for name, way in ways.items():
            for target in way.targets:
                if target == "all" and signal not in ("TERM", "KILL"):
                    continue
                if signal == "TERM+KILL" and target in ("root", "all"):
                    continue
                if signal == "INT" and target != "root":
                    continue
                yield name, target, signal


TERMINATED = frozenset({143, -15})
INTERRUPTED = frozenset({130, -2})
KILLED = frozenset({-9})
FAILED = frozenset({1})


def expected(way: str, target: str, signal: Signal, phase: Phase, pid: int) -> Expected:
    """What must come of ``signal`` to ``target``, whose process id is ``pid``."""
    if target == "all":
        if signal == "KILL":
            return Expected("ends", KILLED)
        return Expected("ends", TERMINATED | (FAILED if way == "torchrun" else frozenset()))
    if target == "root":
        return _of_root(way, signal)
    if target == "worker":
        return _of_worker(way, signal, phase, pid)
    if target == "run":
        return _of_swept(signal)
    return _of_rank(way, target, signal, phase)


def _of_root(way: str, signal: Signal) -> Expected:
    if signal == "STOP":
        return Expected("either" if way == "evaluate" else "goes on")
    codes = {"KILL": KILLED, "TERM": TERMINATED}.get(signal, INTERRUPTED)
    if way == "torchrun" and signal != "KILL":
        codes |= FAILED  # torchrun's own, whatever the learners' codes are
    if signal == "INT2" and way in ("in step", "store", "store continue"):
        codes |= {137}  # learners were killed
    return Expected("ends", codes)


def _of_worker(way: str, signal: Signal, phase: Phase, pid: int) -> Expected:
    named = rf"worker \d+ \(pid {pid}\b"
    if signal == "TERM+KILL":
        return Expected("ends", TERMINATED)
    if signal in ("TERM", "INT2"):  # not meant for workers, which leave them to the run
        return Expected("either" if way == "evaluate" else "goes on", frozenset({0}))
    if signal == "STOP" and phase == "start":  # starting may take longer than a step
        return Expected("either", FAILED | {0})
    if way == "restart":
        return Expected("goes on", named=named)
    if way == "evaluate":  # replaces lost workers, too
        return Expected("ends", frozenset({0}), named)
    return Expected("ends", frozenset({0}) if way == "vector" else FAILED, named)


def _of_swept(signal: Signal) -> Expected:
    if signal == "STOP":
        return Expected("goes on")
    if signal == "TERM+KILL":
        return Expected("ends", TERMINATED)
    return Expected("ends", FAILED, r"catch-a2c-\d: failed|failed: catch-a2c-\d")


def _of_rank(way: str, target: str, signal: Signal, phase: Phase) -> Expected:
    named = f"learner {target[-1]}|rank *: {target[-1]}"
    if signal == "KILL":
        if way == "store continue" and target == "rank1":
            return Expected("goes on", named=named)
        return Expected("ends", FAILED, named)
    if signal == "STOP":
        if way.startswith("store") or phase == "start":
            return Expected("either", FAILED)
        return Expected("ends", FAILED, named)
    if signal == "TERM+KILL":
        return Expected("ends", TERMINATED | FAILED | {137})
    if way == "torchrun":
        return Expected("ends", FAILED)
    return Expected("ends", TERMINATED | INTERRUPTED)


def is_role(target: str, command: str, environment: str) -> bool:
    """Whether a process with this command line and these variables is a ``target``."""
    if target == "worker":
        return "accel_rl.samplers.worker" in command
    if target == "run":
        return "-m accel_rl " in command and " sweep " not in command
    if "samplers.worker" in command or "distributed.run" in command:
        return False
    return re.search(rf"^RANK={target[-1]}$", environment, re.MULTILINE) is not None
