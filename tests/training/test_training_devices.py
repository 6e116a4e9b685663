"""Devices without a GPU: wrong ones, lost ones, and which runs record CUDA graphs."""

import dataclasses
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from saved_runs import undrawn
from torch.distributed import HashStore

from accel_rl.algos import A2CConfig
from accel_rl.cli.parse import parse_arguments
from accel_rl.config import TrainConfig
from accel_rl.graphs import Graphs
from accel_rl.parallel import Ranks, Team, TeamError
from accel_rl.samplers import ActionServer
from accel_rl.training.devices import (
    all_have_own_gpus,
    check_same_processors,
    graphs_of,
    make_graphs,
)
from accel_rl.training.train import RunError, train

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def make_config(tmp_path: Path) -> TrainConfig:
    run_dir = f"run_dir={tmp_path / 'run'}"
    return parse_arguments(
        ["env=catch", "num_workers=0", "total_steps=1000", "num_envs=4", run_dir]
    )


def lose_another(*_: object, **__: object) -> None:
    raise TeamError("lost touch with another learner")


@pytest.mark.parametrize("uses_nccl", [False, True])
def test_a_device_that_may_wait_for_a_lost_learner_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, uses_nccl: bool
) -> None:
    closed: list[ActionServer] = []
    monkeypatch.setattr("accel_rl.training.rollouts.RolloutRun.iterate", lose_another)
    monkeypatch.setattr(ActionServer, "close", lambda server: closed.append(server))
    team = Team(Ranks())
    team.uses_nccl = uses_nccl
    with undrawn(), pytest.raises(RunError, match="lost touch with another learner"):
        train(make_config(tmp_path), team=team)
    assert len(closed) == (0 if uses_nccl else 1)
    checkpoints = list((tmp_path / "run" / "checkpoints").glob("*.pt"))
    assert len(checkpoints) == (0 if uses_nccl else 1)


def test_a_gpu_that_fails_before_the_run_has_a_directory_gives_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried 20 GiB.\nSee the documentation")

    monkeypatch.setattr("accel_rl.training.train.build", fail)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    with pytest.raises(torch.OutOfMemoryError):
        train(make_config(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(RunError, match=r"^OutOfMemoryError: CUDA out of memory. Tried 20 GiB.$"):
        train(make_config(tmp_path))


def test_training_from_python_does_not_take_two_learners_for_one(tmp_path: Path) -> None:
    config = dataclasses.replace(make_config(tmp_path), learners=2)
    with pytest.raises(ValueError, match="2 learners are asked for, and this process is one of 1"):
        train(config)
    assert not (tmp_path / "run").exists()


def test_learners_in_step_need_processors_of_one_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, config = HashStore(), make_config(tmp_path)
    first, second, third = (Team(Ranks(rank, 3), store, 0.2) for rank in range(3))
    kind = zlib.crc32(torch.backends.cpu.get_cpu_capability().encode())
    for team in (second, third):
        team.reach("processor", 1, kind)
    check_same_processors(config, first)
    check_same_processors(config, second)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "VSX")
    with pytest.raises(ValueError, match=r"learner 2 computes on VSX, .* use sync=store"):
        check_same_processors(config, third)
    monkeypatch.undo()
    with pytest.raises(
        ValueError, match=r"learner 0 computes on .*, and learner 2 on another kind"
    ):
        check_same_processors(config, first)


@pytest.mark.parametrize(
    ("num_gpus", "agreed"),
    [((2, 2), True), ((1, 2), False), ((2, 1), False), ((0, 2), False), ((-2, 2), True)],
)
def test_nccl_is_for_learners_that_all_have_a_gpu_on_every_machine(
    num_gpus: tuple[int, int], agreed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two machines with two learners each, one thread for each learner.

    With -2 each learner of the machine sees one GPU of two, its own, as cluster managers have it.
    """
    store, config = HashStore(), make_config(tmp_path)
    machine = threading.local()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: machine.num_gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: machine.num_gpus)
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda index: SimpleNamespace(uuid=f"{machine.number} {machine.first + index}"),
    )

    def ask(rank: int) -> bool:
        machine.number = rank // 2
        machine.num_gpus, machine.first = num_gpus[rank // 2], 0
        if num_gpus[rank // 2] < 0:
            machine.num_gpus, machine.first = 1, rank % 2
        ranks = Ranks(rank, 4, local_rank=rank % 2, local_size=2)
        return all_have_own_gpus(config, Team(ranks, store, 5.0))

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(ask, range(4))) == [agreed] * 4


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["log_norms=true"], "log_norms=true.*use cuda_graphs=auto"),
        (["learners=2", "normalize_advantage=true"], "normalize_advantage=true of several"),
    ],
)
def test_options_that_exclude_graphs_are_named(arguments: list[str], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        parse_arguments([*arguments, "cuda_graphs=on"])
    assert make_graphs(parse_arguments(arguments), GPU) is None


@pytest.mark.parametrize("option", ["algo=dqn", "overlap=true", "algo=ga3c"])
def test_a_gpu_has_graphs_unless_they_are_off_and_a_cpu_never(option: str) -> None:
    for choice, is_required in (("auto", False), ("on", True)):
        graphs = make_graphs(parse_arguments([option, f"cuda_graphs={choice}"]), GPU)
        assert isinstance(graphs, Graphs) and graphs.is_required == is_required
    assert make_graphs(parse_arguments([option, "cuda_graphs=off"]), GPU) is None
    assert make_graphs(parse_arguments([option]), CPU) is None
    with pytest.raises(ValueError, match=r"cuda_graphs=on, .*on the CPU; use cuda_graphs=auto"):
        make_graphs(parse_arguments([option, "cuda_graphs=on"]), CPU)


class OwnNetwork(torch.nn.Module):
    pass


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnConfig(A2CConfig):
    make_learner = A2CConfig.make_learner


@pytest.mark.parametrize("own", [OwnNetwork, OwnConfig])
def test_classes_of_users_are_recorded_if_they_say_so_or_it_is_required(
    own: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = parse_arguments(["algo=a2c", "model=mine:make"])
    model = torch.nn.Linear(1, 1)
    if own is OwnNetwork:
        model = own()
    else:
        config = dataclasses.replace(config, learner=own(), model="mlp")
    maybe, required = (Graphs(GPU, is_required=each) for each in (False, True))
    assert graphs_of(config, model, maybe) is None
    assert graphs_of(config, model, required) is required
    monkeypatch.setattr(own, "is_recorded", True, raising=False)
    assert graphs_of(config, model, maybe) is maybe
