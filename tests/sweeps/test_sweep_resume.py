"""Resuming a sweep changes nothing that a run has left, whatever is missing of it."""

import shutil
from pathlib import Path

import pytest
from saved_runs import trained

from accel_rl.__main__ import main
from accel_rl.runs.directory import hold
from accel_rl.sweeps.plan import plan_runs, write_plan
from accel_rl.sweeps.queue import Job, arguments_of, make_jobs, note_if_finished, work_off
from accel_rl.sweeps.slots import Slot
from accel_rl.system.stopping import StopRequest

pytestmark = pytest.mark.usefixtures("warm_sweeps")

OPTIONS = {
    "env": "catch",
    "total_steps": "160",
    "num_workers": "0",
    "num_envs": "2",
    "decorrelation_steps": "0",
    "log_interval": "40",
}


def plan(folder: Path, **options: str) -> list[Job]:
    """The jobs of a sweep in ``folder``, of one run unless ``options`` list more."""
    folder.mkdir(exist_ok=True)
    (folder / "output").mkdir(exist_ok=True)
    runs = plan_runs(OPTIONS | options)
    write_plan(folder, runs)
    return make_jobs(runs, folder, folder / "output")


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A finished run of the sweep in ``tmp_path``, whose checkpoints were removed."""
    (tmp_path / "runs").mkdir()
    run_dir = trained(tmp_path / "runs" / "catch-a2c-0", *(f"{k}={v}" for k, v in OPTIONS.items()))
    shutil.rmtree(run_dir / "checkpoints")
    (run_dir / "NOTES.txt").write_text("the best of all")
    return run_dir


def test_run_that_has_reached_its_score_is_finished(tmp_path: Path) -> None:
    options = {**OPTIONS, "total_steps": "1200", "stop_at_score": "-1"}
    (tmp_path / "runs").mkdir()
    trained(tmp_path / "runs" / "catch-a2c-0", *(f"{k}={v}" for k, v in options.items()))
    (job,) = plan(tmp_path, **options)
    assert job.state == "finished"
    (job,) = plan(tmp_path, **options | {"stop_at_score": "2"})
    assert job.state != "finished"


@pytest.mark.slow
def test_finished_run_without_checkpoints_is_finished_and_untouched(
    run_dir: Path, tmp_path, capsys
) -> None:
    plan(tmp_path)
    before = content(run_dir)
    assert main(["sweep", f"resume={tmp_path}"]) == 0
    assert "finished before: 1" in capsys.readouterr().out
    assert content(run_dir) == before
    assert "1 of 1 runs finished" in (tmp_path / "results.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["file", "link to nothing"])
def test_checkpoints_that_cannot_be_read_are_named_and_nothing_is_touched(
    kind: str, run_dir: Path, tmp_path, capsys
) -> None:
    checkpoints = run_dir / "checkpoints"
    if kind == "file":
        checkpoints.write_text("")
    else:
        checkpoints.symlink_to(tmp_path / "nothing")
    plan(tmp_path)
    before = content(run_dir)
    assert main(["sweep", f"resume={tmp_path}"]) == 1
    out, err = capsys.readouterr()
    for said in (out, err):
        assert f"catch-a2c-0: {checkpoints} cannot be read" in said
    assert content(run_dir) == before


@pytest.mark.slow
def test_missing_evaluation_of_a_finished_run_is_not_taken_for_done(
    run_dir: Path, tmp_path
) -> None:
    (job,) = plan(tmp_path, evaluation_interval="80")
    assert job.state == "waiting"


def test_run_without_checkpoint_begins_again_in_a_directory_of_its_own(
    run_dir: Path, tmp_path
) -> None:
    """Also where the directory of all runs is a link: nothing is removed through it."""
    (tmp_path / "runs").rename(tmp_path / "elsewhere")
    (tmp_path / "runs").symlink_to("elsewhere")
    before = content(tmp_path / "elsewhere")
    (job,) = plan(tmp_path, total_steps="320")
    assert f"run_dir={run_dir}+2" in arguments_of(job)
    assert (job.run_dir, job.left) == (Path(f"{run_dir}+2"), run_dir)
    assert content(tmp_path / "elsewhere") == before


def test_last_attempt_is_the_one_that_counts(run_dir: Path, tmp_path) -> None:
    options = {**OPTIONS, "total_steps": "320"}
    (job,) = plan(tmp_path, total_steps="320")
    trained(Path(f"{run_dir}+2"), *(f"{k}={v}" for k, v in options.items()))
    note_if_finished(job)
    assert (job.state, job.run_dir) == ("finished", Path(f"{run_dir}+2"))
    (again,) = plan(tmp_path, total_steps="640")
    assert arguments_of(again)[0] == f"resume={run_dir}+2"


def test_directory_that_is_empty_is_used(tmp_path) -> None:
    (job,) = plan(tmp_path)
    job.run_dir.mkdir(parents=True)
    assert f"run_dir={job.run_dir}" in arguments_of(job)
    assert job.left is None


def test_directory_in_which_another_process_trains_is_left_alone(tmp_path) -> None:
    (job,) = plan(tmp_path)
    job.run_dir.mkdir(parents=True)
    (job.run_dir / "metrics.csv").touch()
    with hold(job.run_dir):
        work_off([job], [Slot((0,), ())], StopRequest(), lambda job: None, lambda: None)
    assert job.state == "failed"
    assert "is in use: another process trains in it" in job.error
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["catch-a2c-0"]
