"""Networks for Q-learning that remember, and agents that act by them, one step after another."""

from typing import Any

import numpy as np
import pytest
import torch
from recurrent_play import CPU, B, T, config, copies, plain_steps
from torch import Tensor
from toy_envs import ToyEnv

from accel_rl import models
from accel_rl.agents import QAgent, epsilon_greedy
from accel_rl.models import MemorySpec, QHead, RecurrentModel, Sequences, one_step
from accel_rl.samplers import ActionServer, SerialSampler
from accel_rl.spaces import Leaf

pytestmark = pytest.mark.numeric

SHAPES = {
    "mlp": Leaf((3,), np.dtype(np.int64)),
    "a3c": Leaf((4, 44, 36), np.dtype(np.uint8)),
}


def make_model(name: str = "mlp", num_atoms: int = 1, *, is_dueling: bool = False) -> Any:
    """Its weights are large enough for values to tell what is remembered."""
    torch.manual_seed(0)
    model = models.make_model(name, SHAPES[name], QHead(4, num_atoms, is_dueling), MemorySpec())
    for each in model.parameters():
        each.data.add_(torch.randn_like(each), alpha=0.05)
    return model


def slow_values(model: Any, name: str, rows: Tensor, state: Tensor, is_first: Tensor) -> Tensor:
    """``[n, A, K]`` of one environment: layer after layer, the streams by their definition."""
    if name == "mlp":
        x = rows.float()
        for layer in model.network[1::2]:
            x = (x @ layer.weight.t() + layer.bias).tanh()
    else:
        x = rows.float() / 255
        for conv in model.network.convs:
            x = torch.nn.functional.conv2d(x, conv.weight, conv.bias, conv.stride, conv.padding)
            x = x.relu()
        x = x.permute(0, 2, 3, 1).reshape(len(rows), -1)
    x = plain_steps(model.memory, x, state, is_first)

    def through(stream: Any) -> Tensor:
        if name == "mlp":
            return x @ stream.weight.t() + stream.bias
        hidden = (x @ stream.hidden.weight.t() + stream.hidden.bias).relu()
        return hidden @ stream.output.weight.t() + stream.output.bias

    advantage = through(model.heads.advantage).view(len(rows), 4, -1)
    if model.heads.value is None:
        return advantage
    found = torch.empty_like(advantage)
    for a in range(4):
        found[:, a] = through(model.heads.value) + advantage[:, a] - advantage.mean(1)
    return found


@pytest.mark.parametrize("num_atoms", [1, 5])
@pytest.mark.parametrize("is_dueling", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_values_are_those_of_each_environment_unrolled_alone(
    name: str, is_dueling: bool, num_atoms: int
) -> None:
    model = make_model(name, num_atoms, is_dueling=is_dueling)
    leaf = SHAPES[name]
    g = torch.Generator().manual_seed(1)
    observation = torch.randint(0, 200, (T, B, *leaf.shape), generator=g).to(
        torch.uint8 if leaf.dtype == np.uint8 else torch.int64
    )
    if name == "mlp":
        observation %= 3
    state = torch.randn(B, model.state_size, generator=g)
    is_first = torch.rand(T, B, generator=g) < 0.2
    found, after = model(observation.flatten(0, 1), Sequences(state, is_first))
    assert found.shape == (T * B, 4, num_atoms) and after.shape == state.shape
    for b in range(B):
        own = slice(b, b + 1)
        expected = slow_values(model, name, observation[:, b], state[own], is_first[:, own])
        torch.testing.assert_close(
            found.view(T, B, 4, num_atoms)[:, b], expected, rtol=1e-4, atol=1e-5
        )


def test_gradient_of_two_streams_is_scaled_where_they_meet_the_memory() -> None:
    model = make_model(is_dueling=True)
    x = torch.randn(6, 64, requires_grad=True)
    for layer in (model.memory, model.network):
        layer.requires_grad_(False)

    class Given(torch.nn.Module):
        def forward(self, *_: Any) -> tuple[Tensor, Tensor]:
            return x, torch.zeros(1, 128)

    model.memory = Given()
    model(torch.zeros(6, 3), Sequences(torch.zeros(1, 128), torch.zeros(6, 1, dtype=torch.bool)))[
        0
    ].square().sum().backward()
    scaled = x.grad
    y = x.detach().clone().requires_grad_()
    advantage = (y @ model.heads.advantage.weight.t() + model.heads.advantage.bias).view(6, 4, 1)
    value = (y @ model.heads.value.weight.t() + model.heads.value.bias).view(6, 1, 1)
    (value + advantage - advantage.mean(1, keepdim=True)).square().sum().backward()
    torch.testing.assert_close(scaled, y.grad * 0.5**0.5)  # type: ignore[operator]


def make_agent(epsilon: Any = 0.3, model: RecurrentModel | None = None) -> Any:
    given = torch.as_tensor(epsilon).view(-1)
    return QAgent(model or make_model(), None, given)


@pytest.mark.parametrize("num_groups", [1, 2])
def test_actions_and_states_in_a_sampler_are_those_of_each_environment_alone(
    num_groups: int,
) -> None:
    """Each with its own epsilon, from nothing where an episode begins."""
    epsilons = torch.tensor([0.0, 0.2, 0.5, 1.0])
    agent = make_agent(epsilons)
    sampler = SerialSampler(ToyEnv, config=config(num_groups=num_groups), seed=1)
    server = ActionServer(agent, sampler, CPU)
    state, is_first = torch.zeros(B, agent.model.state_size), torch.ones(B, dtype=torch.bool)
    noises: list[Any] = []
    num_begun = num_random = 0

    def act(step: Any) -> Any:
        noises.append((step.t, step.env_slice, torch.from_numpy(step.noise.copy())))
        return server(step)

    with sampler:
        for _ in range(6):
            noises.clear()
            sampler.collect(act)
            batch = copies(server.finish())
            assert batch.recurrent_state is not None
            for t, columns, noise in noises:
                for i, b in enumerate(range(B)[columns]):
                    own = torch.zeros_like(state[b : b + 1]) if is_first[b] else state[b : b + 1]
                    num_begun += int(is_first[b])
                    if t == 0:
                        torch.testing.assert_close(batch.recurrent_state[0, b], own[0])
                    one = Sequences(own, torch.zeros(1, 1, dtype=torch.bool))
                    with torch.no_grad():
                        value, after = agent.model(batch.observation[t, b : b + 1], one)
                    best, u = int(value[0, :, 0].argmax()), float(noise[i])
                    epsilon = float(epsilons[b])
                    expected = best if u >= epsilon else int(u / epsilon * 4)
                    num_random += expected != best
                    assert int(batch.action[t, b]) == expected
                    torch.testing.assert_close(batch.recurrent_state[t + 1, b], after[0])
                    state[b] = after[0]
                    is_first[b] = batch.terminated[t, b] | batch.truncated[t, b]
    assert num_begun > 6 * B and num_random > 10


def test_masked_actions_are_never_taken_and_the_best_of_the_others_is() -> None:
    agent = make_agent(0.5)
    g = torch.Generator().manual_seed(2)
    seen = torch.randint(3, (200, 3), generator=g)
    mask = (torch.rand(200, 4, generator=g) < 0.5).to(torch.int8)
    mask[:, 1] = 1
    state = torch.randn(200, agent.model.state_size, generator=g)
    noise = torch.rand(200, dtype=torch.float64, generator=g)
    masked = {"observation": seen, "action_mask": mask}
    action, after = agent.act(masked, noise, slice(0, 200), one_step(state, None))
    value, expected = agent.model(seen, Sequences(state, torch.zeros(1, 200, dtype=torch.bool)))
    epsilon = torch.full((200,), 0.5)
    assert torch.equal(action, epsilon_greedy(value.squeeze(2), noise, epsilon, mask))
    assert mask.gather(1, action.unsqueeze(1)).all()
    torch.testing.assert_close(after, expected)


def test_agents_of_evaluations_have_their_own_epsilon_and_the_same_network() -> None:
    agent = make_agent(1.0)
    seen, state = torch.randint(3, (64, 3)), torch.randn(64, agent.model.state_size)
    noise = torch.linspace(0, 0.99, 64, dtype=torch.float64)
    value, _ = agent.model(seen, Sequences(state, torch.zeros(1, 64, dtype=torch.bool)))
    action, _ = agent.greedy().act(seen, noise, slice(0, 64), one_step(state, None))
    assert torch.equal(action, value.squeeze(2).argmax(1))
    other = agent.evaluating(0.25)
    assert type(other) is QAgent and other.model is agent.model
    assert other.epsilon.item() == 0.25 and agent.epsilon.item() == 1.0
    other.follow(agent)
    assert other.epsilon is agent.epsilon
