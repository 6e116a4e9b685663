"""A second Q-learner on the replay of the first: what it learns from, and what it leaves alone."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_algos_measurements import ENV, B, T, make_batch

from accel_rl.algos import DQN, DQNConfig, make_agent, make_learner
from accel_rl.algos.two_learners import TwoLearners
from accel_rl.parallel import FlatParameters, Local

SMALL = {"batch_size": 8, "min_steps": 48, "replay_size": 600, "target_update_steps": 96}
CPU = torch.device("cpu")


def make_one(config: DQNConfig, seed: int = 0) -> tuple[DQN, Any, Local]:
    torch.manual_seed(0)
    agent = make_agent(config, "auto", ENV, CPU)
    exchange = Local(FlatParameters(agent.model), config.rule, config.max_gradient_norm)
    learner = make_learner(config, agent, exchange, ENV, B, T, seed)
    assert isinstance(learner, DQN)
    return learner, agent, exchange


def make_two(config: DQNConfig, seed: int = 5) -> tuple[TwoLearners, Local, Local]:
    first, agent, exchange = make_one(config)
    second = copy.deepcopy(agent)
    rule = config.secondary.rule
    second_exchange = Local(FlatParameters(second.model), rule, config.max_gradient_norm)
    return TwoLearners(first, second, second_exchange, seed), exchange, second_exchange


@pytest.mark.parametrize(
    "options",
    [
        {"secondary_batch_size": 20, "secondary_lr": 1e-3},
        {"secondary_batch_size": 3, "num_atoms": 11, "optimizer": "adam", "double": True},
        {},
    ],
    ids=["larger", "smaller-categorical-adam", "equal"],
)
def test_second_learner_is_one_of_its_own_settings_trained_alone_on_the_same_steps(
    options: dict[str, Any],
) -> None:
    config = DQNConfig(**SMALL, n_step=3, secondary_learner=True, **options)
    learner, _, second = make_two(config, seed=5)
    own = {
        "batch_size": options.get("secondary_batch_size", 8),
        "lr": options.get("secondary_lr", config.lr),
    }
    alone, _, expected = make_one(
        replace(config, secondary_learner=False, **own),  # type: ignore[arg-type]
        seed=5,
    )
    assert torch.equal(second.parameters.parameter, expected.parameters.parameter)
    for seed in range(12):
        found, metrics = learner.update(make_batch(seed), 0.2), alone.update(make_batch(seed), 0.2)
        assert all(
            torch.equal(found[f"secondary_{name}"], value)
            for name, value in metrics.items()
            if name != "epsilon"
        )
    assert second.num_updates == expected.num_updates > 10
    assert torch.equal(second.parameters.parameter, expected.parameters.parameter)
    assert torch.equal(learner.second._target.parameter, alone._target.parameter)


@pytest.mark.parametrize("batch_size", [20, 100, 3])
def test_both_consume_data_at_the_same_rate_also_where_batches_do_not_divide(
    batch_size: int,
) -> None:
    config = DQNConfig(**SMALL, secondary_learner=True, secondary_batch_size=batch_size)
    learner, first, second = make_two(config)
    for iteration in range(1, 25):
        metrics = learner.update(make_batch(iteration), progress=0.0)
        learning_steps = max(0, iteration * T * B - 48)
        assert first.num_updates == learning_steps * 8 // 8
        assert second.num_updates == learning_steps * 8 // batch_size
        assert set(metrics) <= set(learner.metric_names)


@pytest.mark.parametrize("prioritized", [False, True])
def test_first_learner_is_the_same_to_the_bit_as_without_the_second(prioritized: bool) -> None:
    config = DQNConfig(**SMALL, prioritized=prioritized, secondary_learner=True, secondary_lr=0.01)
    learner, first, second = make_two(config)
    alone, _, expected = make_one(replace(config, secondary_learner=False, secondary_lr=None))
    for seed in range(10):
        found, metrics = learner.update(make_batch(seed), 0.2), alone.update(make_batch(seed), 0.2)
        assert all(torch.equal(found[name], value) for name, value in metrics.items())
    assert torch.equal(first.parameters.parameter, expected.parameters.parameter)
    assert not torch.equal(first.parameters.parameter, second.parameters.parameter)
    if prioritized:
        assert learner.first._priorities is not None and alone._priorities is not None
        leaves = [x._priorities.get_state()["leaves"] for x in (learner.first, alone)]  # type: ignore[union-attr]
        assert torch.equal(*leaves)


@pytest.mark.parametrize("save_replay", [True, False])
def test_both_go_on_from_a_state_to_the_bit(save_replay: bool) -> None:
    config = DQNConfig(
        **SMALL,
        save_replay=save_replay,
        prioritized=True,
        secondary_learner=True,
        secondary_batch_size=20,
        log_norms=True,
    )
    learner, exchange, second = make_two(config)
    for seed in range(6):
        learner.update(make_batch(seed), progress=0.1)
    state = copy.deepcopy(learner.get_state())
    assert "replay" not in state["secondary"]["algorithm"]
    other, other_exchange, other_second = make_two(config)
    other.set_state(state)
    other_exchange.load_state_dict(exchange.state_dict())
    other_second.load_state_dict(state["secondary"]["learner"])
    if not save_replay:
        assert other.update(make_batch(0), 0.0) == other.update(make_batch(1), 0.0) == {}
        assert "secondary_loss" in other.update(make_batch(2), 0.0)
        return
    for seed in range(6, 12):
        one, two = learner.update(make_batch(seed), 0.2), other.update(make_batch(seed), 0.2)
        assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
    assert torch.equal(exchange.parameters.parameter, other_exchange.parameters.parameter)
    assert torch.equal(second.parameters.parameter, other_second.parameters.parameter)


def test_adams_epsilon_follows_the_batch_of_each() -> None:
    config = DQNConfig(optimizer="adam", secondary_learner=True, secondary_batch_size=512)
    assert getattr(config.rule, "eps", None) == pytest.approx(0.01 / 32)
    assert getattr(config.secondary.rule, "eps", None) == pytest.approx(0.01 / 512)
