"""Quantiles, Munchausen targets and noisy layers against explicit loops and numbers by hand."""

from itertools import product
from math import cos, erf, exp, log, pi, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from made_rollouts import learner_of, vectors
from torch import Tensor, nn

from accel_rl.agents import QAgent
from accel_rl.algos import DQN, DQNConfig, LearnerSpec, NetworkSpec
from accel_rl.algos.replay import Transitions
from accel_rl.algos.value_distributions import munchausen, quantile_loss
from accel_rl.envs import EnvSpec
from accel_rl.models.q_value import Levels, NoisyLinear, levels, num_random, with_noise
from accel_rl.spaces import Leaf, discrete

pytestmark = pytest.mark.numeric

T, B, A, K, J, N = 4, 6, 3, 5, 4, 20
CPU = torch.device("cpu")
ENV = EnvSpec(name="toy", observation=Leaf((3,), np.dtype(np.float32)), action=discrete(A))
IMPLICIT: Any = {"num_atoms": K, "quantiles": "implicit"}


def make(**options: Any) -> tuple[DQN, QAgent]:
    small = {"batch_size": 8, "learning_starts": 48, "buffer_size": 600}
    config = DQNConfig(**{**small, "target_update_interval": 96, **options})
    torch.manual_seed(0)
    agent = config.make_agent(NetworkSpec("auto", ENV, CPU))
    learner = learner_of(config, agent, LearnerSpec(ENV, B, T, 0))
    learner._target.parameter.normal_(std=0.2, generator=torch.Generator().manual_seed(1))
    return learner, agent


def batches() -> Any:
    g = torch.Generator().manual_seed(0)
    while True:
        yield vectors(T, B, 3, generator=g)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def actions(num: int = N) -> Tensor:
    return torch.from_numpy(np.random.default_rng(9).integers(A, size=num))


def slow_quantile_loss(predicted: Any, goal: Any, level: Any) -> tuple[float, float]:
    """Loss and priority of one transition."""
    loss = priority = 0.0
    for k, j in product(range(len(predicted)), range(len(goal))):
        error = goal[j] - predicted[k]
        huber = error**2 / 2 if abs(error) <= 1 else abs(error) - 0.5
        loss += abs(level[k] - (error < 0)) * huber / len(goal)
        priority += abs(error) / len(goal) / len(predicted)
    return loss, priority


def slow_log_policy(q_value: Any, allowed: Any) -> dict[int, float]:
    """``0.03 log pi`` of the allowed actions."""
    best = max(q_value[a] for a in range(A) if allowed[a])
    total = sum(exp((q_value[a] - best) / 0.03) for a in range(A) if allowed[a])
    return {a: q_value[a] - best - 0.03 * log(total) for a in range(A) if allowed[a]}


@pytest.mark.parametrize("rows", [1, N])
def test_quantile_loss_and_priority_equal_slow_version(rows: int) -> None:
    output, goal, action = 2 * drawn(N, A, K), drawn(N, J, seed=1), actions()
    level = torch.from_numpy(np.random.default_rng(2).random((rows, K)))
    loss, priority = quantile_loss(output, action, goal, level)
    for i in range(N):
        given = output[i, action[i]].tolist(), goal[i].tolist(), level.expand(N, K)[i].tolist()
        expected = slow_quantile_loss(*given)
        assert (loss[i].item(), priority[i].item()) == pytest.approx(expected, rel=1e-12)


def test_quantile_loss_of_a_case_worked_by_hand() -> None:
    """Errors 0.5 and -2 of one quantile at level 0.25: (0.25 * 0.125 + 0.75 * 1.5) / 2."""
    output, goal = torch.zeros(1, 1, 1), torch.tensor([[0.5, -2.0]])
    loss, priority = quantile_loss(output, torch.tensor([0]), goal, torch.tensor([[0.25]]))
    assert loss.item() == pytest.approx(0.578125)
    assert priority.item() == pytest.approx(1.25)


def test_quantile_gradient_is_that_of_the_formula_and_none_of_the_target() -> None:
    """Of quantile k: ``-mean_j |level - 1{error < 0}| clip(error, -1, 1)``."""
    output, goal = (2 * drawn(N, A, K)).requires_grad_(), drawn(N, J, seed=1).requires_grad_()
    level, action = torch.linspace(0.1, 0.9, K, dtype=torch.float64)[None], actions()
    quantile_loss(output, action, goal, level)[0].sum().backward()
    expected = np.zeros((N, A, K))
    for i, k, j in product(range(N), range(K), range(J)):
        error = (goal[i, j] - output[i, action[i], k]).item()
        weight = abs(level[0, k].item() - (error < 0))
        expected[i, action[i], k] -= weight * min(max(error, -1), 1) / J
    assert output.grad is not None and goal.grad is None
    np.testing.assert_allclose(output.grad, expected, atol=1e-12)


def test_quantiles_become_those_of_the_targets() -> None:
    """Of the numbers 0 .. 999 the quantile at level 0.1 is 100, and so on."""
    place = torch.full((1, 1, 3), 500.0, dtype=torch.float64, requires_grad=True)
    goal, level = torch.arange(1000.0, dtype=torch.float64)[None], torch.tensor([[0.1, 0.5, 0.9]])
    for _ in range(400):
        loss = quantile_loss(place, torch.tensor([0]), goal, level)[0].sum()
        (gradient,) = torch.autograd.grad(loss, place)
        place.data -= 50 * gradient
    np.testing.assert_allclose(place.detach().flatten(), [100, 500, 900], atol=1.5)


@pytest.mark.parametrize("is_masked", [False, True])
def test_munchausen_terms_equal_slow_version(is_masked: bool) -> None:
    before, q_value, decoded = 0.1 * drawn(N, A), 0.1 * drawn(N, A, seed=1), drawn(N, A, K, seed=2)
    masks: Any = None, None
    if is_masked:
        masks = [
            torch.from_numpy(np.random.default_rng(s).integers(2, size=(N, A))) for s in (3, 4)
        ]
    action = actions()
    if is_masked:
        masks[0][range(N), action] = 1
        masks[1][:, 0] = 1
        masks[1][0] = 0
    bonus, soft = munchausen(before, action, q_value, decoded, *masks)
    allowed = [torch.ones(N, A).tolist() if each is None else each.tolist() for each in masks]
    for i in range(is_masked, N):
        scaled = slow_log_policy(before[i].tolist(), allowed[0][i])[int(action[i])]
        assert bonus[i].item() == pytest.approx(0.9 * min(max(scaled, -1.0), 0.0), rel=1e-9)
        policy = slow_log_policy(q_value[i].tolist(), allowed[1][i])
        for k in range(K):
            terms = (exp(p / 0.03) * (decoded[i, a, k].item() - p) for a, p in policy.items())
            assert soft[i, k].item() == pytest.approx(sum(terms), rel=1e-9)
    assert soft.isfinite().all() and bonus.isfinite().all()


def test_munchausen_terms_of_a_case_worked_by_hand() -> None:
    """Of two equal actions each has log pi = -log 2; one that is far worse has the lowest bonus."""
    equal, decoded = torch.zeros(1, 2), torch.tensor([[[1.0], [3.0]]])
    bonus, soft = munchausen(equal, torch.tensor([0]), equal, decoded)
    assert bonus.item() == pytest.approx(-0.9 * 0.03 * log(2))
    assert soft.item() == pytest.approx(2 + 0.03 * log(2))
    bonus, _ = munchausen(torch.tensor([[5.0, 0.0]]), torch.tensor([1]), equal, decoded)
    assert bonus.item() == pytest.approx(-0.9)


@pytest.mark.parametrize("rescales", [False, True])
@pytest.mark.parametrize("munchausen", [False, True])
def test_loss_of_implicit_quantiles_equals_slow_version(munchausen: bool, rescales: bool) -> None:
    """The whole update, with both networks called for one transition and one level at a time."""
    options: Any = {**IMPLICIT, "dueling": True, "munchausen": munchausen}
    learner, agent = make(**options, value_rescaling=rescales)
    seen, behind = (drawn(N, 3, seed=seed).float() for seed in (1, 2))
    reward, discount = drawn(N, seed=3).float(), torch.rand(N)
    valid = torch.ones(N, dtype=torch.bool)
    batch = Transitions(seen, actions(), reward, discount, behind, valid, *[torch.zeros(N)] * 2)
    noise = torch.randn(2, num_random(agent.model, N), generator=torch.Generator().manual_seed(5))
    loss, _, priority = learner.loss(batch, None, noise)
    level = [[0.5 * (1 + erf(z / sqrt(2))) for z in each.tolist()] for each in noise]

    def at(model: Any, observation: Tensor, tau: list[float]) -> Any:
        """Quantiles ``[A][K]`` of one observation, in units of the reward."""
        heads = model
        x = heads.trunk(observation)
        found = np.zeros((A, K))
        for k in range(K):
            cosines = torch.tensor([cos(pi * i * tau[k]) for i in range(64)])
            both = x * torch.relu(heads.levels.weight @ cosines + heads.levels.bias)
            advantage = heads.advantage(both)
            found[:, k] = (heads.value(both) + advantage - advantage.mean()).detach()
        return found

    def back(y: Any) -> Any:
        inner = np.sqrt(1 + 4e-3 * (abs(y) + 1 + 1e-3))
        return np.sign(y) * (((inner - 1) / 2e-3) ** 2 - 1) if rescales else y

    for i in range(N):
        own, other = (each[i * K : (i + 1) * K] for each in level)
        online, target = at(agent.model, seen[i], own), learner._target_model
        following, goal = back(at(target, behind[i], other)), reward[i].item()
        best = int(at(target, behind[i], other).mean(1).argmax())
        value = following[best]
        if munchausen:
            scaled = slow_log_policy(back(at(target, seen[i], other)).mean(1), [1] * A)
            goal += 0.9 * max(scaled[int(batch.action[i])], -1.0)
            policy = slow_log_policy(following.mean(1), [1] * A)
            value = sum(exp(p / 0.03) * (following[a] - p) for a, p in policy.items())
        goals = goal + discount[i].item() * value
        if rescales:
            goals = np.sign(goals) * (np.sqrt(abs(goals) + 1) - 1) + 1e-3 * goals
        expected = slow_quantile_loss(online[batch.action[i]], goals, own)
        assert loss[i].item() * N == pytest.approx(expected[0], rel=2e-4)
        assert priority[i].item() == pytest.approx(expected[1], rel=2e-4)


def test_fixed_quantiles_have_the_middles_of_equal_parts_as_levels() -> None:
    _, agent = make(num_atoms=K, quantiles="fixed")
    np.testing.assert_allclose(levels(agent.model, 7, K), [[0.1, 0.3, 0.5, 0.7, 0.9]], rtol=1e-6)
    assert agent.q_values(torch.arange(10.0).view(1, 2, 5)).tolist() == [[2.0, 7.0]]
    assert num_random(agent.model, 7) == 0


def test_random_levels_are_uniform_and_differ_by_row() -> None:
    layer = Levels(3, K)
    num = 4_000
    with with_noise(layer, torch.randn(num_random(layer, num))):
        level = layer.of(num)
    assert level.shape == (num, K)
    counts = torch.histc(level, 10, 0, 1) / level.numel()
    assert (counts - 0.1).abs().max() < 4 * sqrt(0.09 / level.numel())
    assert torch.equal(layer.of(num), layer.of(1))  # outside the middles, for all rows


def test_noisy_layer_equals_slow_version() -> None:
    layer, x = NoisyLinear(nn.Linear(4, 2)), torch.randn(3, 4)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()
    noise = torch.randn(num_random(layer))
    with with_noise(layer, noise):
        found = layer(x)
    scaled = [abs(e) ** 0.5 * (1 if e > 0 else -1) for e in noise.tolist()]
    a, b = scaled[:4], scaled[4:]
    for n, o in product(range(3), range(2)):
        expected = layer.bias[o] + layer.bias_noise[o] * b[o]
        for i in range(4):
            weight = layer.weight[o, i] + layer.weight_noise[o, i] * b[o] * a[i]
            expected = expected + weight * x[n, i]
        assert found[n, o].item() == pytest.approx(expected.item(), rel=1e-4, abs=1e-5)
    torch.testing.assert_close(layer(x), x @ layer.weight.T + layer.bias)


def test_noisy_layer_starts_as_in_its_paper() -> None:
    """With means within 1 / sqrt(inputs), and deviations of E[f(x)^2] = sqrt(2 / pi) per factor."""
    layer = NoisyLinear(nn.Linear(100, 50))
    assert layer.weight.abs().max() <= 0.1 and layer.bias.abs().max() <= 0.1
    assert layer.weight.std().item() == pytest.approx(0.2 / sqrt(12), rel=0.05)
    one_hot = torch.zeros(1, 100)
    outputs = []
    for _ in range(400):
        with with_noise(layer, torch.randn(150)):
            outputs.append((layer(one_hot) - layer.bias, layer(one_hot + 0.1) - layer.bias))
    bias, weight = (torch.cat(each).var(0).mean().item() for each in zip(*outputs, strict=True))
    assert bias == pytest.approx(0.05**2 * sqrt(2 / pi), rel=0.1)
    assert weight == pytest.approx(bias + 100 * 0.01 * 0.05**2 * 2 / pi, rel=0.15)


def test_noise_of_actions_changes_with_each_rollout_and_is_the_same_after_a_resume() -> None:
    learner, agent = make(**IMPLICIT, noisy=True, save_replay=True)
    source, seen = batches(), []
    for _ in range(4):
        learner.update(next(source), 0.0)
        seen.append(agent.noise.clone())
    assert len({tuple(each.tolist()) for each in seen}) == 4
    other, other_agent = make(**IMPLICIT, noisy=True, save_replay=True)
    other.sync.parameters.parameter.copy_(learner.sync.parameters.parameter)
    other.sync.load_state_dict(learner.sync.state_dict())
    other.set_state(learner.get_state())
    assert torch.equal(other_agent.noise, agent.noise)
    batch = next(source)
    for each in (learner, other):
        each.update(batch, 0.0)
    assert torch.equal(other.sync.parameters.parameter, learner.sync.parameters.parameter)


def test_actions_have_the_noise_and_evaluations_none() -> None:
    _, agent = make(noisy=True)
    observation, noise = torch.randn(200, 3), torch.ones(200)
    agent.epsilon = torch.zeros(1)
    found = []
    for _ in range(3):
        agent.noise.normal_(std=30)
        found.append((agent.act(observation, noise, slice(0, 200)), agent.greedy()))
    assert not torch.equal(found[0][0], found[1][0])
    mean = agent.q_values(agent.model(observation)).argmax(1)
    for _, greedy in found:
        assert torch.equal(greedy.act(observation, noise, slice(0, 200)), mean)


def test_heads_have_a_noisy_layer_for_each_plain_one_and_one_network_shares_no_noise() -> None:
    learner, agent = make(**IMPLICIT, noisy=True, dueling=True)
    kinds = [type(each) for each in agent.model.modules() if isinstance(each, nn.Linear)]
    assert kinds.count(NoisyLinear) == 4 and kinds.count(Levels) == 1
    seen = []
    loss = learner.loss
    learner.loss = lambda *given: (seen.append(given[2]), loss(*given))[1]  # type: ignore
    for _, batch in zip(range(4), batches(), strict=False):
        learner.update(batch, 0.0)
    assert seen and not torch.equal(*seen[0]) and not torch.equal(seen[0], seen[1])


@pytest.mark.parametrize("name", ["munchausen", "value_rescaling"])
def test_what_atoms_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=true is for values.*or leave out {name}"):
        DQNConfig(num_atoms=5, **{name: True})
    DQNConfig(num_atoms=5, quantiles="fixed", **{name: True})


def test_network_without_the_layers_is_refused() -> None:
    for options in (IMPLICIT, {"noisy": True}, {"dueling": True}):
        with pytest.raises(ValueError, match=r"model=pqn has one stream.*use another model"):
            DQNConfig(**options).make_agent(NetworkSpec("pqn", ENV, CPU))
    with pytest.raises(ValueError, match="lacks the layers of noisy=true"):
        DQNConfig(noisy=True).make_agent(NetworkSpec("own_networks:q_network", ENV, CPU))
