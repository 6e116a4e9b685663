"""The action server on a GPU: the same rollouts as on the CPU, and no hidden waiting."""

from contextlib import nullcontext
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import pytest
import torch
from flat_views import check_views
from made_rollouts import task_of
from space_envs import PAIRS, SpaceEnv

from accel_rl.agents import Agent, PolicyAgent, RolloutTensors
from accel_rl.algos import A2C, A2CConfig
from accel_rl.algos.replay import Replay, ReplaySpec
from accel_rl.envs import make_env_factory, probe_spec
from accel_rl.models import MemorySpec, make_model
from accel_rl.parallel import FlatParameters, Local
from accel_rl.samplers import ActionServer, ParallelSampler, SamplerConfig, SerialSampler
from accel_rl.spaces import Leaf, Space, random_values, tensor_views


def make_agent(device: torch.device, lstm: bool = False) -> PolicyAgent:
    torch.manual_seed(0)
    shapes = Leaf((10, 5), np.dtype(np.float32)), 3
    if lstm:
        return PolicyAgent(make_model("mlp", *shapes, MemorySpec()).to(device))
    return PolicyAgent(make_model("mlp", *shapes).to(device))


def rollouts_on(
    device: torch.device, config: SamplerConfig, kind: type, lstm: bool
) -> list[RolloutTensors]:
    agent = make_agent(device, lstm)
    rollouts = []
    with (
        kind(make_env_factory("catch"), config=config, seed=1) as sampler,
        ActionServer(agent, sampler, device) as server,
    ):
        for _ in range(6):
            sampler.collect(server)
            rollouts.append(server.finish().map(lambda x: x.cpu().clone()))
    return rollouts


@pytest.mark.parametrize("reset_policy", ["immediate", "wait"])
def test_replay_on_the_device_equals_that_on_the_cpu_and_waits_for_nothing(
    reset_policy: Any, forbidding_waits: Any
) -> None:
    """With reset_policy=wait rollouts do not follow on each other, so that they are compared."""
    config = SamplerConfig(num_envs=8, horizon=7, num_groups=2, reset_policy=reset_policy)
    states = []
    for device in map(torch.device, ("cpu", "cuda")):
        with (
            SerialSampler(make_env_factory("catch"), config=config, seed=1) as sampler,
            ActionServer(make_agent(device, lstm=False), sampler, device) as server,
        ):
            env = sampler.env_spec
            replay = Replay(
                ReplaySpec(
                    size=240,
                    num_envs=8,
                    horizon=7,
                    observation=env.observation,
                    action=env.action,
                    frame_stack=env.frame_stack,
                    n_step=2,
                ),
                device,
            )
            for i in range(6):
                sampler.collect(server)
                batch = server.finish()
                follows = i > 0 and reset_policy == "immediate"
                if device.type == "cuda":
                    assert batch.host is not None and batch.host.follows == follows
                with forbidding_waits() if follows else nullcontext():
                    replay.append(batch)
            states.append(replay.get_state())
            drawn = replay.gather(*(torch.arange(2, 8, device=device) for _ in range(2)))
            assert drawn.reward.device.type == device.type
    torch.testing.assert_close(states[1], states[0], rtol=0, atol=0)
    assert states[0]["fields"]["terminated"].any()


@pytest.mark.parametrize(
    ("lstm", "kind", "reset_policy", "horizon"),
    [
        (False, SerialSampler, "immediate", 7),
        (True, SerialSampler, "wait", 1),
        (False, ParallelSampler, "wait", 7),
        (True, ParallelSampler, "immediate", 7),
        (False, ParallelSampler, "immediate", 1),
    ],
)
def test_rollouts_on_the_device_equal_those_on_the_cpu(
    lstm: bool, kind: type, reset_policy: Any, horizon: int
) -> None:
    """Each two of these choices meet."""
    config = SamplerConfig(num_envs=8, horizon=horizon, num_groups=2, reset_policy=reset_policy)
    on_cpu = rollouts_on(torch.device("cpu"), config, kind, lstm)
    on_gpu = rollouts_on(torch.device("cuda"), config, kind, lstm)
    for expected, found in zip(on_cpu, on_gpu, strict=True):
        for name in RolloutTensors._fields[:9]:
            assert torch.equal(getattr(found, name), getattr(expected, name)), name
        if lstm:
            assert expected.recurrent_state is not None and expected.recurrent_state.any()
            torch.testing.assert_close(found.recurrent_state, expected.recurrent_state)


@pytest.mark.parametrize("lstm", [False, True])
def test_collecting_and_learning_wait_for_the_actions_alone(
    lstm: bool, forbidding_waits: Any
) -> None:
    device = torch.device("cuda")
    agent, config = make_agent(device, lstm), A2CConfig()
    flat = FlatParameters(agent.model)
    learner = A2C(agent, config, Local(flat, config.rule, config.max_gradient_norm), task_of(5, 8))
    with (
        SerialSampler(make_env_factory("catch"), num_envs=8) as sampler,
        ActionServer(agent, sampler, device) as server,
    ):
        for number in range(4):
            # The first time, libraries set themselves up.
            with forbidding_waits() if number else nullcontext():
                sampler.collect(server)
                learner.update(server.finish(), progress=0.0)
    check_views(flat)


def test_shared_memory_is_registered_until_the_server_closes() -> None:
    device = torch.device("cuda")
    with ParallelSampler(make_env_factory("catch"), num_envs=8) as sampler:
        observation = torch.from_numpy(sampler.rollout.observation)
        with ActionServer(make_agent(device), sampler, device):
            assert observation.is_pinned()
        assert not observation.is_pinned()


class Numbers(Agent):
    """Actions of any space that follow from the noise."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.given: list[Any] = []

    def act(
        self, observation: Any, noise: torch.Tensor, env_slice: slice, memory: Any = None
    ) -> Any:
        self.given.append(copied(observation))
        drawn = [
            random_values(self.space, np.random.default_rng(int(u * 2**53)), 1)
            for u in noise.cpu().numpy()
        ]
        tensors = tensor_views(self.space, np.concatenate(drawn))
        return copied(tensors, noise.device)


def copied(value: Any, device: str | torch.device = "cpu") -> Any:
    if isinstance(value, dict):
        return {name: copied(each, device) for name, each in value.items()}
    return value.to(device, copy=True).contiguous()


def assert_equal(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name, each in one.items():
            assert_equal(each, other[name])
    else:
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("name", "reset_policy"), [*zip(PAIRS, cycle(["immediate", "wait"]), strict=False)]
)
def test_rollouts_of_any_space_on_the_device_equal_those_on_the_cpu(
    name: str, reset_policy: Any
) -> None:
    factory = make_env_factory(partial(SpaceEnv, name))
    space = probe_spec(factory).action
    config = SamplerConfig(num_envs=6, horizon=7, num_groups=2, reset_policy=reset_policy)
    found = []
    for device in ("cpu", "cuda"):
        agent: Any = Numbers(space)
        rollouts = []
        with (
            SerialSampler(factory, config=config, seed=1) as sampler,
            ActionServer(agent, sampler, torch.device(device)) as server,
        ):
            for _ in range(3):
                sampler.collect(server)
                rollouts.append(server.finish().map(copied))
        found.append((agent.given, rollouts))
    for one, other in zip(found[0][0], found[1][0], strict=True):
        assert_equal(one, other)
    for one, other in zip(found[0][1], found[1][1], strict=True):
        for a, b in zip(one[:9], other[:9], strict=True):
            assert_equal(a, b)
