"""Sweeps of short runs: failures, interruptions, what is left behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest
from launched_runs import has_rows, started, wait_for
from run_files import rows_of

from accel_rl.__main__ import main
from accel_rl.envs.catch import Catch
from accel_rl.runs.checkpoint import list_checkpoints
from accel_rl.sweeps import command, queue
from accel_rl.sweeps.plan import plan_runs, read_plan
from accel_rl.sweeps.queue import is_finished
from accel_rl.sweeps.slots import Slot
from accel_rl.system.stopping import StopRequest

pytestmark = pytest.mark.usefixtures("warm_sweeps")

REPOSITORY = Path(__file__).parents[2]
SHORT = ["num_workers=0", "total_steps=160", "log_interval=80", "decorrelation_steps=0"]
ENDLESS = ["env=catch", "total_steps=1e9", "log_interval=2000", "decorrelation_steps=0"]

is_run = True  # set to False here, so that it holds in the processes of runs alone


def fragile() -> Catch:
    """Catch, but in a run only where the file that FRAGILE names is there."""
    if is_run and not os.path.exists(os.environ["FRAGILE"]):
        raise RuntimeError("the simulator is not installed")
    return Catch()


@pytest.mark.nightly
@pytest.mark.processes
def test_failed_run_is_named_the_others_go_on_and_resuming_runs_it_alone(
    tmp_path, monkeypatch, capsys
) -> None:
    folder = tmp_path / "sweep"
    installed = tmp_path / "installed"
    monkeypatch.setenv("FRAGILE", str(installed))
    monkeypatch.setattr(sys.modules[__name__], "is_run", False)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY), prepend=":")
    options = ["env=catch,test_sweep_runs:fragile", "seed=0,1", *SHORT, "slots=2"]
    assert main(["sweep", *options, f"sweep_dir={folder}"]) == 1
    out, err = capsys.readouterr()
    names = [f"test_sweep_runs-fragile-a2c-{seed}" for seed in (0, 1)]
    for name in names:
        assert f"failed: {name}: exit code 1: " in err
        assert "the simulator is not installed" in err
    assert "4 of 4" in out and "catch-a2c-1: finished, score " in out
    states = {row["run"]: row["state"] for row in rows_of(folder / "results.csv")}
    assert states == {f"catch-a2c-{s}": "finished" for s in (0, 1)} | dict.fromkeys(names, "failed")
    text = (folder / "results.md").read_text()
    assert "2 of 4 runs finished." in text and f"- {names[0]}: failed, exit code 1: " in text

    log = folder / "runs" / "catch-a2c-0" / "train.log"
    before = log.stat().st_mtime_ns
    installed.touch()
    assert main(["sweep", f"resume={folder}", "slots=2"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "finished before: 2" in out
    assert {row["state"] for row in rows_of(folder / "results.csv")} == {"finished"}
    assert log.stat().st_mtime_ns == before


@contextmanager
def swept(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A sweep whose first two runs have rows."""
    with started("launch/sweep.py", *options, f"sweep_dir={folder}") as process:
        for seed in (0, 1):
            run_dir = folder / "runs" / f"catch-a2c-{seed}"
            wait_for(lambda run_dir=run_dir: has_rows(run_dir), process)
        yield process


def plan_an_end(folder: Path) -> None:
    """A shorter plan, so that resuming has an end: 8,000 steps more than the furthest run."""
    names = [path.stem for path in folder.glob("runs/*/checkpoints/steps_*.pt")]
    steps = max(int(name.removeprefix("steps_")) for name in names) + 8_000
    plan = folder / "sweep.yaml"
    plan.write_text(plan.read_text().replace("1e9", str(steps), 1))
    for config in folder.glob("runs/*/config.yaml"):
        config.write_text(
            config.read_text().replace("total_steps: 1000000000", f"total_steps: {steps}")
        )


def in_order(processes: list[psutil.Process]) -> list[psutil.Process]:
    """In that of their starts."""
    return sorted(processes, key=lambda each: (each.create_time(), each.pid))


@pytest.mark.nightly
@pytest.mark.processes
def test_runs_of_two_learners_fail_and_stop_as_one_and_go_on(tmp_path, capsys) -> None:
    folder = tmp_path / "sweep"
    options = ["seed=0,1", *ENDLESS, "learners=2", "gpus=0", "num_workers=0", "slots=2"]
    with swept(folder, *options) as process:
        launchers = in_order(psutil.Process(process.pid).children())
        learners = [in_order(launcher.children()) for launcher in launchers]
        assert [len(each) for each in learners] == [2, 2]
        lost = learners[0][1]
        lost.kill()
        launchers[0].wait(60)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=100)
    assert process.returncode == 130
    assert f"failed: catch-a2c-0: exit code 1: learner 1 (pid {lost.pid}) was killed" in err
    assert not psutil.wait_procs([*learners[0], *learners[1]], timeout=60)[1]
    states = [row["state"] for row in rows_of(folder / "results.csv")]
    assert states == ["failed", "stopped"]
    plan_an_end(folder)
    assert main(["sweep", f"resume={folder}", "slots=2"]) == 0
    assert [row["state"] for row in rows_of(folder / "results.csv")] == ["finished"] * 2


@pytest.mark.nightly
@pytest.mark.processes
def test_ctrl_c_saves_all_runs_leaves_nothing_and_resuming_finishes_them(tmp_path, capsys) -> None:
    folder = tmp_path / "sweep"
    options = ["seed=0,1,2", *ENDLESS, "checkpoint_interval=1e9", "slots=2"]
    with swept(folder, *options) as process:
        sweep = psutil.Process(process.pid)
        children = sweep.children(recursive=True)
        assert len(children) > 2  # the runs and their workers
        cpus = sorted(os.sched_getaffinity(0))
        half = max(1, len(cpus) // 2)
        runs = [run.cpu_affinity() for run in sweep.children()]
        assert sorted(runs) == [cpus[:half], cpus[-half:]]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=100)
    assert process.returncode == 130
    assert err == "stopped by SIGINT\n"
    assert not psutil.wait_procs(children, timeout=60)[1]
    assert f"go on with resume={folder}" in out
    states = {row["run"]: row["state"] for row in rows_of(folder / "results.csv")}
    assert list(states.values()) == ["stopped", "stopped", "waiting"]
    saved = [list_checkpoints(folder / "runs" / f"catch-a2c-{seed}") for seed in (0, 1)]
    assert all(saved) and not (folder / "runs" / "catch-a2c-2").exists()
    plan_an_end(folder)
    assert main(["sweep", f"resume={folder}", "part=1/2"]) == 0
    assert "goes on after" in (folder / "runs" / "catch-a2c-0" / "train.log").read_text()
    done = [is_finished(run, folder / "runs" / run.name) for run in read_plan(folder)]
    assert done == [True, False, True]  # the first part of two


@pytest.mark.processes
@pytest.mark.slow
def test_last_part_to_end_writes_the_results_of_all(tmp_path, monkeypatch, capsys) -> None:
    options = ["env=catch", "seed=0,1", *SHORT, f"sweep_dir={tmp_path / 'sweep'}"]
    work_off = command.work_off

    def while_another_part_works(*arguments: Any) -> None:
        monkeypatch.setattr(command, "work_off", work_off)
        assert main(["sweep", *options, "part=2/2"]) == 0
        work_off(*arguments)

    monkeypatch.setattr(command, "work_off", while_another_part_works)
    assert main(["sweep", *options, "part=1/2"]) == 0
    states = [row["state"] for row in rows_of(tmp_path / "sweep" / "results.csv")]
    assert states == ["finished", "finished"]


@pytest.mark.processes
@pytest.mark.slow
def test_killed_sweep_leaves_no_run_behind(tmp_path) -> None:
    with swept(tmp_path / "sweep", "seed=0,1", *ENDLESS, "slots=2") as process:
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) > 2  # the runs and their workers
        process.kill()
        process.communicate()
        left = psutil.wait_procs(children, timeout=60)[1]
        for each in left:
            each.kill()
    assert not left


@pytest.mark.parametrize("is_deaf", [False, True])
def test_run_that_does_not_stop_in_time_is_killed_and_named(
    is_deaf: bool, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(queue, "STOP_SECONDS", 0.0 if is_deaf else 60.0)
    monkeypatch.setattr(queue, "_Process", _Process)
    monkeypatch.setattr(_Process, "is_deaf", is_deaf)
    monkeypatch.setattr(_Process, "told", told := [])
    first, second = plan_runs({"env": "catch", "seed": "0,1"})
    jobs = queue.make_jobs([first, second], tmp_path, tmp_path)
    stop = StopRequest()

    def tell(job: queue.Job) -> None:
        told.append(job.state)
        stop.received = signal.SIGINT

    queue.work_off(jobs, [Slot((0,), ())], stop, tell, lambda: None)
    if is_deaf:
        assert told == ["running", "stop", "stopping", "kill", "failed"]
        assert jobs[0].error == "killed: it has not ended within 0 s of being stopped"
    else:
        assert told == ["running", "stop", "stopping", "close", "stopped"]
    assert jobs[1].state == "waiting"


class _Process:
    """The process of a run, which ends when it is asked to, or never."""

    is_deaf = False
    told: ClassVar[list[str]] = []

    def __init__(self, job: object, slot: object) -> None:
        pass

    def has_ended(self) -> bool:
        return "stop" in self.told and not self.is_deaf

    def ask_to_stop(self) -> None:
        self.told.append("stop")

    def kill(self) -> None:
        self.told.append("kill")

    def close(self) -> None:
        self.told.append("close")

    def outcome(self, was_asked: bool) -> tuple[str, str]:
        return ("stopped" if was_asked else "finished"), ""


@pytest.mark.nightly
@pytest.mark.processes
def test_sweep_grows_by_runs_and_steps(tmp_path, capsys) -> None:
    folder = tmp_path / "sweep"
    assert main(["sweep", "env=catch", "seed=0", *SHORT, f"sweep_dir={folder}"]) == 0
    assert main(["sweep", f"resume={folder}", "seed=0,1", "total_steps=320", "slots=2"]) == 0
    assert main(["sweep", f"resume={folder}"]) == 0
    assert "2 runs, 1 at a time; finished before: 2" in capsys.readouterr().out
    rows = rows_of(folder / "results.csv")
    assert [(row["run"], row["steps"]) for row in rows] == [
        (f"catch-a2c-{i}", "320") for i in (0, 1)
    ]
    log = (folder / "runs" / "catch-a2c-0" / "train.log").read_text()
    assert "goes on after 160 steps" in log
