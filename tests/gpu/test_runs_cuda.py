"""Whole runs on a GPU: resumed there and on the CPU; learners with a GPU each."""

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from accel_rl.__main__ import main

pytestmark = pytest.mark.timeout(400)
IS_EMULATED = "EMULATED_GPU" in os.environ
RAINBOW = ["algo=rainbow", "model=mlp", "buffer_size=4000", "learning_starts=1000", "batch_size=32"]


def last_row(run_dir: Path) -> dict[str, str]:
    with (run_dir / "metrics.csv").open() as file:
        return list(csv.DictReader(file))[-1]


@pytest.mark.parametrize(
    "options",
    [
        ["algo=ppo", "num_envs=8", "overlap=true"],
        ["algo=pqn", "num_envs=8", "memory=gru", "learner.precision=bfloat16"],
        [*RAINBOW, "save_replay=true"],
    ],
    ids=["ppo", "pqn", "rainbow"],
)
def test_a_run_goes_on_on_the_gpu_and_then_on_the_cpu(options: list[str], tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    begins = [*options, "env=catch", "device=cuda", "log_interval=500", f"run_dir={run_dir}"]
    goes_on = [f"resume={run_dir}", "device=cuda"]
    on_cpu = [f"resume={run_dir}", "device=cpu"]
    for arguments, steps in ((begins, 1500), (goes_on, 3000), (on_cpu, 4500)):
        assert main(["train", *arguments, f"total_steps={steps}"]) == 0
        row = last_row(run_dir)
        assert int(row["steps"]) >= steps and float(row["gradient_norm"]) > 0
        assert (float(row["gpu_memory_bytes"]) > 0) == ("device=cuda" in arguments)


@pytest.mark.parametrize("algo", ["a2c", "ppo", "pqn", "cat_dqn"])
def test_atari_runs_of_presets_are_recorded(algo: str, tmp_path: Path) -> None:
    """With `cuda_graphs=on`, what cannot be recorded is an error."""
    pytest.importorskip("ale_py")
    if IS_EMULATED and algo in ("ppo", "pqn"):
        pytest.skip("takes a minute on the emulated GPU, which has no libraries that refuse")
    options = [f"algo={algo}", "env=breakout", "device=cuda", "cuda_graphs=on", "num_envs=4"]
    options += ["total_steps=640", "log_interval=320", "evaluation_interval=0"]
    if algo == "cat_dqn":
        options += [
            "learning_starts=400",
            "buffer_size=2000",
            "batch_size=8",
            "training_intensity=1",
        ]
    else:
        options.append("horizon=16")
    options += ["minibatch_size=16"] * (algo in ("ppo", "pqn"))
    options += ["sampler.decorrelation_steps=0", f"run_dir={tmp_path / 'run'}"]
    assert main(["train", *options]) == 0
    assert float(last_row(tmp_path / "run")["gradient_norm"]) > 0


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_learners_with_a_gpu_each(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    options = [*RAINBOW, "env=catch", "gpus=2", "total_steps=1600", f"run_dir={run_dir}"]
    command = [sys.executable, "-m", "accel_rl", "train", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert int(last_row(run_dir)["steps"]) >= 1600
    log = (run_dir / "train.log").read_text()
    assert re.search(r"learners 16 samples an update, .*; batch_size=512 num_envs=\d+ uses", log)
