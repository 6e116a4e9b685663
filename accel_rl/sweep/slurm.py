"""``launch/slurm.py``: a run over several nodes, or a sweep as an array of jobs, under Slurm.

A job starts the same command as a person would, so that it keeps to every option. Before Slurm ends
a job at its time limit, or preempts it, the run saves; the job is queued again and goes on.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from accel_rl.cli.parse import help_entry, override, parse_arguments, split, wants_help
from accel_rl.options import format_value, list_options
from accel_rl.runs.checkpoint import list_checkpoints
from accel_rl.runs.yaml_file import CODE_OPTIONS
from accel_rl.settings import check_settings
from accel_rl.sweep.plan import plan_runs, read_options
from accel_rl.system.console import LastingConsole, print_text, tell_error
from accel_rl.system.extras import missing_package

DRY = "--dry"
USAGE = """\
python launch/slurm.py slurm.nodes=2 slurm.gpus=8 algo=ppo run_dir=/shared/run [key=value ...]
                                      one run, over all GPUs of all nodes
python launch/slurm.py sweep slurm.jobs=4 algo=a2c,ppo seed=0..4 sweep_dir=/shared/sweep [...]
                                      a sweep, as an array of 4 jobs
python launch/slurm.py --dry ...      prints the file for sbatch and submits nothing

Options without slurm. are those of training, or of sweeps. Options of jobs, with their defaults"""
_PREFIX = "slurm."
_MOST_REQUEUES = 1000
"""after time limits; a run takes as many as it needs"""
_FROM_SWEEP = ("slots", "cpus", "trust")
"""options of a sweep that hold as well when it goes on"""


@dataclass(frozen=True, kw_only=True)
class SlurmOptions:
    """What a job asks of the cluster."""

    nodes: int = 1
    """nodes of one run; torchrun starts its learners on each"""
    gpus: int = 0
    """GPUs of each node"""
    learners: int = 0
    """learners on each node if there are several nodes; 0: one on each GPU, or one"""
    cpus: int | None = None
    """CPUs of each node; none: the cluster's default, often one"""
    memory_gb: float | None = None
    """memory of each node; none: the cluster's default"""
    minutes: int = 1440
    """time limit; a job that reaches it is queued again and goes on"""
    grace_seconds: int = 120
    """between the signal before the end of a job and the end: a run has this time to save"""
    jobs: int = 1
    """jobs of a sweep, each of which does its part of the runs"""
    partition: str | None = None
    """partition of the cluster"""
    account: str | None = None
    """account that pays"""
    sbatch: str = ""
    """other options of sbatch, with commas between them: constraint=a100,qos=high"""
    folder: str = "slurm"
    """directory for what the jobs print, which all nodes see"""
    cluster: Literal["slurm", "local"] = "slurm"
    """local: runs the jobs here, without Slurm, to try them"""

    def __post_init__(self) -> None:
        check_settings(self)
        for name in ("nodes", "minutes", "grace_seconds", "jobs"):
            if getattr(self, name) < 1:
                raise ValueError(f"slurm.{name} is {getattr(self, name)}; it must be at least 1")
        for each in filter(None, self.sbatch.split(",")):
            if not re.fullmatch(r"[a-z][a-z-]*=.+", each):
                raise ValueError(
                    f"slurm.sbatch has {each!r}; write its options as in constraint=a100,qos=high"
                )

    @property
    def learners_per_node(self) -> int:
        return self.learners or max(1, self.gpus)


@dataclass
class Task:
    """A job: called on each node, and once more after each requeue. submitit calls `checkpoint`.

    Attributes:
        arguments: Of ``python -m accel_rl``, as the user gave them.
        options: Of the job.
        part: Which part of a sweep, as in ``1/4``; empty: this is a run.
    """

    arguments: list[str]
    options: SlurmOptions
    part: str = ""
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def __call__(self) -> None:
        """Run the command to its end.

        Raises:
            RuntimeError: It failed; what it printed says why.
        """
        import submitit

        environment = submitit.JobEnvironment()
        command = self.command(environment.hostnames[0], environment.job_id)
        print("starts:", *command, flush=True)
        # Slurm signals the group of this process, which hands on what concerns the command.
        self._process = subprocess.Popen(command, start_new_session=True)
        signal.signal(signal.SIGTERM, self._ask_to_stop)
        while self._process.poll() is None:
            time.sleep(0.1)
        code, self._process = self._process.returncode, None
        if code:
            if environment.node:  # the first node may be about to queue the job again
                time.sleep(self.options.grace_seconds)
            raise RuntimeError(f"the command ended with exit code {code}")

    def checkpoint(self) -> Any:
        """Let the command save and end; return what is queued again."""
        import submitit

        if self._process is not None:
            self._ask_to_stop()
            with contextlib.suppress(ChildProcessError):
                # Another wait may be the one that this has interrupted.
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
            self._process = None
        return submitit.helpers.DelayedSubmission(self)

    def _ask_to_stop(self, number: int = 0, frame: FrameType | None = None) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGTERM)
            print("the command was asked to stop", flush=True)

    def command(self, host: str, job: str) -> list[str]:
        """Return the command of one node.

        Args:
            host: The first node of the job.
            job: Number of the job, from which all nodes choose the same port.
        """
        options = self.options
        if self.part:
            return [sys.executable, "-m", "accel_rl", "sweep", *self._sweep()]
        if options.nodes == 1:
            return [sys.executable, "-m", "accel_rl", *self._run()]
        port = 20_000 + int(re.sub(r"\D", "", job) or 0) % 20_000
        return [
            *(sys.executable, "-m", "torch.distributed.run"),
            f"--nnodes={options.nodes}",
            f"--nproc-per-node={options.learners_per_node}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={host}:{port}",
            f"--rdzv-id={job}",
            f"--shutdown-timeout={max(1, options.grace_seconds - 10)}",
            *("-m", "accel_rl", *self._run()),
        ]

    def _run(self) -> list[str]:
        """The arguments with which a run begins, or goes on where it has a checkpoint.

        A directory in which it has not come as far as a checkpoint is left, for ``NAME+2``.
        """
        given = split(self.arguments)
        if "resume" in given:
            return self.arguments
        first, number = Path(given["run_dir"]), 1
        path = first
        while path.exists() and any(path.iterdir()):
            if list_checkpoints(path):
                # Its own options are in its directory; code is named again, as resume wants.
                kept = [f"{k}={given[k]}" for k in CODE_OPTIONS if ":" in given.get(k, "")]
                return [f"resume={path}", *kept, *["trust=true"] * (given.get("trust") == "true")]
            number += 1
            path = first.with_name(f"{first.name}+{number}")
        return [
            *(each for each in self.arguments if not each.startswith("run_dir=")),
            f"run_dir={path}",
        ]

    def _sweep(self) -> list[str]:
        """The arguments of a part of a sweep, which goes on with what is there."""
        given = split(self.arguments)
        if "resume" not in given and self.options.jobs == 1:
            path = Path(given["sweep_dir"])
            if (path / "sweep.yaml").exists():
                kept = [f"{key}={given[key]}" for key in _FROM_SWEEP if key in given]
                return [f"resume={path}", *kept]
        return [*self.arguments, f"part={self.part}"]


def slurm(arguments: Sequence[str]) -> int:
    """Submit jobs, or print the file for sbatch; return the exit code."""
    try:
        if wants_help(arguments):
            return print_text(_help(LastingConsole().width))
        options, tasks = plan_tasks([each for each in arguments if each != DRY])
        return _submit(options, tasks, is_dry=DRY in arguments)
    except (ValueError, OSError) as error:
        tell_error(error)
    except ModuleNotFoundError as error:
        if error.name != "submitit":
            raise
        tell_error(missing_package("this command", "slurm", error))
    return 1


def plan_tasks(arguments: Sequence[str]) -> tuple[SlurmOptions, list[Task]]:
    """Return the options of the jobs that ``arguments`` ask for, and what each of them does.

    Raises:
        ValueError: An option is wrong or missing.
    """
    is_sweep = list(arguments[:1]) == ["sweep"]
    given = split(arguments[1:] if is_sweep else arguments)
    own = {k.removeprefix(_PREFIX): v for k, v in given.items() if k.startswith(_PREFIX)}
    options, _ = override(SlurmOptions(), own)
    rest = [f"{key}={text}" for key, text in given.items() if not key.startswith(_PREFIX)]
    place = "sweep_dir" if is_sweep else "run_dir"
    if not {place, "resume"} & given.keys():
        raise ValueError(
            f"{place} is missing; give {place}=PATH, on a file system that all nodes see, where a "
            f"job that is queued again finds what it has saved"
        )
    if not is_sweep:
        if options.jobs > 1:
            raise ValueError(
                f"slurm.jobs={options.jobs} is for sweeps; give slurm.nodes for one run over nodes"
            )
        parse_arguments(rest)  # refuses what is wrong before anything waits in a queue
        return options, [Task(rest, options)]
    of_sweep, axes = read_options(rest)
    if of_sweep.resume is None:
        plan_runs(axes, of_sweep.config, trust=of_sweep.trust)
    if "part" in given:
        raise ValueError(f"part={given['part']} is each job's own; give slurm.jobs instead")
    if options.nodes > 1:
        raise ValueError(
            f"slurm.nodes={options.nodes} is for one run; give a sweep more jobs by slurm.jobs"
        )
    return options, [
        Task(rest, options, f"{number}/{options.jobs}") for number in range(1, options.jobs + 1)
    ]


def _submit(options: SlurmOptions, tasks: list[Task], *, is_dry: bool) -> int:
    import submitit
    from submitit.slurm.slurm import SlurmExecutor

    class Anywhere(SlurmExecutor):
        """Writes files for sbatch where there is no Slurm."""

        @classmethod
        def affinity(cls) -> int:
            return 1

    if is_dry:
        dry = Anywhere(options.folder)
        dry.update_parameters(**dry._convert_parameters(_parameters(options)))
        if len(tasks) > 1:
            dry.parameters["map_count"] = len(tasks)
        text = dry._make_submission_file_text(dry._submitit_command_str, "dry")
        lines = [f"# each job runs: {' '.join(task.command('HOST', '0'))}" for task in tasks]
        return print_text("\n".join([text.rstrip(), "", *lines]))
    try:
        executor = submitit.AutoExecutor(
            options.folder, options.cluster, slurm_max_num_timeout=_MOST_REQUEUES
        )
    except RuntimeError as error:
        raise ValueError(
            f"there is no Slurm here ({error}); call this on a node from which jobs are submitted, "
            f"or give {DRY} or slurm.cluster=local"
        ) from error
    names = _parameters(options)
    known = {
        "name",
        "timeout_min",
        "mem_gb",
        "nodes",
        "cpus_per_task",
        "gpus_per_node",
        "tasks_per_node",
    }
    executor.update_parameters(**{k if k in known else f"slurm_{k}": v for k, v in names.items()})
    jobs: list[Any] = executor.submit_array(tasks)
    for job in jobs:
        print(f"submitted job {job.job_id}; what it prints: {job.paths.stdout}")
    if options.cluster == "local":
        for job in jobs:
            job.result()
    return 0


def _parameters(options: SlurmOptions) -> dict[str, Any]:
    """By submitit's names; what is not given is left to the cluster."""
    other = dict(each.split("=", 1) for each in filter(None, options.sbatch.split(",")))
    values = {
        "name": "accel_rl",
        "nodes": options.nodes,
        "tasks_per_node": 1,
        "gpus_per_node": options.gpus or None,
        "cpus_per_task": options.cpus,
        "mem_gb": options.memory_gb,
        "timeout_min": options.minutes,
        "partition": options.partition,
        "account": options.account,
        "signal_delay_s": options.grace_seconds,
        "additional_parameters": {"requeue": True, **other},
    }
    return {name: value for name, value in values.items() if value is not None}


def _help(width: int) -> str:
    lines = USAGE.splitlines()
    for option in list_options(SlurmOptions()):
        head = f"{_PREFIX}{option.key}={format_value(option.default)}  ({option.type_name})"
        lines += help_entry(head, option.doc, width)
    return "\n".join(lines)
