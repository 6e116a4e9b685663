"""Learners in step: their updates are those of one learner with the whole batch."""

import contextlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from launched_runs import started
from learners_in_step import CASES, in_order, run
from shared_groups import in_all, make_groups
from tiers import PROCESSES, SLOW, slow

from accel_rl.models import make_model
from accel_rl.parallel import AllReduce, FlatParameters, Ranks, RMSProp, Team, rank_seed, read_ranks
from accel_rl.parallel.meeting import STORE_VARIABLE, MachineStore
from accel_rl.spaces import Leaf


def assert_as_alone(case: str, found: list[torch.Tensor]) -> None:
    expected = run(case, 0, 1)
    for each in found:
        assert torch.equal(each, found[0]), case
        torch.testing.assert_close(each, expected, rtol=1e-9, atol=1e-12, msg=case)


@pytest.mark.parametrize(
    ("case", "size"), [("a2c", 2), *(slow(case, 4 if "q" in case else 2) for case in [*CASES][1:])]
)
def test_learners_with_parts_of_a_batch_update_as_one_with_all_of_it(case, size, monkeypatch):
    monkeypatch.setattr(torch, "randperm", in_order)
    groups = make_groups(size)
    assert_as_alone(case, in_all(groups, lambda group, rank: run(case, rank, size, group)))
    for group in groups:
        group.close()


@SLOW
@PROCESSES
@pytest.mark.parametrize("machines", [1, 2])
def test_learners_in_processes_update_as_one_with_all_of_it(machines, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "randperm", in_order)
    store = MachineStore()
    script = str(Path(__file__).parents[1] / "helpers" / "learners_in_step.py")
    with contextlib.ExitStack() as stack:
        learners = []
        for rank in range(2):
            told = {"RANK": rank, "WORLD_SIZE": 2}
            told |= {"LOCAL_RANK": rank if machines == 1 else 0, "LOCAL_WORLD_SIZE": 2 // machines}
            told |= {STORE_VARIABLE: store.address, "GLOO_SOCKET_IFNAME": "lo"}
            environment = {**os.environ, **{name: str(value) for name, value in told.items()}}
            learners.append(stack.enter_context(started(script, str(tmp_path), env=environment)))
        assert [learner.wait(100) for learner in learners] == [0, 0]
    found = [torch.load(tmp_path / f"2_{rank}.pt") for rank in range(2)]
    for case in CASES:
        assert_as_alone(case, [each[case] for each in found])


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
    calls: list[int] = []
    group: Any = SimpleNamespace(
        size=1, sum_=lambda x: calls.append(x.numel()), broadcast_=lambda x: None
    )
    flat = FlatParameters(make_model("a3c", Leaf((4, 104, 80), np.dtype(np.uint8)), 4))
    sync = AllReduce(flat, RMSProp(decay=0.99, eps=1e-6, initial=0.0), 1.0, group)
    flat.gradient.fill_(1.0)
    sync.step(1e-3)  # clipped to a norm of 1
    assert float(sync.step(1e-3, torch.tensor(80.0))) == pytest.approx(1.0, rel=1e-3)
    whole = flat.gradient_and_more.numel()
    assert calls == [whole, whole] and whole >= 800_000
