"""Parameters that are taken over from the store within a rollout; generators across devices."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from accel_rl.algos import PPO
from accel_rl.algos.behaviour import Behaviour
from accel_rl.algos.generator import restore
from accel_rl.parallel import FlatParameters
from accel_rl.samplers import PolicyInput
from accel_rl.training.exchanges import PullingServer


class Exchange:
    """Each pull makes the parameters larger by one."""

    def __init__(self) -> None:
        self.parameters = FlatParameters(torch.nn.Linear(1, 1))
        self.parameters.parameter.zero_()

    def pull(self) -> None:
        self.parameters.parameter.add_(1)


class Server:
    """Acts with the first parameter, and hands over a rollout of five rows."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange

    def __call__(self, step: PolicyInput) -> float:
        return float(self.exchange.parameters.parameter[0])

    def finish(self) -> Any:
        return SimpleNamespace(action=torch.zeros(5, 2))


@pytest.mark.parametrize("is_ppo", [True, False])
def test_rows_are_worked_on_by_the_parameters_that_acted_and_ppo_learns_with_the_newest(
    is_ppo: bool,
) -> None:
    exchange = Exchange()
    parameter = exchange.parameters.parameter
    learner = object.__new__(PPO) if is_ppo else SimpleNamespace()
    learner.behaviour = Behaviour(exchange.parameters)
    server = PullingServer(Server(exchange), exchange, learner, pull_steps=2)
    acted = [
        server(PolicyInput(np.zeros(1), np.zeros(1), t, slice(start, start + 1)))
        for t in range(5)
        for start in (0, 1)
    ]
    assert acted == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    server.finish()
    assert parameter[0] == (3 if is_ppo else 2)
    if is_ppo:
        by_row = {
            t: float(parameter[0])
            for rows in learner.behaviour.segments(5)
            for t in range(rows.start, rows.stop)
        }
        assert by_row == {0: 0, 1: 0, 2: 1, 3: 1, 4: 2}
        assert parameter[0] == 3


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
