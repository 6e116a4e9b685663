"""Programs and runs in processes of their own, which end with the test."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import torch
import warm
from run_files import forget_last_checkpoint, table

from accel_rl.runs.checkpoint import list_checkpoints, load_checkpoint

REPOSITORY = Path(__file__).parents[2]
CATCH = ("env=catch", "num_envs=4", "learners=2")
SMALL = ("algo=a2c", *CATCH, "num_workers=0", "log_interval=400", "checkpoint_interval=800")
ENDLESS = "total_steps=10000000"
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone")


@contextmanager
def started(*command: str, is_warm: bool = True, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """``python COMMAND`` in a session of its own; nothing of it is left after the block.

    Args:
        is_warm: A fork of a process that has loaded torch, in place of a new interpreter.
        options: Of `subprocess.Popen`.
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    options = {**pipes, "text": True, "cwd": REPOSITORY, "start_new_session": True, **options}
    process = (warm.Popen if is_warm else subprocess.Popen)([sys.executable, *command], **options)
    try:
        yield process
    finally:
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        if process.poll() is None:  # the test has failed, or has just killed it
            with suppress(psutil.NoSuchProcess):
                for each in psutil.Process(process.pid).children(recursive=True):
                    each.kill()
            process.kill()
            process.wait()


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    """Wait at most 100 s for ``condition``, and only while ``process`` runs."""
    deadline = time.monotonic() + 100
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "not within 100 s"
        time.sleep(0.01)


def has_rows(run_dir: Path, number: int = 1) -> bool:
    path = run_dir / "metrics.csv"
    return path.exists() and path.read_text().count("\n") > number


class Launched:
    """A run in processes of its own, and all that it leaves behind."""

    def __init__(self, run_dir: Path, process: subprocess.Popen[str]) -> None:
        self.run_dir = run_dir
        self.process = process

    def wait_for_rows(self, number: int = 1) -> None:
        wait_for(lambda: has_rows(self.run_dir, number), self.process)

    def learner(self, rank: int) -> psutil.Process:
        """The launcher's child of that rank, if all learners run."""
        children = psutil.Process(self.process.pid).children()
        return sorted(children, key=lambda each: (each.create_time(), each.pid))[rank]

    def ends(self, code: int, seconds: float = 200) -> str:
        """What it said on standard error, after its end with ``code``, nothing left of it."""
        processes = []
        with suppress(psutil.NoSuchProcess):
            processes = psutil.Process(self.process.pid).children(recursive=True)
        _, errors = self.process.communicate(timeout=seconds)
        _, alive = psutil.wait_procs(processes, timeout=20)
        assert not alive
        assert self.process.returncode == code, errors
        return errors


@contextmanager
def launched(
    run_dir: Path,
    *arguments: str,
    program: tuple[str, ...] = ("-m", "accel_rl", "train"),
    **options: Any,
) -> Iterator[Launched]:
    """A run in ``run_dir``, or one that goes on if ``arguments`` have ``resume=``."""
    if not any(each.startswith("resume=") for each in arguments):
        arguments = (*arguments, f"run_dir={run_dir}")
    options = {"env": os.environ | {"OMP_NUM_THREADS": "1"}, **options}
    options.setdefault("is_warm", program[:2] != TORCHRUN[:2] and "EMULATED_GPU" not in os.environ)
    with started(*program, *arguments, **options) as process:
        yield Launched(run_dir, process)


def train(run_dir: Path, *arguments: str) -> str:
    with launched(run_dir, *arguments) as run:
        return run.ends(0)


def last_checkpoint(run_dir: Path) -> dict:
    return load_checkpoint(list_checkpoints(run_dir)[-1])


def same_tensors(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def goes_on_to_the_bit(folder: Path, *options: str) -> None:
    """A run that goes on from its middle gives what a whole run gives, in all its learners."""
    whole = folder / "whole"
    options = (*options, *CATCH, "log_interval=300", "checkpoint_interval=600", "total_steps=1200")
    assert train(whole, *options) == ""
    resumed = forget_last_checkpoint(whole, folder / "resumed")
    assert train(resumed, f"resume={resumed}") == ""
    saved, expected = last_checkpoint(resumed), last_checkpoint(whole)
    assert saved["parts"] == {1: 1200}
    assert same_tensors(saved["learner"]["parameters"], expected["learner"]["parameters"])
    assert table(resumed / "metrics.csv") == table(whole / "metrics.csv")
    evaluations = [folder / "evaluation.csv" for folder in (resumed, whole)]
    if evaluations[1].exists():
        assert evaluations[0].read_text() == evaluations[1].read_text()
