"""``launch/*.sbatch``: jobs, with small stand-ins for Slurm's programs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from launched_runs import REPOSITORY, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.processes]

SMALL = ["env=catch", "num_workers=0", "num_envs=4", "decorrelation_steps=0", "log_interval=200"]
# Slurm's srun starts a command on each node and hands on SIGTERM.
STAND_INS = {
    "srun": """trap 'kill -TERM $pids' TERM
for node in $(seq ${SLURM_NNODES:-1}); do "$@" & pids="$pids $!"; done
for pid in $pids; do wait $pid; wait $pid || code=$?; done
exit $code""",
    "scontrol": 'echo "$@" >> scontrol.txt',
    "python": f'exec {sys.executable} "$@"',
}


@contextmanager
def job(place: Path, name: str, *arguments: str, **variables: str) -> Iterator[subprocess.Popen]:
    """What sbatch starts on the first node of a job, in a directory ``place``."""
    for each, text in STAND_INS.items():
        (place / each).write_text(f"#!/bin/bash\n{text}\n")
        (place / each).chmod(0o700)
    path = f"{place}{os.pathsep}{os.environ['PATH']}"
    # Jobs inherit the environment. A launcher of ours, or torchrun, may have started the tests.
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(REPOSITORY), **variables}
    script = str(REPOSITORY / "launch" / f"{name}.sbatch")
    with (place / "output.txt").open("a") as output:
        process = subprocess.Popen(
            ["bash", script, *arguments],
            cwd=place,
            env=environment,
            stdout=output,
            stderr=output,
        )
        try:
            yield process
        finally:
            if process.poll() is None:  # the test has failed
                for each in psutil.Process(process.pid).children(recursive=True):
                    each.kill()
                process.kill()
                process.wait()


def test_run_over_two_nodes_saves_before_the_limit_and_resumes(tmp_path: Path) -> None:
    node = {"SLURM_JOB_ID": f"{os.getpid()}", "SLURM_NNODES": "2"}
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "train.log").touch()  # of a job that was killed before the first checkpoint
    options = [*SMALL, "total_steps=1e7", "max_minutes=5"]
    with job(tmp_path, "train", str(run_dir), *options, **node) as process:
        wait_for((run_dir / "metrics.csv").exists, process)
        process.send_signal(signal.SIGUSR1)  # as sbatch --signal=B:USR1@180 does
        assert process.wait(100) == 0
    assert (tmp_path / "scontrol.txt").read_text() == f"requeue {node['SLURM_JOB_ID']}\n"
    assert "first of 2 learners" in said(tmp_path)
    (saved,) = (run_dir / "checkpoints").glob("steps_*.pt")
    with job(tmp_path, "train", str(run_dir), *options, **node) as process:
        wait_for(lambda: f"goes on after {int(saved.stem[6:]):,} steps" in said(tmp_path), process)
        process.send_signal(signal.SIGUSR1)
        assert process.wait(100) == 0


def test_array_does_all_parts_of_a_sweep(tmp_path: Path) -> None:
    options = [*SMALL, "seed=0..1", "total_steps=80", "sweep_dir=sweep", "slots=1"]
    for number in "12":
        array = {"SLURM_ARRAY_TASK_ID": number, "SLURM_ARRAY_TASK_COUNT": "2"}
        with job(tmp_path, "sweep", *options, **array) as process:
            assert process.wait(100) == 0, said(tmp_path)
    assert (tmp_path / "sweep" / "results.csv").read_text().count("\n") == 3
    with job(tmp_path, "sweep", *options, **array) as process:  # queued again
        assert process.wait(100) == 0, said(tmp_path)
    assert re.search("finished before: 1", said(tmp_path))


def said(place: Path) -> str:
    return (place / "output.txt").read_text()
