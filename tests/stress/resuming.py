"""What chaos asks of a run after its end: that checkpoints load, and that it goes on as it was."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import subprocess
import sys
from pathlib import Path

import torch
from rich.console import Console
from trial import Trial, unfinished
from ways import INTERVAL, ROOT, SERIAL_TWIN, TOTAL_STEPS

from accel_rl.cli.parse import parse_arguments
from accel_rl.runs.checkpoint import list_checkpoints, load_checkpoint, part_path
from accel_rl.training.train import train

_RESUME_SECONDS = 300.0
PROGRAM = """
import sys
from accel_rl.__main__ import main
from accel_rl.runs import checkpoint
checkpoint.NUM_KEPT = int(sys.argv[1])
sys.exit(main(["train", *sys.argv[2:]]))
"""


class References:
    """Runs that never stopped, each made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def parameters(self, twin: tuple[str, ...], steps: int) -> dict[str, torch.Tensor]:
        """The parameters after ``steps`` steps."""
        path = self._made(twin) / "checkpoints"
        found = [each for each in path.iterdir() if each.name.endswith(f"{steps:012d}.pt")]
        return parameters_of(found[0])

    def trained(self) -> Path:
        """A run to evaluate; nothing may be written into it."""
        return self._made(SERIAL_TWIN)

    def _made(self, twin: tuple[str, ...]) -> Path:
        run_dir = self._folder / hashlib.sha1(" ".join(twin).encode()).hexdigest()[:12]
        if not run_dir.exists():
            command(*twin, f"run_dir={run_dir}", keeping=1000)
        return run_dir


def command(*options: str, keeping: int = 3) -> None:
    """Run accel_rl.

    Args:
        options: options of ``train``.
        keeping: number of checkpoints to keep.

    Raises:
        RuntimeError: it failed; with what it has printed.
    """
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(keeping), *options],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=_RESUME_SECONDS,
    )
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {(done.stdout + done.stderr)[-800:]}")


def parameters_of(checkpoint: Path) -> dict[str, torch.Tensor]:
    """The parameters in a checkpoint."""
    parameters: dict[str, torch.Tensor] = load_checkpoint(checkpoint)["learner"]["parameters"]
    return parameters


def look_at_checkpoints(trial: Trial, references: References) -> None:
    """Load the last checkpoint, resume the run, and compare it with one that never stopped."""
    way, run_dir = trial.way, trial.run_dir
    if way.resumes == "no":
        return
    try:
        if way.resumes == "sweep":
            _resume_sweep(trial, references)
        elif checkpoints := list_checkpoints(run_dir):
            saved = load_checkpoint(checkpoints[-1])
            steps = int(saved["counts"]["steps"])
            for rank, at in (saved.get("parts") or {}).items():
                load_checkpoint(part_path(run_dir, at, rank))
            total = min((steps // INTERVAL + 2) * INTERVAL, TOTAL_STEPS)
            # A run of several learners takes seconds to start, so only some are resumed.
            if total > steps and (way.resumes == "here" or trial.rng.random() < 0.5):
                _resume(trial, references, total)
    except Exception as error:
        trial.fail(f"cannot go on: {type(error).__name__}: {error}")


def _resume(trial: Trial, references: References, total: int) -> None:
    run_dir = trial.run_dir
    options = [f"resume={run_dir}", f"total_steps={total}"]
    if trial.way.resumes == "here":
        torch.set_num_threads(1)
        with contextlib.redirect_stderr(io.StringIO()):
            train(parse_arguments(options), Console(file=io.StringIO()))
    else:
        command(*options)
    trial.result.resumed = True
    if parts := unfinished(run_dir):
        trial.fail(f"unfinished files left after resuming: {parts}")
    last = list_checkpoints(run_dir)[-1]
    reached = int(load_checkpoint(last)["counts"]["steps"])
    if reached < total:
        trial.fail(f"resumed to {total} steps, the last checkpoint has {reached}")
    elif is_equal_promised(trial) and trial.way.twin is not None:
        _compare(trial, last, references.parameters(trial.way.twin, total))


def is_equal_promised(trial: Trial) -> bool:
    """Not where a worker was lost, or a learner before its part was saved.

    Their environments begin new episodes; of a learner, the log of the resumed run says so.
    """
    hits = ("KILL", "STOP", "TERM+KILL")
    is_lost = trial.result.target == "worker" and trial.result.signal in hits
    return not is_lost and "all environments start new episodes" not in trial.said()


def _resume_sweep(trial: Trial, references: References) -> None:
    run_dir = trial.run_dir
    if not (run_dir / "sweep.yaml").exists():
        return
    command("sweep", f"resume={run_dir}", "slots=2")
    trial.result.resumed = True
    table = (run_dir / "results.csv").read_text()
    if table.count("finished") != 2:
        trial.fail(f"not all runs finished: {table}")
    if parts := unfinished(run_dir):
        made_again = [each for each in parts if not list((run_dir / "runs").glob("*+2"))]
        if made_again:
            trial.fail(f"unfinished files left after resuming: {parts}")
    assert trial.way.twin is not None
    last = sorted((run_dir / "runs").glob(f"catch-a2c-3*/checkpoints/*{TOTAL_STEPS}.pt"))[-1]
    _compare(trial, last, references.parameters(trial.way.twin, TOTAL_STEPS))


def _compare(trial: Trial, checkpoint: Path, wanted: dict[str, torch.Tensor]) -> None:
    found = parameters_of(checkpoint)
    if not all(torch.equal(found[name], wanted[name]) for name in wanted):
        trial.fail(f"{checkpoint} differs from a run that never stopped")
