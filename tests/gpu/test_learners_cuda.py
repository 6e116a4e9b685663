"""Several learners on one GPU, and all-reduce through NCCL."""

import csv
import mmap
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from accel_rl.parallel import (
    Adam,
    AllReduce,
    FlatParameters,
    Local,
    SharedGroup,
    TorchGroup,
    shared_group,
)
from accel_rl.parallel.meeting import MachineStore
from accel_rl.system.registration import register, unregister


@pytest.mark.parametrize("is_as_in_runs", [False, True])
def test_all_reduce_of_one_learner_through_nccl_is_the_local_rule(is_as_in_runs: bool) -> None:
    store: dist.Store = dist.HashStore()
    machine = MachineStore()
    if is_as_in_runs:  # with gloo for the CPU, over a store as the launcher's
        store = dist.PrefixStore("group", machine)
    backend = "cpu:gloo,cuda:nccl" if is_as_in_runs else "nccl"
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        found = []
        for group in (None, TorchGroup()):
            torch.manual_seed(0)
            flat = FlatParameters(nn.Linear(300, 20).cuda())
            arguments = flat, Adam(eps=1e-5), 0.5
            sync = Local(*arguments) if group is None else AllReduce(*arguments, group)
            for _ in range(5):
                flat.gradient.copy_(torch.randn(len(flat.gradient)))
                sync.step(1e-3, torch.tensor(7.0, device="cuda"))
            found.append(flat.parameter.cpu())
        torch.testing.assert_close(*found, rtol=1e-6, atol=1e-7)
    finally:
        dist.destroy_process_group()


def reduced(device: str) -> list[torch.Tensor]:
    """What two learners, threads here, have after sums of a short and a long tensor."""
    groups = [SharedGroup(rank, 2, timeout_seconds=30.0) for rank in range(2)]
    for group in groups:
        group.connect([each.address for each in groups])

    def reduce(group: SharedGroup, rank: int) -> list[torch.Tensor]:
        found = []
        for size in (100, 5_000, 300):
            x = torch.arange(size, device=device, dtype=torch.float32) * (rank + 1)
            for _ in range(3):
                group.sum_(x)
            group.broadcast_(x)
            found.append(x.cpu())
        return found

    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(reduce, groups, range(2)))
    for group in groups:
        group.close()
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    return found[0]


@pytest.mark.parametrize("can_register", [True, False])
def test_memory_of_learners_that_share_a_gpu_is_registered_where_that_can_be(
    can_register: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anew for the larger tensor; and without it copies give the same."""
    sizes: list[int] = []

    def note(memory: torch.Tensor, device: torch.device) -> bool:
        assert memory.data_ptr() % mmap.PAGESIZE == memory.nbytes % mmap.PAGESIZE == 0
        is_registered = can_register and register(memory, device)
        assert memory.is_pinned() == is_registered
        sizes.append(memory.nbytes if is_registered else 0)
        return is_registered

    def note_end(memory: torch.Tensor) -> None:
        sizes.append(-memory.nbytes)
        unregister(memory)

    monkeypatch.setattr(shared_group, "register", note)
    monkeypatch.setattr(shared_group, "unregister", note_end)
    torch.empty(1, pin_memory=True)  # from here on an emulated GPU tells what is pinned
    expected = reduced("cpu")
    assert not sizes
    torch.testing.assert_close(reduced("cuda"), expected, rtol=0, atol=0)
    assert len(sizes) == (8 if can_register else 4) and sum(sizes) == 0


@pytest.mark.parametrize("options", [["algo=a2c"], ["algo=appo", "horizon=128"]])
def test_two_learners_share_one_gpu(options: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    arguments = [*options, "env=catch", "gpus=1", "learners=2", "total_steps=4000"]
    arguments += ["log_interval=1000", f"run_dir={run}"]
    done = subprocess.run(
        [sys.executable, "-m", "accel_rl", "train", *arguments],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"GPU: .* GB of memory; \d+ graphs, in", (run / "train.log").read_text())
    with (run / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert int(rows[-1]["steps"]) >= 4000 and float(rows[0]["gradient_norm"]) > 0
