"""The action server with every space, and agents that obey action masks."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from space_envs import PAIRS, MaskedEnv, SpaceEnv
from tiers import processes
from torch import Tensor, nn

from accel_rl.agents import Agent, PolicyAgent, QAgent
from accel_rl.envs import make_env_factory, probe_spec
from accel_rl.models import PolicyValue, PolicyValueModel
from accel_rl.samplers import ActionServer, ParallelSampler, SamplerConfig, SerialSampler
from accel_rl.samplers.evaluation import evaluate
from accel_rl.spaces import Leaf, tensor_views, views

CPU = torch.device("cpu")
CONFIG = SamplerConfig(num_envs=6, horizon=12, num_groups=2, num_workers=1)


class TreeAgent(Agent):
    """Actions of any space, zero or as near as the bounds allow."""

    def __init__(self, space: Any, device: torch.device = CPU) -> None:
        self.space, self.device = space, device

    def act(self, observation: Any, noise: Tensor, env_slice: slice, memory: Any = None) -> Any:
        return self.make(self.space, len(noise))

    def make(self, space: Any, n: int) -> Any:
        if not isinstance(space, Leaf):
            return {name: self.make(each, n) for name, each in space.items()}
        low, high = (np.zeros(space.shape) if b is None else b for b in space.bounds)
        value = np.clip(0, low, high).astype(space.dtype)
        return torch.from_numpy(np.broadcast_to(value, (n, *space.shape)).copy()).to(self.device)


def assert_equal(tensors: Any, arrays: Any) -> None:
    if isinstance(tensors, dict):
        assert tensors.keys() == arrays.keys()
        for name, each in tensors.items():
            assert_equal(each, arrays[name])
    else:
        assert np.array_equal(tensors.cpu().numpy(), arrays)


@pytest.mark.parametrize(
    ("kind", "name", "keeps_rollout"),
    [
        *((SerialSampler, name, name in ("dict", "number")) for name in PAIRS),
        processes(ParallelSampler, "dict", False),
    ],
)
def test_finished_rollout_has_the_leaves_of_the_samplers(kind, name, keeps_rollout) -> None:
    factory = make_env_factory(partial(SpaceEnv, name))
    spec = probe_spec(factory)
    agent: Any = TreeAgent(spec.action)
    with kind(factory, config=CONFIG, seed=1) as sampler:
        with ActionServer(agent, sampler, CPU, keeps_rollout=keeps_rollout) as server:
            for _ in range(2):
                rollout = sampler.collect(server)
                batch = server.finish()
                assert_equal(batch.observation, views(spec.observation, rollout.observation))
                assert_equal(batch.action, views(spec.action, rollout.action))
                used = np.nonzero(rollout.final_step >= 0)
                finals = rollout.final_observation[used]
                assert len(finals) and len(batch.final_step) == len(finals)
                assert_equal(batch.final_observation, views(spec.observation, finals))
                clone = batch.map(torch.clone).observation
                assert_equal(clone, views(spec.observation, rollout.observation))
                first = tensor_views(spec.observation, rollout.observation)
                while isinstance(first, dict):
                    first = next(iter(first.values()))
                kept: Any = batch.observation
                while isinstance(kept, dict):
                    kept = next(iter(kept.values()))
                assert (kept.data_ptr() == first.data_ptr()) == (not keeps_rollout)


class Scores(PolicyValueModel):
    """Scores that prefer the last action, whatever is allowed."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.arange(6.0))

    def forward(self, observation: Tensor) -> PolicyValue:
        assert observation.shape[1:] == (3,)
        logits = self.scores.expand(len(observation), -1)
        return PolicyValue(logits, logits[:, 0])


class Q(nn.Module):
    def forward(self, observation: Tensor) -> Tensor:
        return torch.arange(6.0).expand(len(observation), -1)[..., None]


AGENTS: dict[str, Any] = {
    "categorical": lambda: PolicyAgent(Scores()),
    "greedy": lambda: PolicyAgent(Scores(), is_greedy=True),
    "epsilon": lambda: QAgent(Q(), None, torch.tensor([0.5])),
    "epsilon 0": lambda: QAgent(Q(), None, torch.tensor([0.0])),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "reset_policy"),
    [
        ("categorical", "wait"),
        ("greedy", "immediate"),
        ("epsilon", "immediate"),
        ("epsilon 0", "wait"),
    ],
)
def test_agents_take_only_actions_that_the_mask_allows(name, reset_policy, monkeypatch) -> None:
    monkeypatch.setattr(MaskedEnv, "illegal", 0)
    factory = make_env_factory(partial(MaskedEnv, "discrete"))
    config = SamplerConfig(
        num_envs=8, horizon=20, num_groups=2, reset_policy=reset_policy, decorrelation_steps=10
    )
    agent = AGENTS[name]()
    with SerialSampler(factory, config=config, seed=1) as sampler:
        with ActionServer(agent, sampler, CPU) as server:
            for _ in range(3):
                assert np.unique(sampler.collect(server).action).size > 3
    assert MaskedEnv.illegal == 0
    options = SamplerConfig(num_envs=8, horizon=10, num_groups=1)
    with SerialSampler(factory, config=options, seed=2) as sampler:
        with ActionServer(agent, sampler, CPU) as server:
            evaluate(sampler, server, num_steps=80, max_episode_steps=8)
    assert MaskedEnv.illegal == 0
