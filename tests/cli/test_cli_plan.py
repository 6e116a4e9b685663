"""``--plan``: who would run where, for this machine and for a made-up one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from accel_rl.cli.plan import describe_plan
from accel_rl.cli.run import run
from accel_rl.config import TrainConfig
from accel_rl.parallel import ParallelConfig
from accel_rl.samplers import SamplerConfig
from accel_rl.system.topology import Core, Machine
from accel_rl.training import devices

# Two sockets of 20 cores, two hyperthreads each, as in the paper's machine.
DGX = Machine(tuple(Core((c, c + 40), c // 20) for c in range(40)))


def test_node_of_a_learner_is_that_of_the_gpu_that_it_shares(monkeypatch) -> None:
    monkeypatch.setattr(devices, "_node", lambda index: index)
    assert devices.gpu_nodes(6, 3) == [0, 1, 2, 0, 1, 2]


def test_plan_of_the_papers_machine_gives_each_gpu_five_cores() -> None:
    config = TrainConfig(
        env="catch", gpus=8, learners=8, sampler=SamplerConfig(num_envs=64, horizon=5)
    )
    nodes = [0, 0, 0, 0, 1, 1, 1, 1]
    lines = list(describe_plan(config, machine=DGX, num_gpus=8, nodes=nodes))
    assert lines[0].endswith("of 40 cores on NUMA node 0-1, no quota")
    assert lines[1] == (
        "learner 0 on cuda:0: 8 x catch, 4 workers on CPUs 1,41 | 2,42 | 3,43 | 4,44; "
        "server on CPUs 0,40"
    )
    assert lines[8].startswith("learner 7 on cuda:7") and "server on CPUs 35,75" in lines[8]


def test_plan_of_more_learners_than_cores_puts_several_on_each() -> None:
    config = TrainConfig(
        env="catch",
        learners=4,
        sampler=SamplerConfig(num_envs=8, horizon=5),
        parallel=ParallelConfig(sync="store"),
    )
    two_cores = Machine((Core((0,)), Core((1,))))
    plan = describe_plan(config, machine=two_cores, num_gpus=0)
    text = "\n".join(plan)
    assert "learner 3 on the CPU: 8 x catch, 1 worker on CPUs 1; server on CPUs 1" in text


@pytest.mark.slow
@pytest.mark.processes
def test_plan_option_prints_without_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["--plan", "env=catch", "learners=2"]) == 0
    said = capfd.readouterr().out
    assert "learner 1 on" in said
    assert re.search(r"measured here for a second: \d[\d,]* steps/s .*one learner's", said)
    assert re.search(r"memory .*: \d+\.\d GB without learning; \d+\.\d GB free", said)
    assert list(tmp_path.iterdir()) == []


def test_plan_option_under_torchrun_or_with_wrong_options_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--plan", "env=catch", "gpus=9"]) == 1
    assert capsys.readouterr().err.startswith("error: gpus=9")
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "0")
    assert run(["--plan", "env=catch"]) == 1
    assert "learners=N" in capsys.readouterr().err
