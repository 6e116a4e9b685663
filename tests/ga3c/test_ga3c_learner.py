"""GA3C's loss against explicit loops in both forms, and one update against autograd by hand."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from accel_rl.agents import PolicyAgent
from accel_rl.ga3c.learner import (
    GA3C,
    GA3CConfig,
    Samples,
    ga3c_loss,
    importance_ratios,
    segment_vtrace,
)
from accel_rl.models import PolicyValue, make_model
from accel_rl.parallel import FlatParameters, Local
from accel_rl.spaces import Leaf

pytestmark = pytest.mark.numeric


@pytest.mark.parametrize("is_weighted", [False, True], ids=["as it comes", "weighted"])
def test_loss_of_each_sample_equals_slow_version(is_weighted: bool) -> None:
    rng = np.random.default_rng(0)
    logits, value = rng.normal(size=(30, 4)) * 8, rng.normal(size=30)
    action, return_ = rng.integers(4, size=30), rng.normal(size=30)
    ratio = rng.uniform(0, 2, size=30) if is_weighted else np.ones(30)
    eps = 1e-3  # large enough to matter
    expected = []
    for i in range(30):
        weights = [math.exp(z) for z in logits[i]]
        pi = [w / sum(weights) for w in weights]
        logs = [math.log(p + eps) for p in pi]
        policy = -ratio[i] * (return_[i] - value[i]) * logs[action[i]]
        square = (return_[i] - value[i]) ** 2
        entropy = -sum(p * each for p, each in zip(pi, logs, strict=True))
        expected.append([policy + 0.5 * square - 0.01 * entropy, policy, square, entropy])
    loss = ga3c_loss(
        PolicyValue(torch.from_numpy(logits), torch.from_numpy(value)),
        torch.from_numpy(action),
        torch.from_numpy(return_),
        torch.from_numpy(ratio * (return_ - value)),
        value_coefficient=0.5,
        entropy_coefficient=0.01,
        log_eps=eps,
    )
    np.testing.assert_allclose(torch.stack(loss, 1).numpy(), expected, rtol=1e-12, atol=1e-14)


def test_loss_refuses_other_shapes() -> None:
    output = PolicyValue(torch.zeros(3, 2), torch.zeros(3))
    action = torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ValueError, match="expected \\[N\\] with N = 3"):
        ga3c_loss(output, action, torch.zeros(2), torch.zeros(3), 0.5, 0.01, 1e-6)


def test_importance_ratios_by_hand() -> None:
    logits = torch.tensor([[0.0, math.log(3)], [0.0, math.log(3)]], requires_grad=True)
    found = importance_ratios(logits, torch.tensor([1, 0]), torch.tensor([0.25, 0.5]))
    assert found.tolist() == pytest.approx([3.0, 0.5])  # 0.75 / 0.25; 0.25 / 0.5
    assert not found.requires_grad
    with pytest.raises(ValueError, match="expected \\[N\\] with N = 2"):
        importance_ratios(logits, torch.tensor([1, 0]), torch.ones(2, 1))


LENGTHS = [3, 1, 5, 5, 2]


def make_segments() -> tuple[list[np.ndarray], list[float], list[np.ndarray], list[np.ndarray]]:
    """Rewards of each, what its n-step returns end with, values, and ratios of probabilities."""
    rng = np.random.default_rng(2)
    rewards, values = ([rng.normal(size=L) for L in LENGTHS] for _ in range(2))
    ratios = [np.exp(rng.normal(size=L)) for L in LENGTHS]
    return rewards, [0.0, *rng.normal(size=4).tolist()], values, ratios


def n_step_returns(reward: np.ndarray, behind: float, gamma: float) -> np.ndarray:
    L = len(reward)
    return np.array(
        [
            sum(gamma ** (k - t) * reward[k] for k in range(t, L)) + gamma ** (L - t) * behind
            for t in range(L)
        ]
    )


def segment_samples(gamma: float, dtype: Any = np.float64, **fields: Any) -> Samples:
    """Of `make_segments`, unless ``fields`` has others."""
    rewards, behind, _, _ = make_segments()
    pairs = zip(rewards, behind, strict=True)
    return_ = np.concatenate([n_step_returns(*pair, gamma) for pair in pairs])
    discount = np.concatenate([[gamma] * (L - 1) + [0] for L in LENGTHS])
    own = {"observation": torch.empty(0), "action": torch.empty(0), "longest": max(LENGTHS)}
    own["return_"], own["discount"] = (
        torch.from_numpy(each.astype(dtype)) for each in (return_, discount)
    )
    return Samples(**(own | fields))


def slow_vtrace(
    s: int,
    reward: np.ndarray,
    states: np.ndarray,
    ratio: np.ndarray,
    gamma: float,
    clips: tuple[float, float],
) -> float:
    """Equation 1 of the paper: V(x_s) and all temporal differences after it, [L + 1] states."""
    total = float(states[s])
    for t in range(s, len(reward)):
        product = math.prod(min(clips[1], ratio[i]) for i in range(s, t))
        error = reward[t] + gamma * states[t + 1] - states[t]
        total += gamma ** (t - s) * product * min(clips[0], ratio[t]) * error
    return total


@pytest.mark.parametrize("clips", [(1.0, 1.0), (2.0, 1.2), (math.inf, math.inf)])
def test_vtrace_of_segments_equals_sums_of_products(clips: tuple[float, float]) -> None:
    rewards, behind, values, ratios = make_segments()
    expected: list[tuple[float, float]] = []
    for reward, last, value, ratio in zip(rewards, behind, values, ratios, strict=True):
        states = np.append(value, last)
        targets = [slow_vtrace(s, reward, states, ratio, 0.9, clips) for s in range(len(reward))]
        for s, rho in enumerate(np.minimum(clips[0], ratio)):
            following = [*targets, last][s + 1]
            expected.append((targets[s], rho * (reward[s] + 0.9 * following - value[s])))
    value, ratio = (torch.from_numpy(np.concatenate(each)) for each in (values, ratios))
    found = segment_vtrace(segment_samples(0.9), value, ratio, *clips)
    np.testing.assert_allclose(torch.stack(found, 1).numpy(), expected, rtol=1e-10, atol=1e-12)


def make_learner(config: GA3CConfig) -> tuple[GA3C, Any, Local]:
    torch.manual_seed(0)
    model = make_model("mlp", Leaf((4,), np.dtype(np.float32)), 3)
    sync = Local(FlatParameters(model), config.rule, config.max_gradient_norm)
    return GA3C(PolicyAgent(model), config, sync), model, sync


def test_vtrace_without_probabilities_is_refused() -> None:
    samples = Samples(torch.zeros(5, 4), torch.zeros(5, dtype=torch.int64), torch.zeros(5))
    learner, _, _ = make_learner(GA3CConfig(vtrace=True))
    with pytest.raises(ValueError, match=r"vtrace=true .*behaviour_probability"):
        learner.update(samples, 0.0)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_update_is_one_step_of_the_rule_on_the_gradient_of_the_loss(reduction) -> None:
    learner, model, sync = make_learner(GA3CConfig(lr=0.1, loss_reduction=reduction))
    rng = np.random.default_rng(1)
    batch = Samples(
        torch.from_numpy(rng.normal(size=(7, 4)).astype(np.float32)),
        torch.from_numpy(rng.integers(3, size=7)),
        torch.from_numpy(rng.normal(size=7).astype(np.float32)),
    )
    before = sync.parameters.parameter.clone()
    output = model(batch.observation)
    probability = output.logits.softmax(1)
    log = (probability + 1e-6).log()
    advantage = (batch.return_ - output.value).detach()
    each = -advantage * log[torch.arange(7), batch.action]
    each = each + 0.5 * (batch.return_ - output.value) ** 2 + 0.01 * (probability * log).sum(1)
    loss = each.sum() if reduction == "sum" else each.mean()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    metrics = learner.update(batch, 0.0)
    norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
    assert metrics["gradient_norm"].item() == pytest.approx(norm, rel=1e-5)
    assert metrics["mean_value_target"].item() == pytest.approx(batch.return_.mean().item())
    assert metrics["value_loss"].item() == pytest.approx(advantage.square().mean().item(), rel=1e-5)
    gradient = sync.parameters.gradient
    expected = before - 0.1 * gradient / (0.99 + 0.01 * gradient**2 + 0.1).sqrt()
    torch.testing.assert_close(sync.parameters.parameter, expected)


def test_update_with_vtrace_learns_its_returns_and_advantages() -> None:
    learner, model, _ = make_learner(GA3CConfig(vtrace=True, gamma=0.9))
    N, rng = sum(LENGTHS), np.random.default_rng(1)
    batch = segment_samples(
        0.9,
        np.float32,
        observation=torch.from_numpy(rng.normal(size=(N, 4)).astype(np.float32)),
        action=torch.from_numpy(rng.integers(3, size=N)),
        behaviour_probability=torch.from_numpy(rng.uniform(0.1, 1, size=N).astype(np.float32)),
    )
    output = model(batch.observation)
    mu = batch.behaviour_probability
    ratio = output.logits.softmax(1)[torch.arange(N), batch.action] / mu
    return_, advantage = segment_vtrace(batch, output.value, ratio)
    log = (output.logits.softmax(1) + 1e-6).log()[torch.arange(N), batch.action]
    metrics = learner.update(batch, 0.0)
    for name, expected in (
        ("mean_value_target", return_),
        ("value_loss", (return_ - output.value) ** 2),
        ("policy_loss", -advantage * log),
    ):
        assert metrics[name].item() == pytest.approx(expected.mean().item(), rel=1e-5), name
