"""Runs of several learners in processes of their own."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch
from run_files import forget_last_checkpoint, table

from accel_rl.runs.checkpoint import list_checkpoints, load_checkpoint

REPOSITORY = Path(__file__).parents[2]
CATCH = ("env=catch", "num_envs=4", "learners=2")
SMALL = ("algo=a2c", *CATCH, "serial=true", "log_interval=400", "checkpoint_interval=800")
ENDLESS = "total_steps=10000000"
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone")


class Launched:
    """A run in processes of its own, and all that it leaves behind."""

    def __init__(self, run_dir: Path, arguments: tuple[str, ...], program: tuple[str, ...]) -> None:
        self.run_dir = run_dir
        if not any(each.startswith("resume=") for each in arguments):
            arguments = (*arguments, f"run_dir={run_dir}")
        self.process = subprocess.Popen(
            [sys.executable, *program, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    def wait_for_rows(self, number: int = 1) -> None:
        path = self.run_dir / "metrics.csv"
        deadline = time.monotonic() + 100
        while not path.exists() or path.read_text().count("\n") < number + 1:
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline, "no metrics after 100 s"
            time.sleep(0.02)

    def learner(self, rank: int) -> psutil.Process:
        children = psutil.Process(self.process.pid).children()
        return next(each for each in children if each.environ().get("RANK") == str(rank))

    def ends(self, code: int, seconds: float = 200) -> str:
        """What it said on standard error, after its end with ``code``, nothing left of it."""
        processes = psutil.Process(self.process.pid).children(recursive=True)
        _, errors = self.process.communicate(timeout=seconds)
        _, alive = psutil.wait_procs(processes, timeout=20)
        assert not alive
        assert self.process.returncode == code, errors
        return errors


@contextmanager
def launched(
    run_dir: Path, *arguments: str, program: tuple[str, ...] = ("-m", "accel_rl")
) -> Iterator[Launched]:
    run = Launched(run_dir, arguments, program)
    try:
        yield run
    finally:
        for stream in (run.process.stdout, run.process.stderr):
            assert stream is not None
            stream.close()
        if run.process.poll() is None:  # the test has failed
            for each in psutil.Process(run.process.pid).children(recursive=True):
                each.kill()
            run.process.kill()
            run.process.wait()


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
