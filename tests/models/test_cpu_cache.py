"""Learning from acting's forward passes, against the network's own."""

import copy
from typing import Any

import pytest
import torch
from made_rollouts import learner_of, task_of
from recorded_learners import IMAGES, rollouts

from accel_rl.agents import PolicyAgent
from accel_rl.algos import A2CConfig, NetworkSpec

pytestmark = pytest.mark.numeric

CPU = torch.device("cpu")
T, B = 4, 6


def act(agent: PolicyAgent, observation: torch.Tensor) -> None:
    """In two groups, as an action server does."""
    noise = torch.full((B,), 0.5, dtype=torch.float64)
    for row in observation[:T]:
        for group in (slice(0, 2), slice(2, B)):
            agent.act(row[group], noise[group], group)


@pytest.mark.parametrize("model", ["a3c", "nature", "paac_nature"])
@pytest.mark.parametrize("change", ["nothing", "parameters", "row", "content"])
def test_gradient_is_that_of_the_network_and_its_forward_pass_is_saved(
    model: str, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless parameters or an observation have changed since, or a row was not acted on."""
    torch.manual_seed(0)
    agent: Any = A2CConfig().make_agent(NetworkSpec(model, IMAGES, CPU))
    learner = learner_of(A2CConfig(), agent, task_of(T, B))
    (batch,) = rollouts(CPU, 1)
    act(agent, batch.observation if change != "row" else batch.observation[1:])
    flat, forward, passes = learner.sync.parameters, agent.model.forward, []
    if change == "parameters":
        flat.parameter.mul_(1.5)
    if change == "content":
        batch.observation[T - 1, B - 1] += 1

    def counted(observation: torch.Tensor) -> Any:
        passes.append(len(observation))
        return forward(observation)

    monkeypatch.setattr(agent.model, "forward", counted)
    gradients = []
    for _ in range(2):  # the second time nothing is kept
        flat.zero_gradient()
        learner.loss(batch)[0].sum().backward()
        gradients.append(flat.gradient.clone())
    last_ones = B
    assert passes == [*([] if change == "nothing" else [T * B]), last_ones, T * B, last_ones]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


def test_copy_of_the_agent_acts_by_its_own_network() -> None:
    agent: Any = A2CConfig().make_agent(NetworkSpec("a3c", IMAGES, CPU))
    learner_of(A2CConfig(), agent, task_of(T, B))
    assert agent.cache is not None and copy.deepcopy(agent).cache is None
