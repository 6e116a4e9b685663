"""Runs that cannot go on: one clear message why, and everything stays as it was."""

import shutil
from pathlib import Path

import pytest
import torch
from by_files import rewrite
from saved_runs import quiet, trained

from accel_rl.cli.parse import parse_arguments
from accel_rl.parallel import Ranks
from accel_rl.runs.checkpoint import list_checkpoints, load_checkpoint, part_path
from accel_rl.runs.directory import hold
from accel_rl.training.resume import load_last
from accel_rl.training.train import RunError, train


def resume(run_dir: Path, *arguments: str) -> None:
    train(parse_arguments([f"resume={run_dir}", *arguments]), quiet())


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    options = ("total_steps=80", "checkpoint_interval=40")
    return trained(tmp_path_factory.mktemp("runs") / "run", "env=catch", *options)


def damage(run_dir: Path, what: str) -> None:
    last = list_checkpoints(run_dir)[-1]
    if what == "cut off":
        last.write_bytes(last.read_bytes()[:1000])
    elif what == "another format":
        torch.save({"format": 1}, last)
    elif what == "foreign":
        torch.save([1, 2], last)
    elif what == "no checkpoint":
        shutil.rmtree(run_dir / "checkpoints")


QUICK = [
    ("cut off", "", "or is damaged.*delete what was saved after steps_000000000040.pt"),
    ("", "", "has taken 80 steps, all that total_steps=80 .* larger total_steps"),
    ("", "gamma=0.5", "learner.gamma=0.5 cannot be given with resume=.*begun with 0.99"),
    ("another format", "", r"of another version of accel_rl \(format 1"),
]
SLOW = [
    ("foreign", "", "is not a checkpoint, or is damaged"),
    ("no checkpoint", "", "checkpoint"),
    ("", "env=pong", "env=pong cannot be given with resume=.*begun with catch"),
    ("", "algo=a2c", "algo=a2c cannot be given with resume="),
    ("", "run_dir=x", "run_dir=x cannot be given with resume="),
    ("", "total_steeps=1", "did you mean total_steps"),
]


@pytest.mark.parametrize(
    ("what", "options", "message"),
    [*QUICK, *(pytest.param(*each, marks=pytest.mark.slow) for each in SLOW)],
)
def test_run_that_cannot_go_on_says_why_and_stays_as_it_is(
    what: str, options: str, message: str, finished: Path, tmp_path
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(finished, run_dir)
    damage(run_dir, what)
    before = {path: path.stat().st_mtime_ns for path in run_dir.rglob("*")}
    with pytest.raises(ValueError, match=message):
        resume(run_dir, *options.split())
    assert {path: path.stat().st_mtime_ns for path in run_dir.rglob("*")} == before


@pytest.mark.slow
@pytest.mark.parametrize("text", ["a,b\n1,2\n", "steps\nx\n"])
def test_metrics_of_something_else_are_named_and_the_config_stays(
    text: str, finished: Path, tmp_path
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(finished, run_dir)
    (run_dir / "metrics.csv").write_text(text)
    with pytest.raises(RunError, match=r"metrics\.csv cannot be read: .*; move it away"):
        resume(run_dir, "total_steps=120")
    same = ("config.yaml", "learning_curve.png")
    assert all((run_dir / name).read_bytes() == (finished / name).read_bytes() for name in same)


@pytest.mark.parametrize("sync, is_kept", [("all_reduce", False), ("store", True)])
def test_learners_in_step_begin_anew_together_where_the_part_of_one_is_missing(
    sync: str, is_kept: bool, finished: Path, tmp_path, monkeypatch
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(finished, run_dir)
    saved = load_checkpoint(list_checkpoints(run_dir)[-1])
    rewrite(list_checkpoints(run_dir)[-1], saved | {"num_learners": 2, "parts": {1: 80}})
    monkeypatch.setattr("accel_rl.training.resume._refuse_changes", lambda before, config: None)
    config = parse_arguments([f"resume={run_dir}", "total_steps=120", f"sync={sync}"])
    first, second = (load_last(config, Ranks(rank, 2, rank, 2)) for rank in range(2))
    assert (first["sampler"] is not None) == is_kept
    assert second["sampler"] is None
    part_path(run_dir, 80, 1).write_bytes(b"cut off")
    with pytest.raises(ValueError, match=r"damaged.* delete it, and environments start new"):
        load_last(config, Ranks(1, 2, 1, 2))


def test_directory_that_is_no_run_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="nowhere"):
        resume(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=str(tmp_path)):
        resume(tmp_path)


def test_run_that_is_going_on_cannot_be_resumed(finished: Path) -> None:
    with hold(finished), pytest.raises(ValueError, match="another process trains in it"):
        resume(finished, "total_steps=120")
