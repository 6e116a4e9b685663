"""Runs and sweeps as jobs of Slurm, by submitit's local executor where it is installed."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from accel_rl.__main__ import main
from accel_rl.sweep.slurm import SlurmOptions, Task, plan_tasks
from accel_rl.system.extras import how_to_install

SMALL = ["env=catch", "serial=true", "num_envs=4", "decorrelation_steps=0"]
ON_CPUS = ["slurm.cluster=local", "slurm.folder=slurm"]


def arguments_of(task: Task) -> list[str]:
    command = task.command("node1", "1234_5")
    return command[command.index("accel_rl") + 1 :]


def test_run_over_nodes_is_started_by_torchrun_at_one_place_and_port(tmp_path: Path) -> None:
    run = ["algo=ppo", f"run_dir={tmp_path / 'run'}"]
    options, (task,) = plan_tasks([*run, "slurm.nodes=2", "slurm.gpus=8", "slurm.minutes=60"])
    command = shlex.join(task.command("node1", "1234"))
    assert options.minutes == 60
    assert command.startswith(f"{sys.executable} -m torch.distributed.run --nnodes=2 ")
    assert " --nproc-per-node=8 " in command and " --rdzv-endpoint=node1:21234 " in command
    assert command.endswith(f" -m accel_rl {shlex.join(run)}")


def test_run_goes_on_from_its_checkpoint_and_names_the_code_of_its_user(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    code = ["env=mine:Env", "model=mine:make"]
    task = Task([*code, "lr=1e-3", "trust=true", f"run_dir={run_dir}"], SlurmOptions())
    assert arguments_of(task) == task.arguments
    (run_dir / "checkpoints").mkdir(parents=True)
    (run_dir / "config.yaml").touch()
    begun = [*code, "lr=1e-3", "trust=true", f"run_dir={run_dir}+2"]
    assert arguments_of(task) == begun  # nothing to go on from, and nothing is deleted
    (run_dir / "checkpoints" / "steps_000000000100.pt").touch()
    assert arguments_of(task) == [f"resume={run_dir}", *code, "trust=true"]


def test_job_of_a_run_that_is_resumed_repeats_its_command() -> None:
    task = Task(["resume=runs/a", "total_steps=1e7", "env=mine:Env"], SlurmOptions())
    assert arguments_of(task) == task.arguments


def test_sweep_is_an_array_of_its_parts(tmp_path: Path) -> None:
    sweep = ["env=catch", "seed=0..3", f"sweep_dir={tmp_path}"]
    _, tasks = plan_tasks(["sweep", "slurm.jobs=3", *sweep])
    assert [arguments_of(task) for task in tasks] == [
        ["sweep", *sweep, f"part={number}/3"] for number in (1, 2, 3)
    ]


def test_sweep_in_one_job_goes_on_after_it_has_begun(tmp_path: Path) -> None:
    _, (task,) = plan_tasks(["sweep", "env=catch", "slots=2", f"sweep_dir={tmp_path}"])
    assert arguments_of(task)[-1] == "part=1/1"
    (tmp_path / "sweep.yaml").touch()
    assert arguments_of(task) == ["sweep", f"resume={tmp_path}", "slots=2"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["env=catch"], "run_dir is missing; give run_dir=PATH"),
        (["sweep", "env=catch"], "sweep_dir is missing; give sweep_dir=PATH"),
        (["env=catch", "run_dir=a", "slurm.jobs=2"], "slurm.jobs=2 is for sweeps"),
        (["sweep", "env=catch", "sweep_dir=a", "slurm.nodes=2"], "more jobs by slurm.jobs"),
        (["sweep", "env=catch", "sweep_dir=a", "part=1/2"], "part=1/2 is each job's own"),
        (["env=catch", "run_dir=a", "slurm.minutes=0"], "slurm.minutes is 0; it must be at least"),
        (["env=catch", "run_dir=a", "slurm.sbatch=qos"], "slurm.sbatch has 'qos'"),
        (["env=catch", "run_dir=a", "slurm.gpu=8"], "gpus"),
        (["algo=ppoo", "run_dir=a"], "ppo"),
        (["sweep", "env=catch", "sed=0..2", "sweep_dir=a"], "seed"),
    ],
)
def test_mistake_is_refused_before_a_job_is_submitted(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["slurm", *arguments]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1


def test_without_submitit_one_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert main(["slurm", "--dry", "env=catch", "run_dir=a"]) == 1
    error = capsys.readouterr().err
    assert "submitit" in error and how_to_install("slurm") in error and error.count("\n") == 1


def submitit() -> Any:
    return pytest.importorskip("submitit", reason=f"needs {how_to_install('slurm')}")


def test_dry_prints_the_file_for_sbatch_and_submits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    submitit()
    monkeypatch.chdir(tmp_path)
    options = ["slurm.gpus=4", "slurm.partition=fast", "slurm.sbatch=qos=high", "slurm.jobs=2"]
    assert main(["slurm", "sweep", "--dry", "env=catch", "seed=0..3", "sweep_dir=s", *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    for line in (
        "#SBATCH --array=0-1%2",
        "#SBATCH --gpus-per-node=4",
        "#SBATCH --partition=fast",
        "#SBATCH --qos=high",
        "#SBATCH --requeue",
        "#SBATCH --signal=USR2@120",
        "#SBATCH --time=1440",
    ):
        assert line in lines
    assert lines[-1].endswith("sweep env=catch seed=0..3 sweep_dir=s part=2/2")
    assert not list(tmp_path.glob("slurm/**/*.pkl")) and not (tmp_path / "s").exists()


def test_without_slurm_the_message_says_how_to_try_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    submitit()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    assert main(["slurm", "env=catch", "run_dir=a"]) == 1
    assert "slurm.cluster=local" in capsys.readouterr().err


@pytest.mark.learning
def test_preempted_run_saves_and_goes_on_with_the_code_of_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = submitit()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    # The first attempt cannot end before it is preempted: a step waits for that.
    (tmp_path / "waiting.py").write_text(
        "import pathlib, time\n"
        "from accel_rl.envs.catch import Catch\n"
        "class Waiting(Catch):\n"
        "    def step(self, action, *rest):\n"
        "        pathlib.Path('begun').touch()\n"
        "        while not pathlib.Path('go').exists():\n"
        "            time.sleep(0.01)\n"
        "        return super().step(action, *rest)\n"
    )
    run = ["env=waiting:Waiting", *SMALL[1:], "total_steps=2000", f"run_dir={tmp_path / 'run'}"]
    executor = module.AutoExecutor("slurm", "local")
    executor.update_parameters(timeout_min=5)
    job = executor.submit(Task(run, SlurmOptions(cluster="local")))
    while not (tmp_path / "begun").exists():
        assert not job.done(force_check=True), job.stderr()
        time.sleep(0.1)
    (worker,) = psutil.Process(int(job.job_id)).children()
    worker.send_signal(signal.SIGUSR2)
    while "asked to stop" not in job.stdout():
        time.sleep(0.1)
    (tmp_path / "go").touch()
    job.result()
    printed = job.stdout()
    assert f"resume={tmp_path / 'run'} env=waiting:Waiting" in printed
    assert "2,000 steps" in printed and "stopped by SIGTERM" in printed


@pytest.mark.learning
def test_sweep_in_two_local_jobs_does_all_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitit()
    monkeypatch.chdir(tmp_path)
    sweep = [*SMALL, "seed=0..1", "total_steps=80", "sweep_dir=sweep", "slots=1"]
    assert main(["slurm", "sweep", *ON_CPUS, "slurm.jobs=2", *sweep]) == 0
    assert (tmp_path / "sweep" / "results.csv").read_text().count("\n") == 3
