"""The action server on the CPU: nothing is copied, and what it serves is what the agent says."""

import os
import signal
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tiers import PROCESSES
from torch import Tensor, nn
from toy_envs import ToyEnv

from accel_rl.agents import PolicyAgent, RolloutTensors
from accel_rl.envs import make_env_factory
from accel_rl.models import MemorySpec, PolicyValue, PolicyValueModel, make_model
from accel_rl.samplers import (
    ActionServer,
    ParallelSampler,
    SamplerConfig,
    SerialSampler,
    action_server,
)
from accel_rl.spaces import Leaf
from accel_rl.system import registration

CPU = torch.device("cpu")


class RecordingAgent(PolicyAgent):
    """Keeps the observations it was given, the tensors themselves and copies of them."""

    def __init__(self) -> None:
        super().__init__(make_model("mlp", Leaf((3,), np.dtype(np.int64)), 4))
        self.given: list[Tensor] = []
        self.copies: list[tuple[Tensor, Tensor]] = []

    def act(self, observation: Any, noise: Tensor, env_slice: slice, memory: Any = None) -> Any:
        self.given.append(observation)
        self.copies.append((observation.clone(), noise.clone()))
        return super().act(observation, noise, env_slice)


class TabularModel(PolicyValueModel):
    """Logits from a table, by the position of the ball: their rounding depends on no batch."""

    def __init__(self) -> None:
        super().__init__()
        table = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
        self.logits = nn.Parameter(table)

    def forward(self, observation: Tensor) -> PolicyValue:
        logits = self.logits[observation.flatten(1).argmax(1)]
        return PolicyValue(logits, logits[:, 0])


def collect_toy_rollout(
    horizon: int = 6, num_envs: int = 4
) -> tuple[SerialSampler, RecordingAgent, RolloutTensors]:
    torch.manual_seed(0)
    config = SamplerConfig(num_envs=num_envs, horizon=horizon)
    sampler, agent = SerialSampler(ToyEnv, config=config, seed=3), RecordingAgent()
    with sampler, ActionServer(agent, sampler, CPU) as server:
        sampler.collect(server)
        batch = server.finish()
    return sampler, agent, batch


def test_agent_and_learner_read_the_samplers_own_memory() -> None:
    sampler, agent, batch = collect_toy_rollout()
    for t, observation in enumerate(agent.given):
        assert np.shares_memory(observation.numpy(), sampler.rollout.observation[t])
    for name in ("observation", "action", "reward", "terminated", "truncated", "valid"):
        array: NDArray[np.generic] = getattr(sampler.rollout, name)
        tensor = getattr(batch, name).numpy()
        assert tensor.ctypes.data == array.ctypes.data
        assert tensor.shape == array.shape
        assert tensor.dtype == array.dtype


def test_actions_in_the_rollout_are_the_agents() -> None:
    sampler, agent, batch = collect_toy_rollout()
    for t, (observation, noise) in enumerate(agent.copies):
        assert torch.equal(observation, batch.observation[t])
        expected = PolicyAgent.act(agent, observation, noise, slice(None))
        assert torch.equal(batch.action[t], expected)
    assert len(np.unique(sampler.rollout.action)) == 4


def test_final_observations_are_those_of_truncated_episodes() -> None:
    sampler, _, batch = collect_toy_rollout(horizon=20, num_envs=64)
    rollout = sampler.rollout
    is_cut = rollout.truncated & ~rollout.terminated
    found = set(zip(batch.final_step.tolist(), batch.final_env.tolist(), strict=True))
    assert found == set(zip(*np.nonzero(is_cut), strict=True))
    assert {step for step, _ in found} == set(range(20))
    for (identity, episode, t), step, env in zip(
        batch.final_observation.tolist(), batch.final_step, batch.final_env, strict=True
    ):
        last = rollout.observation[step, env]  # one step before the final one
        assert (identity, episode, t - 1) == tuple(last)


def test_server_acts_with_the_parameters_of_the_moment() -> None:
    config, model = SamplerConfig(num_envs=4, horizon=5), TabularModel()
    with SerialSampler(make_env_factory("catch"), config=config) as sampler:
        server = ActionServer(PolicyAgent(model), sampler, CPU)
        for action in (2, 0):
            with torch.no_grad():
                model.logits.fill_(-1000.0)[:, action] = 0.0
            assert (sampler.collect(server).action == action).all()


@pytest.fixture
def faked_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the code for GPUs run on the CPU, where its copies are at once complete."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, pin_memory=False, **kw: empty(*shape, **kw))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda device: SimpleNamespace(synchronize=lambda: None)
    )
    driver = SimpleNamespace(
        cudaHostRegister=lambda pointer, size, flags: 0, cudaHostUnregister=lambda pointer: 0
    )
    monkeypatch.setattr(registration, "_cudart", lambda: driver)
    monkeypatch.setattr(torch.cuda, "check_error", lambda error: None)


def recurrent_agent() -> PolicyAgent:
    torch.manual_seed(0)
    return PolicyAgent(make_model("mlp", Leaf((3,), np.dtype(np.int64)), 4, MemorySpec()))


@pytest.mark.parametrize(
    ("make", "reset_policy", "horizon"),
    [
        (RecordingAgent, "immediate", 7),
        (recurrent_agent, "wait", 7),
        (recurrent_agent, "immediate", 1),
    ],
)
@pytest.mark.usefixtures("faked_cuda")
def test_device_rows_give_the_rollouts_of_shared_ones(make, reset_policy, horizon) -> None:
    config = SamplerConfig(num_envs=4, horizon=horizon, reset_policy=reset_policy)
    agent = make()
    rollouts = []
    for on_device in (False, True):
        with SerialSampler(ToyEnv, config=config, seed=1) as sampler:
            server = ActionServer(agent, sampler, CPU)
            if on_device:
                server._rows = action_server._DeviceRows(sampler, CPU, keeps_rollout=False)
            for number in range(8):
                sampler.collect(server)
                if number in (0, 2, 3, 6):  # some rollouts nobody asks for
                    rollout = server.finish().map(torch.clone)
                    rollouts.append(rollout[:-2])  # the last two only a GPU needs
            server.close()
    for expected, found in zip(rollouts[:4], rollouts[4:], strict=True):
        for a, b in zip(expected, found, strict=True):
            assert (a is b is None) or torch.equal(a, b)


@pytest.mark.parametrize(
    ("reset_policy", "on_device"), [("immediate", False), ("immediate", True), ("wait", True)]
)
@pytest.mark.usefixtures("faked_cuda")
def test_kept_rollout_stays_while_the_next_is_collected(reset_policy, on_device) -> None:
    config = SamplerConfig(num_envs=4, horizon=7, reset_policy=reset_policy)
    agent, rollouts = RecordingAgent(), []
    for keeps in (False, True):
        with SerialSampler(ToyEnv, config=config, seed=1) as sampler:
            server = ActionServer(agent, sampler, CPU, keeps_rollout=keeps)
            if on_device:
                server._rows = action_server._DeviceRows(sampler, CPU, keeps_rollout=keeps)
            sampler.collect(server)
            for _ in range(5):
                batch = server.finish()
                copies = batch.map(torch.clone)[:9]
                sampler.collect(server)
                is_same = [torch.equal(a, b) for a, b in zip(batch[:9], copies, strict=True)]
                assert is_same[0] == keeps
                rollouts.append(copies)
            server.close()
    for expected, found in zip(rollouts[:5], rollouts[5:], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


@PROCESSES
@pytest.mark.usefixtures("faked_cuda")
def test_device_row_zero_is_sent_anew_where_a_worker_was_replaced_between_rollouts() -> None:
    config = SamplerConfig(num_envs=4, horizon=3, num_workers=1, on_worker_failure="restart")
    with ParallelSampler(ToyEnv, config=config, seed=1) as sampler:
        server = ActionServer(RecordingAgent(), sampler, CPU)
        rows = server._rows = action_server._DeviceRows(sampler, CPU, keeps_rollout=False)
        sampler.collect(server)
        server.finish()
        os.kill(sampler._pool._workers.processes[0].pid, signal.SIGKILL)
        sampler.get_state()  # where its end is noticed
        sampler.collect(server)
        assert torch.equal(rows._observation[0], torch.from_numpy(sampler.rollout.observation[0]))
        server.close()


@pytest.mark.parametrize(
    ("is_recurrent", "keeps_rollout"), [(False, False), (True, False), (True, True)]
)
def test_kept_log_probabilities_and_values_are_those_of_the_policy_that_acted(
    is_recurrent, keeps_rollout
):
    agent: Any = recurrent_agent()
    if not is_recurrent:
        agent = PolicyAgent(make_model("mlp", Leaf((3,), np.dtype(np.int64)), 4))
    for name, parameter in agent.model.named_parameters():
        parameter.data.mul_(30 if name.startswith("policy") else 1)  # it begins nearly uniform
    config = SamplerConfig(num_envs=4, horizon=6, num_groups=2)
    with SerialSampler(ToyEnv, config=config, seed=3) as sampler:
        agent.tells_log_prob = True
        server = ActionServer(agent, sampler, CPU, keeps_rollout=keeps_rollout)
        for _ in range(3):
            sampler.collect(server)
            batch = server.finish()
            with torch.no_grad():
                observation = batch.observation[:-1].flatten(0, 1)
                logits, value = agent.evaluate(observation, batch.sequences(slice(0, 6)))
            expected = logits.log_softmax(1).gather(1, batch.action.view(-1, 1)).view(6, 4)
            torch.testing.assert_close(batch.log_prob, expected)
            torch.testing.assert_close(batch.value, value.view(6, 4))
            assert expected.std() > 0.01
            next(agent.model.parameters()).data.add_(0.1)
    agent.tells_log_prob = False
    plain = ActionServer(agent, SerialSampler(ToyEnv, config=config), CPU)
    assert plain.finish().log_prob is None
