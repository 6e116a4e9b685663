"""Parameters that are taken over from the store within a rollout; generators across devices."""

import contextlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from accel_rl.algos.learner import restore
from accel_rl.parallel import (
    Adam,
    FlatParameters,
    MultiStepAdam,
    StoreSync,
    create_store,
)
from accel_rl.samplers import ActionServer, PolicyInput
from accel_rl.system.stopping import StopRequest
from accel_rl.training.rollouts import PullingServer, RolloutRun


class GradientSync:
    """Each pull makes the parameters larger by one."""

    def __init__(self) -> None:
        self.parameters = FlatParameters(torch.nn.Linear(1, 1))
        self.parameters.parameter.zero_()

    def pull(self) -> None:
        self.parameters.parameter.add_(1)


@pytest.mark.parametrize("has_ratios", [True, False])
def test_parameters_are_pulled_within_a_rollout_and_with_ratios_before_learning(
    has_ratios: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync: Any = GradientSync()
    parameter = sync.parameters.parameter
    monkeypatch.setattr(ActionServer, "__call__", lambda server, step: float(parameter[0]))
    monkeypatch.setattr(ActionServer, "finish", lambda server: None)
    server = object.__new__(PullingServer)
    server.pull_from(sync, 2, learns_newest=has_ratios)
    is_first, reward = np.ones(1, bool), np.zeros(1, np.float32)
    acted = [
        server(PolicyInput(np.zeros(1), np.zeros(1), t, slice(start, start + 1), is_first, reward))
        for t in range(5)
        for start in (0, 1)
    ]
    assert acted == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    server.finish()
    assert parameter[0] == (3 if has_ratios else 2)


def test_generator_of_another_device_goes_on_by_all_of_its_state() -> None:
    state = torch.zeros(16, dtype=torch.uint8)
    moved = state.clone()
    moved[-1] = 1
    drawn = []
    for saved in (state, moved, state):
        generator = torch.Generator()
        restore(generator, saved)
        drawn.append(torch.rand(4, generator=generator).tolist())
    assert drawn[0] == drawn[2] != drawn[1]


@pytest.mark.parametrize("sync_period", [1, 3])
def test_evaluation_makes_no_push_old(sync_period: int) -> None:
    """Neither the next one, nor that of steps that the store has not yet seen."""
    first, second = (FlatParameters(torch.nn.Linear(3, 2)) for _ in range(2))
    rule = Adam(eps=1e-5)

    def others_go_on(*_: Any) -> None:
        for _ in range(50):
            other.step(lr=0.01)

    with contextlib.closing(create_store(first, rule, 2)) as store:
        own: StoreSync = MultiStepAdam(first, store, rule, None, sync_period)
        other = StoreSync(second, store, rule, None)
        run: Any = object.__new__(RolloutRun)
        run.records = SimpleNamespace(steps=100, evaluate=others_go_on)
        run.evaluator = SimpleNamespace(is_due=lambda steps: True)
        run.sync, run.stop = own, StopRequest()
        run.team = SimpleNamespace(ranks=SimpleNamespace(size=2))
        run.config = SimpleNamespace(parallel=SimpleNamespace(sync="store"))
        own.step(lr=0.01)
        run.evaluate_if_due()
        for _ in range(sync_period):
            own.step(lr=0.01)
    assert own.take_metrics()["push_lag_max"] == 0
    assert other.take_metrics()["push_lag_max"] == 1
