"""The queue of a sweep: as many runs at a time as there are slots, each a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Literal

from accel_rl.runs.checkpoint import checkpoint_steps, list_checkpoints
from accel_rl.runs.directory import hold
from accel_rl.runs.files import naming, no_link
from accel_rl.runs.tables import read_rows
from accel_rl.runs.yaml_file import code_in
from accel_rl.sweeps.plan import PlannedRun, options_of_all
from accel_rl.sweeps.slots import Slot
from accel_rl.system.processes import add_package_path
from accel_rl.system.stopping import LAUNCHER_VARIABLE, STOP_SECONDS, StopRequest
from accel_rl.training.evaluation import lacks_last_evaluation
from accel_rl.training.metrics import has_reached_score

State = Literal["waiting", "running", "stopping", "finished", "failed", "stopped"]

_LOOK_SECONDS = 0.25


@dataclass
class Job:
    """A run of the sweep and how it stands.

    ``output`` has all that it prints, ``config`` the options of all runs. ``left`` is the directory
    of an earlier attempt that left no checkpoint.
    """

    run: PlannedRun
    run_dir: Path
    output: Path
    config: Path | None = None
    trust: bool = False
    state: State = "waiting"
    error: str = ""
    left: Path | None = None


def make_jobs(
    runs: Sequence[PlannedRun], sweep_dir: Path, output_dir: Path, *, trust: bool = False
) -> list[Job]:
    config = options_of_all(sweep_dir)
    jobs = []
    for run in runs:
        output = output_dir / f"{run.name}.txt"
        jobs.append(Job(run, sweep_dir / "runs" / run.name, output, config, trust))
        note_if_finished(jobs[-1])
    return jobs


def note_if_finished(job: Job) -> None:
    """Set the state of ``job`` if its last attempt has finished, or cannot be read."""
    job.run_dir = _attempts(job)[-1]
    try:
        if is_finished(job.run, job.run_dir):
            job.state = "finished"
    except ValueError as error:
        job.state, job.error = "failed", str(error)


def is_finished(run: PlannedRun, run_dir: Path) -> bool:
    """Return whether the run has reached its score, or taken all its steps and last evaluation.

    The last checkpoint says so, or ``metrics.csv`` if the checkpoints were removed.
    """
    planned, checkpoints = run.config.planned_steps, list_checkpoints(run_dir)
    needs_rows = not checkpoints or run.config.stop_at_score is not None
    rows = read_rows(run_dir / "metrics.csv", "steps") if needs_rows else []
    if checkpoints:
        steps: float = checkpoint_steps(checkpoints[-1])
    else:
        steps = rows[-1]["steps"] if rows else 0.0
    last = min(steps, planned - 1)  # at its end a run goes on to its last evaluation
    if any(row["steps"] <= last and has_reached_score(run.config, row) for row in rows):
        return True
    return steps >= planned and not lacks_last_evaluation(run_dir, run.config)


def _attempts(job: Job) -> list[Path]:
    """Return the directories in which the run was tried: ``NAME``, ``NAME+2``, ``NAME+3``..."""
    paths = [job.run_dir.with_name(job.run.name)]
    while os.path.lexists(path := paths[0].with_name(f"{job.run.name}+{len(paths) + 1}")):
        paths.append(path)
    return paths


def arguments_of(job: Job) -> list[str]:
    """Return the arguments of a process in which the run goes on, or begins.

    If an attempt has left no checkpoint, its directory stays, and the run begins in another.
    """
    if list_checkpoints(job.run_dir):
        again = [f"resume={job.run_dir}", f"total_steps={job.run.config.total_steps}"]
        return [*again, *["trust=true"] * job.trust]
    if job.run_dir.exists():
        with hold(job.run_dir):
            is_used = any(job.run_dir.iterdir())
        if is_used:
            job.left = job.run_dir
            job.run_dir = job.run_dir.with_name(f"{job.run.name}+{len(_attempts(job)) + 1}")
    of_all = [] if job.config is None else [f"config={job.config}"]
    if of_all and code_in(vars(job.run.config)):  # which was let in when the sweep was planned
        of_all.append("trust=true")
    return [*job.run.arguments, f"run_dir={job.run_dir}", *of_all]


def work_off(
    jobs: Sequence[Job],
    slots: Sequence[Slot],
    stop: StopRequest,
    tell: Callable[[Job], None],
    look: Callable[[], None],
) -> None:
    """Runs all jobs that wait, and returns when no process is left.

    ``tell`` hears of each job whose state has changed, ``look`` is called a few times a second.
    After the first signal no run is begun and all that are running are asked to stop, which saves
    them; those that have not ended `STOP_SECONDS` later are killed.

    Raises:
        OSError: a run could not be started; the others were killed.
    """
    waiting = deque(job for job in jobs if job.state == "waiting")
    free = deque(slots)
    running: list[tuple[Job, Slot, _Process]] = []
    asked_at: float | None = None
    try:
        while running or (waiting and stop.received is None):
            while waiting and free and stop.received is None:
                job = waiting.popleft()
                try:
                    process = _Process(job, free[0])
                except ValueError as error:
                    job.state, job.error = "failed", str(error)
                else:
                    job.state = "running"
                    running.append((job, free.popleft(), process))
                tell(job)
            for each in [each for each in running if each[2].has_ended()]:
                job, slot, process = each
                running.remove(each)
                free.append(slot)
                process.close()
                job.state, job.error = process.outcome(was_asked=asked_at is not None)
                tell(job)
            if stop.received is not None and asked_at is None:
                asked_at = monotonic()
                for job, _, process in running:
                    process.ask_to_stop()
                    job.state = "stopping"
                    tell(job)
            if asked_at is not None and monotonic() - asked_at > STOP_SECONDS:
                return  # `finally` kills
            look()
            sleep(_LOOK_SECONDS)
    finally:
        for job, _, process in running:
            process.kill()
            job.state, job.error = "failed", "killed: the sweep has failed"
            if asked_at is not None:
                job.error = f"killed: it has not ended within {STOP_SECONDS:g} s of being stopped"
            tell(job)


class _Process:
    """The process of a job, in a session of its own, which Ctrl-C does not reach."""

    def __init__(self, job: Job, slot: Slot) -> None:
        arguments = arguments_of(job)
        environment = dict(os.environ)
        add_package_path(environment)
        environment[LAUNCHER_VARIABLE] = str(os.getpid())
        if slot.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(slot.gpus)
        cpus = ",".join(map(str, slot.cpus))
        child = [sys.executable, "-P", "-m", "accel_rl.sweeps.child"]
        self._output = job.output
        life_read, self._life = os.pipe()
        try:
            with naming(job.output):
                output = open(job.output, "wb", opener=no_link)
            with output as file:
                self._process = subprocess.Popen(
                    [*child, str(life_read), cpus, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    pass_fds=[life_read],
                    start_new_session=True,
                )
        except OSError:
            os.close(self._life)
            raise
        finally:
            os.close(life_read)

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def ask_to_stop(self) -> None:
        if not self.has_ended():
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        if not self.has_ended():
            self._process.kill()
        self.close()

    def close(self) -> None:
        self._process.wait()
        os.close(self._life)

    def outcome(self, was_asked: bool) -> tuple[State, str]:
        code = self._process.returncode
        if code == 0:
            return "finished", ""
        if was_asked and code in (-signal.SIGTERM, 128 + signal.SIGTERM):
            return "stopped", ""
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        said = self._output.read_text(errors="replace").strip()
        _, is_told, message = f"\n{said}".rpartition("\nerror: ")
        message = message if is_told else said[-300:]
        return "failed", " ".join([f"{how}:", *message.split()]) if message else how
