"""Several learners on one GPU, and all-reduce through NCCL."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from accel_rl.parallel import Adam, AllReduce, FlatParameters, Local, TorchGroup

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_all_reduce_of_one_learner_through_nccl_is_the_local_rule() -> None:
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    try:
        found = []
        for group in (None, TorchGroup()):
            torch.manual_seed(0)
            flat = FlatParameters(nn.Linear(300, 20).cuda())
            arguments = flat, Adam(eps=1e-5), 0.5
            exchange = Local(*arguments) if group is None else AllReduce(*arguments, group)
            for _ in range(5):
                flat.gradient.copy_(torch.randn(len(flat.gradient)))
                exchange.step(1e-3, torch.tensor(7.0, device="cuda"))
            found.append(flat.parameter.cpu())
        torch.testing.assert_close(*found, rtol=1e-6, atol=1e-7)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("options", [["algo=a2c"], ["algo=a3c"], ["algo=appo", "horizon=128"]])
def test_two_learners_share_one_gpu(options: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    arguments = [*options, "env=catch", "gpus=1", "learners=2", "total_steps=4000"]
    arguments += ["log_interval=1000", f"run_dir={run}"]
    done = subprocess.run(
        [sys.executable, "-m", "accel_rl", *arguments], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    assert "parameters on cuda:0" in (run / "train.log").read_text()
    with (run / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert int(rows[-1]["steps"]) >= 4000 and float(rows[0]["gradient_norm"]) > 0
