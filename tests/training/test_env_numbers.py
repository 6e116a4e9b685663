"""Numbers of environments: no two that live at the same time in a run have the same."""

from typing import Any

import numpy as np
import pytest
import torch
from batches import Walks
from saved_runs import quiet, trained
from tiers import SLOW
from torch import nn
from toy_envs import ToyEnv

from accel_rl.cli.parse import parse_arguments
from accel_rl.envs import Batched
from accel_rl.envs.batched import numbered
from accel_rl.parallel import Ranks
from accel_rl.samplers import SerialSampler
from accel_rl.tools.evaluate import EvaluateOptions, evaluate_run
from accel_rl.training.build import make_sampler, sampler_share

CPU = torch.device("cpu")
LIVING: set[int] = set()
MADE: list[int] = []


class Port(ToyEnv):
    """Takes the port of its number until it is closed."""

    def __init__(self, number: int) -> None:
        super().__init__()
        assert number not in LIVING, f"port {number} is in use"
        self.number = number
        LIVING.add(number)
        MADE.append(number)

    def close(self) -> None:
        LIVING.discard(self.number)


def make(env_index: int) -> Port:
    return Port(env_index)


class Network(nn.Module):
    def __init__(self, observation_shape: tuple[int, ...], num_actions: int) -> None:
        super().__init__()
        self.policy = nn.Linear(observation_shape[0], num_actions)
        self.value = nn.Linear(observation_shape[0], 1)

    def forward(self, x: torch.Tensor) -> Any:
        return self.policy(x.float()), self.value(x.float()).squeeze(1)


@pytest.fixture(autouse=True)
def nothing_lives() -> Any:
    LIVING.clear()
    MADE.clear()
    yield
    assert not LIVING


@SLOW
def test_training_evaluations_and_a_tried_network_have_environments_of_their_own(tmp_path) -> None:
    options = ["evaluation_interval=20", "evaluation_steps=3"]
    own = [f"env={__name__}:make", f"model={__name__}:Network", "num_envs=2"]
    run_dir = trained(tmp_path / "run", *own, *options)
    # Looked at twice, trained in, tried, and for each of two evaluations looked at and played in.
    assert MADE == [0, 0, 0, 1, 18, *(2, 2, 3, 4) * 2]
    MADE.clear()
    options = EvaluateOptions(num_steps=4, num_envs=2, num_workers=0)
    evaluate_run(run_dir, options, quiet())
    assert MADE == [0, 0, 1, 2]


@pytest.mark.parametrize(("sync", "numbers"), [("all_reduce", [4, 4, 5]), ("store", [8, 8, 9])])
def test_each_learner_numbers_on_from_those_before(sync: str, numbers: list[int]) -> None:
    options = [f"env={__name__}:make", "num_workers=0", "num_envs=8", "learners=4", "gpus=0"]
    config = parse_arguments(["algo=a2c", *options, f"sync={sync}"])
    MADE.clear()  # one was made to look at its observations
    ranks = Ranks(rank=2 if sync == "all_reduce" else 1, size=4)
    sampler = make_sampler(config, sampler_share(config, ranks), 0, CPU, ranks)
    sampler.close()
    assert MADE[:3] == numbers


def test_numbers_of_a_batch_begin_later_too() -> None:
    made = []

    def make_batch(n: int, first_index: int) -> Walks:
        made.append((n, first_index))
        return Walks(n)

    factory = numbered(Batched(make_batch, indexed=True), 7)
    with SerialSampler(factory, num_envs=4, horizon=1) as sampler:
        sampler.collect(lambda step: np.zeros(len(step.noise), np.int64))
    assert made == [(1, 7), (4, 7)]
    assert numbered(make, 0) is make
