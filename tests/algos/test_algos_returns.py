"""Returns and advantages against explicit double loops and numbers worked out by hand."""

import itertools

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from accel_rl.algos import discounted_returns, fold_truncation, generalized_advantages
from accel_rl.algos.returns import lambda_returns

pytestmark = pytest.mark.numeric

GAMMA = 0.9
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def slow_return(
    t: int,
    b: int,
    reward: Floats,
    terminated: Bools,
    truncated: Bools,
    final_value: Floats,
    bootstrap_value: Floats,
) -> float:
    """Sum of discounted rewards from step t until the episode or the rollout ends."""
    total = 0.0
    for k in itertools.count():
        if t + k == len(reward):
            return total + GAMMA**k * bootstrap_value[b]
        total += GAMMA**k * reward[t + k, b]
        if terminated[t + k, b]:
            return total
        if truncated[t + k, b]:
            return total + GAMMA ** (k + 1) * final_value[t + k, b]
    raise AssertionError


def slow_advantage(
    t: int,
    b: int,
    reward: Floats,
    terminated: Bools,
    truncated: Bools,
    final_value: Floats,
    value: Floats,
    gae_lambda: float,
) -> float:
    """Sum of discounted TD errors (equation 16), `value` [T + 1, B]."""
    total = 0.0
    for k in range(len(reward) - t):
        here = t + k
        if terminated[here, b]:
            after = 0.0
        elif truncated[here, b]:
            after = final_value[here, b]
        else:
            after = value[here + 1, b]
        total += (GAMMA * gae_lambda) ** k * (reward[here, b] + GAMMA * after - value[here, b])
        if terminated[here, b] or truncated[here, b]:
            break
    return total


def random_rollout(T: int, B: int, seed: int) -> tuple[Floats, Bools, Bools, Floats, Floats]:
    rng = np.random.default_rng(seed)
    terminated, truncated = rng.random((2, T, B)) < 0.25  # both at once included
    reward, final_value = rng.normal(size=(2, T, B))
    return reward, terminated, truncated, final_value, rng.normal(size=(T + 1, B))


def fold(
    reward: Floats, terminated: Bools, truncated: Bools, final_value: Floats
) -> tuple[torch.Tensor, torch.Tensor]:
    valid = np.ones_like(terminated)
    arrays = (reward, terminated, truncated, valid, final_value)
    return fold_truncation(*map(torch.from_numpy, arrays), gamma=GAMMA)


def test_step_that_a_lost_worker_did_not_take_discounts_nothing() -> None:
    """Steps 0 and 1 of one environment were taken, 2 was not; its episode goes on from there."""
    reward, final_value = torch.tensor([[1.0], [2.0], [0.0]]), torch.tensor([[0.0], [0.0], [12.0]])
    truncated = torch.tensor([[False], [False], [True]])
    terminated = torch.zeros_like(truncated)
    folded = fold_truncation(reward, terminated, truncated, ~truncated, final_value, gamma=0.9)
    value = torch.tensor([[5.0], [7.0], [12.0]])
    for gae_lambda, expected in ((1.0, [1 + 0.9 * 12.8, 12.8]), (0.0, [1 + 0.9 * 7, 12.8])):
        advantage = generalized_advantages(*folded, value, torch.tensor([99.0]), gae_lambda)
        assert (advantage + value)[:2, 0].tolist() == pytest.approx(expected)  # 12.8 = 2 + 0.9 * 12


@pytest.mark.parametrize("T", [1, 2, 5, 13])
def test_returns_of_random_rollout_equal_double_loop(T: int) -> None:
    *arrays, value = random_rollout(T, 50, seed=T)
    found = discounted_returns(*fold(*arrays), torch.from_numpy(value[-1]))
    expected = [[slow_return(t, b, *arrays, value[-1]) for b in range(50)] for t in range(T)]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("gae_lambda", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("T", [1, 5, 13])
def test_advantages_of_random_rollout_equal_double_loop(T: int, gae_lambda: float) -> None:
    *arrays, value = random_rollout(T, 50, seed=T)
    found = generalized_advantages(
        *fold(*arrays), torch.from_numpy(value[:-1]), torch.from_numpy(value[-1]), gae_lambda
    )
    expected = [
        [slow_advantage(t, b, *arrays, value, gae_lambda) for b in range(50)] for t in range(T)
    ]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-12)


def slow_lambda_return(
    t: int,
    b: int,
    reward: Floats,
    terminated: Bools,
    truncated: Bools,
    final_value: Floats,
    value: Floats,
    return_lambda: float,
) -> float:
    """The n-step returns of step t for each n, weighted by powers of lambda; `value` [T + 1, B]."""
    returns, rewards = [], 0.0
    for k in range(len(reward) - t):
        here = t + k
        rewards += GAMMA**k * reward[here, b]
        if terminated[here, b]:
            returns.append(rewards)
            break
        behind = final_value[here, b] if truncated[here, b] else value[here + 1, b]
        returns.append(rewards + GAMMA ** (k + 1) * behind)
        if truncated[here, b]:
            break
    *before, last = returns
    total = sum((1 - return_lambda) * return_lambda**n * each for n, each in enumerate(before))
    return total + return_lambda ** len(before) * last


@pytest.mark.parametrize("return_lambda", [0.0, 0.65, 1.0])
@pytest.mark.parametrize("T", [1, 5, 13])
def test_lambda_returns_of_random_rollout_equal_double_loop(T: int, return_lambda: float) -> None:
    *arrays, value = random_rollout(T, 50, seed=T)
    found = lambda_returns(*fold(*arrays), torch.from_numpy(value[1:]), return_lambda)
    expected = [
        [slow_lambda_return(t, b, *arrays, value, return_lambda) for b in range(50)]
        for t in range(T)
    ]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-12)


def test_lambda_returns_of_one_column_equal_hand_computed() -> None:
    # gamma 0.9, lambda 0.5, values 4, 6, 10, terminated at t = 1:
    # R[2] = 3 + 0.9 * 10 = 12;  R[1] = 2;  R[0] = 1 + 0.9 * (0.5 * 2 + 0.5 * 4) = 3.7
    reward, value = torch.tensor([[[1.0], [2.0], [3.0]], [[4.0], [6.0], [10.0]]])
    discount = torch.tensor([[0.9], [0.0], [0.9]])
    found = lambda_returns(reward, discount, value, 0.5)
    assert found[:, 0].tolist() == pytest.approx([3.7, 2.0, 12.0])


def test_advantages_with_lambda_one_are_returns_minus_values() -> None:
    *arrays, value = random_rollout(7, 20, seed=0)
    folded, values = fold(*arrays), torch.from_numpy(value)
    advantage = generalized_advantages(*folded, values[:-1], values[-1], gae_lambda=1.0)
    torch.testing.assert_close(
        advantage, discounted_returns(*folded, values[-1]) - values[:-1], rtol=1e-12, atol=1e-12
    )


def test_returns_of_one_column_equal_hand_computed() -> None:
    # gamma 0.9, bootstrap 10, truncated at t = 1 with final value 5:
    # R[2] = 3 + 0.9 * 10 = 12;  R[1] = 2 + 0.9 * 5 = 6.5;  R[0] = 1 + 0.9 * 6.5 = 6.85
    reward = np.array([[1.0], [2.0], [3.0]])
    truncated = np.array([[False], [True], [False]])
    final_value = np.array([[7.0], [5.0], [7.0]])
    folded = fold(reward, np.zeros_like(truncated), truncated, final_value)
    returns = discounted_returns(*folded, torch.tensor([10.0], dtype=torch.float64))
    np.testing.assert_allclose(returns[:, 0].numpy(), [6.85, 6.5, 12.0], rtol=1e-12)


@pytest.mark.parametrize("kind", ["terminated", "truncated", "both"])
@pytest.mark.parametrize(("T", "end"), [(T, end) for T in (1, 3, 6) for end in range(T)])
def test_episode_end_at_each_step_cuts_the_return_there(T: int, end: int, kind: str) -> None:
    reward = np.ones((T, 1))
    terminated, truncated = np.zeros((2, T, 1), np.bool_)
    terminated[end] = kind != "truncated"
    truncated[end] = kind != "terminated"
    final_value, bootstrap_value = np.full((T, 1), 100.0), np.array([1000.0])
    arrays = (reward, terminated, truncated, final_value)
    found = discounted_returns(*fold(*arrays), torch.from_numpy(bootstrap_value))
    expected = [slow_return(t, 0, *arrays, bootstrap_value) for t in range(T)]
    np.testing.assert_allclose(found[:, 0].numpy(), expected, rtol=1e-12)
    # before the end nothing of what comes after it, behind it nothing of the end
    after_end = 0.0 if kind != "truncated" else 100.0
    assert found[end, 0].item() == pytest.approx(1 + GAMMA * after_end)
    if end + 1 < T:
        assert found[-1, 0].item() == pytest.approx(1 + GAMMA * 1000)


def test_zero_final_value_makes_truncation_terminal() -> None:
    reward, terminated, truncated, final_value, _ = random_rollout(6, 30, seed=1)
    treated = fold(reward, terminated, truncated, np.zeros_like(final_value))
    terminal = fold(reward, terminated | truncated, np.zeros_like(truncated), final_value)
    assert all(torch.equal(a, b) for a, b in zip(treated, terminal, strict=True))


def test_targets_carry_no_gradient() -> None:
    *arrays, value = random_rollout(4, 3, seed=0)
    values = torch.from_numpy(value).requires_grad_()
    folded = fold(*arrays)
    assert not discounted_returns(*folded, values[-1]).requires_grad
    assert not generalized_advantages(*folded, values[:-1], values[-1], 0.9).requires_grad
    assert not lambda_returns(*folded, values[1:], 0.9).requires_grad


def test_mismatched_shapes_are_refused() -> None:
    reward = torch.zeros(3, 2)
    with pytest.raises(ValueError, match=r"expected \[T, B\] \[3, 2\], got \[2, 3\]"):
        discounted_returns(reward, torch.zeros(2, 3), torch.zeros(2))
    with pytest.raises(ValueError, match=r"floating-point \[T, B\], got torch.int64"):
        discounted_returns(reward.long(), reward, torch.zeros(2))
