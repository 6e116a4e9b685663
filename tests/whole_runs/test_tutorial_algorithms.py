"""The algorithms of docs/your_algorithm.md, with every kind of space, and the example TD3."""

from __future__ import annotations

import copy
import importlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from documents import import_programs
from launched_runs import last_checkpoint, same_tensors
from made_rollouts import made_rollout
from run_files import rows_of
from saved_runs import quiet, undrawn
from torch import Tensor

from accel_rl.agents import RolloutTensors
from accel_rl.algos import DQNConfig, LearnerSpec, NetworkSpec, PPOConfig
from accel_rl.cli.parse import parse_arguments
from accel_rl.config import TrainConfig
from accel_rl.envs.base import EnvSpec
from accel_rl.parallel import FlatParameters, Local
from accel_rl.samplers import SamplerConfig
from accel_rl.spaces import Leaf
from accel_rl.training.train import train

SPACES = {
    "floats": ("env=Pendulum-v1",),
    "mappings": ("env=control_envs:Aim",),
    "mask": ("env=control_envs:MaskedGrid",),
    "memory": ("env=Pendulum-v1", "memory=lstm"),
}
SHORT = ("num_workers=0", "num_envs=4", "horizon=16", "log_interval=64", "decorrelation_steps=0")


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules of the page can be imported."""
    import_programs("docs/your_algorithm.md", tmp_path, monkeypatch)


def quietly(*options: str) -> None:
    """Train with these options."""
    with undrawn():
        train(parse_arguments(options), quiet())


@pytest.mark.slow
@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(
    ("algo", "metric", "space"),
    [
        ("my_algorithm", "policy_loss", "floats"),
        ("my_algorithm", "policy_loss", "mask"),
        ("my_ppo", "penalty", "mappings"),
        ("my_ppo", "penalty", "memory"),
    ],
)
def test_algorithm_learns_with_every_space(
    algo: str, metric: str, space: str, tmp_path: Path
) -> None:
    more = ("minibatch_size=32",) if algo == "my_ppo" else ()
    run_dir = tmp_path / "run"
    arguments = (f"algo={algo}:make", *SPACES[space], *SHORT, *more, "total_steps=256")
    quietly(*arguments, f"run_dir={run_dir}")
    values = np.array([float(row[metric]) for row in rows_of(run_dir / "metrics.csv")])
    assert len(values) == 4 and np.isfinite(values).all() and (values != 0).all()


def make_td3(rank: int = 0) -> tuple[Any, Local]:
    """A learner of TD3 with two environments, and its `GradientSync`."""
    module = importlib.import_module("examples.td3")
    config = module.TD3Config(
        batch_size=8, learning_starts=12, buffer_size=200, training_intensity=1
    )
    leaf = partial(Leaf, dtype=np.dtype(np.float32))
    env = EnvSpec(name="made up", observation=leaf((3,)), action=leaf((2,), low=-2, high=2))
    agent = config.make_agent(NetworkSpec("auto", env, torch.device("cpu")))
    sync = Local(FlatParameters(agent.model), config.rule, None)
    return config.make_learner(agent, sync, LearnerSpec(env, 2, 4, 1 + rank)), sync


def test_update_of_td3_is_that_of_plain_torch() -> None:
    """Of twin critics and a policy with an optimizer each, with loops over critics and layers."""
    learner, sync = make_td3()
    agent = learner.agent
    first = copy.deepcopy(agent.model)
    noises, draws = torch.Generator().manual_seed(1), torch.Generator()
    draws.set_state(learner.get_state()["generator"])
    for seed in range(3):  # 24 steps, of which 12 count: one update with 8
        learner.update(swings(seed), 0.0)
    assert sync.num_updates == 1

    batch = learner.replay.gather(*learner.replay.draw_uniformly(8, draws))
    noise = (0.2 * torch.randn(8, 2, generator=noises)).clamp(-0.5, 0.5)

    def value(k: int, observation: Tensor, action: Tensor) -> Tensor:
        x = torch.cat((observation, action), 1)
        for i, layer in enumerate(first.critics.layers):
            x = x @ layer.weight[k] + layer.bias[k]
            x = x.relu() if i < 2 else x
        return x.squeeze(1)

    def mean(each: Tensor) -> Tensor:
        return each[batch.valid].mean()

    with torch.no_grad():
        action = (first.actor(batch.next_observation) + noise).clamp(-1, 1)
        least = torch.minimum(*(value(k, batch.next_observation, action) for k in (0, 1)))
        goal = batch.reward + batch.discount * least
    of_policy = -mean(value(0, batch.observation, first.actor(batch.observation)))
    of_actor = torch.autograd.grad(of_policy, list(first.actor.parameters()))
    taken = batch.action / 2
    of_values = [mean((value(k, batch.observation, taken) - goal) ** 2) for k in (0, 1)]
    of_critics = torch.autograd.grad(sum(of_values), list(first.critics.parameters()))
    for part, expected in (("actor", of_actor), ("critics", of_critics)):
        parameters = getattr(agent.model, part).parameters()
        for found, each, before in zip(
            parameters, expected, getattr(first, part).parameters(), strict=True
        ):
            assert torch.allclose(found.grad, each, rtol=1e-3, atol=1e-6)
            assert not torch.equal(found, before)


def swings(seed: int) -> RolloutTensors:
    """Four made-up steps of two environments; nothing ends."""
    g = torch.Generator().manual_seed(seed)
    action = 4 * torch.rand(4, 2, 2, generator=g) - 2
    return made_rollout(torch.randn(5, 2, 3, generator=g), action, torch.randn(4, 2, generator=g))


def test_td3_acts_by_noise_and_is_evaluated_without() -> None:
    learner, _ = make_td3()
    agent, noise = learner.agent, torch.rand(2, 4, 2).double()
    assert agent.is_random
    for seed in range(2):
        learner.update(swings(seed), 0.0)
    assert not agent.is_random
    for each, is_same in ((agent, False), (learner.config.evaluating(agent), True)):
        chosen = [each.act(torch.ones(4, 3), numbers, slice(0, 4)) for numbers in noise]
        assert torch.equal(*chosen) == is_same


def plain_ppo() -> TrainConfig:
    return TrainConfig(sampler=SamplerConfig(num_envs=16, horizon=64), learner=PPOConfig())


def plain_dqn() -> TrainConfig:
    learner = DQNConfig(learning_starts=500, buffer_size=20000)
    return TrainConfig(sampler=SamplerConfig(num_envs=16, horizon=4), learner=learner)


ON_CATCH = ("env=catch", "num_workers=0", "num_envs=4", "learning_starts=40", "total_steps=400")


@pytest.mark.slow
@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(
    ("plain", "own", "coefficient", "arguments"),
    [
        (
            "plain_ppo",
            "my_ppo",
            "penalty_coefficient",
            (*SHORT, "env=Pendulum-v1", "minibatch_size=32", "total_steps=192"),
        ),
        ("plain_dqn", "my_dqn", "conservative_coefficient", ON_CATCH),
        (
            "plain_dqn",
            "my_dqn",
            "conservative_coefficient",
            (*ON_CATCH, "prioritized=true", "num_atoms=11", "v_min=-1", "v_max=1"),
        ),
    ],
    ids=["ppo", "dqn", "categorical"],
)
def test_penalty_changes_what_is_learned_only_where_it_counts(
    plain: str, own: str, coefficient: str, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    learned = []
    mine = [(f"algo={own}:make", f"{coefficient}={value}") for value in (0, 1)]
    for algo in ((f"algo={__name__}:{plain}",), *mine):
        run_dir = tmp_path / f"{len(learned)}"
        quietly(*algo, f"run_dir={run_dir}", *arguments)
        learned.append(last_checkpoint(run_dir)["learner"]["parameters"])
    assert same_tensors(learned[0], learned[1])
    assert not same_tensors(learned[0], learned[2])
