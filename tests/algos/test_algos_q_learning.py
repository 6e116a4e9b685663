"""Targets and losses of Q-learning against explicit loops and numbers worked out by hand."""

import math

import numpy as np
import pytest
import torch

from accel_rl.algos.q_learning import importance_weights
from accel_rl.algos.value_distributions import (
    MIN_PRIORITY,
    Values,
    categorical_loss,
    huber_loss,
    project,
)

pytestmark = pytest.mark.numeric

N, A, K = 40, 3, 7


def tensors(*shapes: tuple[int, ...], seed: int = 0) -> list[torch.Tensor]:
    rng = np.random.default_rng(seed)
    return [torch.from_numpy(rng.normal(size=shape)) for shape in shapes]


def actions(seed: int = 1) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(A, size=N))


@pytest.mark.parametrize("double", [False, True])
def test_target_equals_slow_version(double: bool) -> None:
    reward, discount, target_q, online_q = tensors((N,), (N,), (N, A), (N, A))
    action = (online_q if double else target_q).argmax(1)
    found = Values().target(reward, discount, target_q[range(N), action].unsqueeze(1))
    for i in range(N):
        chooser = online_q if double else target_q
        best = max(range(A), key=lambda a: chooser[i, a].item())
        expected = reward[i] + discount[i] * target_q[i, best]
        assert found[i].item() == pytest.approx(expected.item(), rel=1e-12)


def test_huber_loss_and_priority_equal_slow_version() -> None:
    q_value, target = tensors((N, A), (N,))
    action = actions()
    loss, priority = huber_loss(q_value, action, 2 * target, delta=0.8)
    num_linear = 0
    for i in range(N):
        error = abs(2 * target[i].item() - q_value[i, action[i]].item())
        num_linear += error > 0.8
        expected = error**2 / 2 if error <= 0.8 else 0.8 * (error - 0.4)
        assert loss[i].item() == pytest.approx(expected, rel=1e-12)
        assert priority[i].item() == pytest.approx(min(error, 0.8), rel=1e-12)
    assert 0 < num_linear < N


@pytest.mark.parametrize(("target", "gradient"), [(0.5, -0.5), (3.0, -1.0), (-3.0, 1.0)])
def test_huber_gradient_is_the_clipped_error(target: float, gradient: float) -> None:
    q_value = torch.zeros(1, A, dtype=torch.float64, requires_grad=True)
    goal = torch.tensor([target], dtype=torch.float64, requires_grad=True)
    loss, _ = huber_loss(q_value, torch.tensor([1]), goal, delta=1.0)
    loss.sum().backward()
    assert q_value.grad is not None
    assert q_value.grad[0].tolist() == [0.0, gradient, 0.0]
    assert goal.grad is None


def test_priority_of_an_exact_prediction_is_not_zero() -> None:
    zeros = torch.zeros(1, A)
    _, priority = huber_loss(zeros, torch.tensor([0]), torch.zeros(1), delta=1.0)
    assert priority.item() == pytest.approx(MIN_PRIORITY)


def slow_projection(
    reward: float, discount: float, probability: list[float], support: list[float]
) -> list[float]:
    """Algorithm 1 of arXiv:1707.06887, with its lower and upper neighbour."""
    low, high, gap = support[0], support[-1], support[1] - support[0]
    result = [0.0] * len(support)
    for p, z in zip(probability, support, strict=True):
        moved = min(max(reward + discount * z, low), high)
        place = (moved - low) / gap
        lower, upper = math.floor(place + 1e-12), math.ceil(place - 1e-12)
        if lower == upper:
            result[lower] += p
        else:
            result[lower] += p * (upper - place)
            result[upper] += p * (place - lower)
    return result


def test_projection_equals_algorithm_1_over_ends_of_episodes_and_of_the_support() -> None:
    support = torch.linspace(-2, 1, K, dtype=torch.float64)
    reward, logits = tensors((N,), (N, K))
    reward = reward * 2  # far beyond either end
    discount = torch.tensor([0.0, 0.99, 0.97, 1.0] * (N // 4), dtype=torch.float64)
    probability = logits.softmax(1)
    found = project(reward, discount, probability, support)
    torch.testing.assert_close(found.sum(1), torch.ones(N, dtype=torch.float64))
    for i in range(N):
        expected = slow_projection(
            reward[i].item(), discount[i].item(), probability[i].tolist(), support.tolist()
        )
        np.testing.assert_allclose(found[i].numpy(), expected, atol=1e-12)


def test_projection_of_one_case_equals_hand_computed() -> None:
    # atoms 0, 1, 2 move to 0.5 + 0.5 z = 0.5, 1, 1.5; halves of the first and last go to 0 and 2
    support = torch.tensor([0.0, 1.0, 2.0])
    found = project(
        torch.tensor([0.5]), torch.tensor([0.5]), torch.tensor([[0.2, 0.3, 0.5]]), support
    )
    torch.testing.assert_close(found, torch.tensor([[0.1, 0.1 + 0.3 + 0.25, 0.25]]))


def test_projection_in_float32_keeps_the_mass() -> None:
    """The distance of two atoms far from 0 is known to fewer digits than that of all."""
    support = torch.linspace(-10, 10, 51)
    reward, logits = tensors((N,), (N, 51))
    probability = logits.float().softmax(1)
    found = project(reward.float(), torch.full((N,), 0.99), probability, support)
    error = (found.double() - probability.double()).sum(1)
    # Rounded, the distances of neighbours differ from their mean by up to 2e-6 of it, up and down.
    # With that of the first two for all, every mass would be wrong by 1e-6.
    assert error.abs().max() < 2e-6
    assert error.mean().abs() < 3e-7


def test_categorical_loss_and_priority_equal_slow_version() -> None:
    logits, target_logits = tensors((N, A, K), (N, K))
    target = target_logits.softmax(1)
    target[0] = torch.eye(K)[2]  # terminal: all on one atom, 0 log 0 among them
    action = actions()
    loss, priority = categorical_loss(logits, action, target)
    for i in range(N):
        weights = [math.exp(z) for z in logits[i, action[i]].tolist()]
        p = [w / sum(weights) for w in weights]
        t = target[i].tolist()
        cross = -sum(a * math.log(b) for a, b in zip(t, p, strict=True))
        divergence = sum(a * math.log(a / b) for a, b in zip(t, p, strict=True) if a > 0)
        assert loss[i].item() == pytest.approx(cross, rel=1e-12)
        assert priority[i].item() == pytest.approx(divergence, rel=1e-9)


def test_categorical_gradient_is_prediction_less_target() -> None:
    (logits,) = tensors((1, A, K))
    logits.requires_grad_()
    target = torch.full((1, K), 1 / K, dtype=torch.float64)
    loss, _ = categorical_loss(logits, torch.tensor([2]), target)
    loss.sum().backward()
    assert logits.grad is not None
    assert not logits.grad[0, :2].any()
    expected = logits.detach()[0, 2].softmax(0) - target[0]
    torch.testing.assert_close(logits.grad[0, 2], expected)


def test_importance_weights_equal_slow_version() -> None:
    probability = torch.tensor([0.5, 0.1, 0.02], dtype=torch.float64)
    found = importance_weights(probability, probability.min(), beta=0.4)
    # (1 / (n p)) ** beta over the largest, whatever n
    expected = [(1 / (1000 * p)) ** 0.4 / (1 / (1000 * 0.02)) ** 0.4 for p in (0.5, 0.1, 0.02)]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)
    assert found.max() == 1


def test_wrong_shapes_are_refused() -> None:
    q_value, column = tensors((N, A), (N, 1))
    with pytest.raises(ValueError, match=r"expected \[N\]"):
        huber_loss(q_value, actions(), column, delta=1.0)
    with pytest.raises(ValueError, match=r"expected \[N, K\]"):
        categorical_loss(q_value.unsqueeze(2), actions(), q_value)
