"""The speed model against cases worked by hand; plans for this machine and for a made-up one."""

from __future__ import annotations

import math

import pytest

from accel_rl.cli.parse import parse_arguments
from benchmarks.scaling.speed_model import Costs, Shape, all_reduce_seconds, predict
from benchmarks.scaling.speed_parts import Measured, alone


@pytest.mark.parametrize(
    ("costs", "shape", "sampling"),
    [
        # 8 environments on 4 cores: 2 groups of one each, S = 2 * 1 s; the device needs 2 * 0.5.
        (Costs(1.0, 0.5, 0.0), Shape(8, 5, 2, 4, True), 5 * 2.0),
        # The device is the slower one: 2 * 3 s, against S = 2.
        (Costs(1.0, 3.0, 0.0), Shape(8, 5, 2, 4, True), 5 * 6.0),
        # One group hides nothing: 2 * 1 s + 0.5.
        (Costs(1.0, 0.5, 0.0), Shape(8, 5, 1, 4, True), 5 * 2.5),
        # On the same 4 cores: (8 * 1 + 2 * 2) / 4 = 3, but two batches after each other take 4 s.
        (Costs(1.0, 2.0, 0.0), Shape(8, 5, 2, 4, False), 5 * 4.0),
        # On 2 cores: (8 * 1 + 2 * 0.5) / 2.
        (Costs(1.0, 0.5, 0.0), Shape(8, 5, 2, 2, False), 5 * 4.5),
        # Half a core: (8 + 1) / 0.5.
        (Costs(1.0, 0.5, 0.0), Shape(8, 5, 2, 0.5, False), 5 * 18.0),
        # Groups of 8 on 3 cores: the busiest worker has 3 of each, not 8/3.
        (Costs(1.0, 0.0, 0.0), Shape(16, 1, 2, 3, True), 6.0),
        # More cores than environments of a group help nothing.
        (Costs(1.0, 0.0, 0.0), Shape(4, 1, 2, 40, True), 2.0),
    ],
    ids=["hidden", "device", "one group", "latency", "shared", "half", "uneven", "many cores"],
)
def test_sampling_time_is_that_worked_by_hand(costs: Costs, shape: Shape, sampling: float) -> None:
    speed = predict(costs, shape)
    assert speed.sampling == pytest.approx(sampling)
    steps = shape.num_envs * shape.horizon
    assert speed.sampling_steps_per_second == pytest.approx(steps / sampling)


@pytest.mark.parametrize(
    ("costs", "shape", "iteration"),
    [
        # Sampling takes 5 * 2 s, the rest 3 + 1 s, or 30 + 1.
        (Costs(1.0, 0.5, 3.0, 1.0), Shape(8, 5, 2, 4, True, overlaps=True), 10.0),
        (Costs(1.0, 0.5, 30.0, 1.0), Shape(8, 5, 2, 4, True, overlaps=True), 31.0),
        (Costs(1.0, 0.5, 3.0, 1.0), Shape(8, 5, 2, 4, True), 14.0),
        # Sampling takes 5 * 4 s, of which the 4 cores work 5 * (8 + 2 * 2) / 4; the update works 7.
        (Costs(1.0, 2.0, 7.0, 1.0), Shape(8, 5, 2, 4, False, overlaps=True), 22.0),
        (Costs(1.0, 2.0, 3.0, 1.0), Shape(8, 5, 2, 4, False, overlaps=True), 20.0),
    ],
    ids=["sampling", "learning", "in turns", "shared cores", "idle cores"],
)
def test_iteration_that_overlaps_is_that_worked_by_hand(
    costs: Costs, shape: Shape, iteration: float
) -> None:
    speed = predict(costs, shape)
    assert speed.iteration == pytest.approx(iteration)
    assert speed.steps_per_second == pytest.approx(shape.num_envs * shape.horizon / iteration)


def test_iteration_adds_update_and_exchange() -> None:
    # 10 s of sampling, 3 of update, 2 of exchange: 4 learners make 4 * 40 steps in 15 s.
    speed = predict(Costs(1.0, 0.5, 3.0, 2.0), Shape(8, 5, 2, 4, True), num_learners=4)
    assert speed.iteration == pytest.approx(15.0)
    assert speed.steps_per_second == pytest.approx(160 / 15)


def test_update_on_less_than_a_core_takes_longer_unless_it_has_a_device() -> None:
    costs = Costs(1.0, 0.5, 3.0)
    assert predict(costs, Shape(8, 5, 2, 0.5, False)).update == pytest.approx(6.0)
    assert predict(costs, Shape(8, 5, 2, 0.5, True)).update == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("num_learners", "cores", "expected"),
    [(2, 2, 1.0), (4, 4, 1.5), (8, 40, 1.75), (4, 2, 3.0), (8, math.inf, 1.75)],
)
def test_all_reduce_of_a_ring(num_learners: int, cores: float, expected: float) -> None:
    assert all_reduce_seconds(1.0, num_learners, cores) == pytest.approx(expected)


def test_costs_of_several_learners_have_their_exchange() -> None:
    measured = Measured(1.0, 2.0, 3.0, 0.0, 16.0, 4, 0.5)
    assert measured.costs(1, 2) == Costs(1.0, 2.0, 3.0, 0.0)
    assert measured.costs(2, 2) == Costs(1.0, 2.0, 3.0, 16 * 0.5)
    assert measured._replace(pushes=0.25).costs(2, 2).exchange == 0.25


@pytest.mark.parametrize("algo", ["a2c", "a3c", "ppo", "dqn", "r2d2"])
def test_alone_a_learner_has_its_share_of_everything(algo: str) -> None:
    config = parse_arguments([f"algo={algo}", "learners=2"])
    own = alone(config, 2, frame_stack=4)
    divisor = 1 if config.parallel.sync == "store" else 2
    assert own.sampler.num_envs == config.sampler.num_envs // divisor
    assert own.num_learners == 1 and own.sampler.num_workers == 0
    for name in ("batch_size", "minibatch_size"):
        if hasattr(config.learner, name):
            assert getattr(own.learner, name) == getattr(config.learner, name) // divisor
