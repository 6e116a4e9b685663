"""Learners in step: their updates are those of one learner with the whole batch."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from learners_in_step import run
from torch.distributed import TCPStore

from accel_rl.models import make_model
from accel_rl.parallel import (
    AllReduce,
    FlatParameters,
    Ranks,
    RMSProp,
    Team,
    rank_seed,
    read_ranks,
)
from accel_rl.parallel.meeting import STORE_VARIABLE


@pytest.mark.parametrize(("size", "machines"), [(2, 1), (4, 1), (2, 2)])
def test_learners_with_parts_of_a_batch_update_as_one_with_all_of_it(
    size: int, machines: int, tmp_path: Path
) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    script = Path(__file__).parents[1] / "helpers" / "learners_in_step.py"
    learners = []
    for rank in range(size):
        local = size // machines
        told = {"RANK": rank, "WORLD_SIZE": size}
        told |= {"LOCAL_RANK": rank % local, "LOCAL_WORLD_SIZE": local}
        told |= {STORE_VARIABLE: f"127.0.0.1:{store.port}", "GLOO_SOCKET_IFNAME": "lo"}
        environment = {**os.environ, **{name: str(value) for name, value in told.items()}}
        learners.append(subprocess.Popen([sys.executable, script, tmp_path], env=environment))
    try:
        assert [learner.wait(timeout=100) for learner in learners] == [0] * size
    finally:
        for learner in learners:  # too slow: none may be left for the tests that follow
            learner.kill()
            learner.wait()
    expected = run(0, 1)
    for rank in range(size):
        found = torch.load(tmp_path / f"{size}_{rank}.pt")
        first = torch.load(tmp_path / f"{size}_0.pt")
        for name, numbers in found.items():
            assert torch.equal(numbers, first[name]), f"{name}: learner {rank} has others"
            torch.testing.assert_close(numbers, expected[name], rtol=1e-9, atol=1e-12)


def test_ranks_are_read_from_torchruns_variables() -> None:
    told = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert read_ranks(told) == Ranks(3, 4, 1, 2)
    assert read_ranks({}) == read_ranks({"WORLD_SIZE": "1", "RANK": "0"}) == Ranks()
    assert read_ranks(dict.fromkeys(told, "")) == Ranks()  # as scripts leave what they do not set
    with pytest.raises(ValueError, match="ranks must be below sizes"):
        read_ranks(told | {"RANK": "4"})


def test_seeds_of_learners_differ_and_the_first_ones_is_the_runs() -> None:
    seeds = [rank_seed(seed, rank) for seed in range(50) for rank in range(50)]
    assert len(set(seeds)) == 2_500
    assert rank_seed(7, 0) == 7 and 0 <= min(seeds) and max(seeds) < 2**63


def test_a_team_of_one_waits_for_nobody() -> None:
    team = Team(Ranks())
    team.meet("start")
    assert team.share("config", {"a": 1}) == {"a": 1}
    assert team.largest(3) == 3 and team.read(waits=True) == {}


def test_a_gradient_of_a3c_net_is_one_all_reduce() -> None:
    calls = []

    class Counting:
        size = 1

        def sum_(self, x: torch.Tensor) -> None:
            calls.append(x.numel())

        def maximum_(self, x: torch.Tensor) -> None:
            raise AssertionError

        def broadcast_(self, x: torch.Tensor) -> None:
            assert not calls

        def close(self) -> None:
            raise AssertionError

    flat = FlatParameters(make_model("a3c", (4, 104, 80), np.dtype(np.uint8), 4))
    exchange = AllReduce(flat, RMSProp(decay=0.99, eps=1e-6, initial=0.0), 1.0, Counting())
    exchange.step(1e-3)
    exchange.step(1e-3, torch.tensor(80.0))
    whole = flat.gradient_and_more.numel()
    assert calls == [whole, whole] and whole >= 800_000
