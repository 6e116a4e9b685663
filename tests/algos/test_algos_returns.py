"""Returns and advantages against explicit double loops."""

import itertools

import numpy as np
import pytest
import torch
from made_rollouts import made_rollout
from numpy.typing import NDArray
from tiers import first_quick

from accel_rl.algos import discounted_returns, fold_truncation, generalized_advantages
from accel_rl.algos.returns import importance_ratio, lambda_returns, values_beyond, vtrace

pytestmark = pytest.mark.numeric

GAMMA = 0.9
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


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


def slow_lambda_return(
    t: int,
    b: int,
    reward: Floats,
    terminated: Bools,
    truncated: Bools,
    final_value: Floats,
    value: Floats,
    q_lambda: float,
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
    total = sum((1 - q_lambda) * q_lambda**n * each for n, each in enumerate(before))
    return total + q_lambda ** len(before) * last


@pytest.mark.parametrize("lambda_", [0.0, 0.65, 1.0])
@pytest.mark.parametrize("T", [1, 2, 5, 13])
def test_returns_and_advantages_of_random_rollout_equal_double_loop(T: int, lambda_: float) -> None:
    *arrays, value = random_rollout(T, 50, seed=T)
    expected = [
        [slow_lambda_return(t, b, *arrays, value, lambda_) for b in range(50)] for t in range(T)
    ]
    folded, values = fold(*arrays), torch.from_numpy(value)
    advantage = generalized_advantages(*folded, values[:-1], values[-1], lambda_)
    found = [lambda_returns(*folded, values[1:], lambda_), advantage + values[:-1]]
    if lambda_ == 1:
        found.append(discounted_returns(*folded, values[-1]))
    for each in found:
        np.testing.assert_allclose(each.numpy(), expected, rtol=1e-12, atol=1e-12)


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


KINDS = ("goes on", "terminated", "truncated", "both", "lost", "not taken")
"""what a step may be: a lost one was not taken since its worker was lost; another one that was not
taken is a reset, or waits for one"""
LIMITS = [(1.0, 1.0, 1.0), (2.0, 1.0, 1.0), (1.5, 1.2, 0.7), (np.inf, np.inf, 1.0), (1.0, 1.0, 0.0)]


def possible_columns(T: int) -> list[tuple[str, ...]]:
    """Every order of ends; what comes behind a step that goes on was begun."""
    return [
        kinds
        for kinds in itertools.product(KINDS, repeat=T)
        if not any(a == "goes on" and b == "not taken" for a, b in itertools.pairwise(kinds))
    ]


def slow_vtrace(
    s: int,
    kinds: tuple[str, ...],
    reward: Floats,
    value: Floats,
    final_value: Floats,
    ratio: Floats,
    limits: tuple[float, float, float],
) -> tuple[float, float]:
    """Return and advantage of step s of one environment, by sums of products, ``value`` [T + 1].

    The trajectory is x_s, ..., x_end, of which x_end has no step any more: the episode or the
    rollout ends, or the worker is lost. Equation 1 and, for lambda below 1, remark 2.
    """
    rho_clip, c_clip, gae_lambda = limits
    states = [value[s]]  # V(x_s), V(x_s+1), ...
    steps = []
    for t in range(s, len(kinds)):
        if kinds[t] == "lost":  # which begins in the final observation, x_end
            break
        steps.append(t)
        ends = {"terminated": 0.0, "both": 0.0, "truncated": final_value[t]}
        states.append(ends.get(kinds[t], value[t + 1]))
        if kinds[t] in ends:
            break
    rho = [min(rho_clip, ratio[t]) for t in steps]
    c = [gae_lambda * min(c_clip, ratio[t]) for t in steps]

    def target(start: int) -> float:
        total = states[start]
        for k in range(start, len(steps)):
            product = 1.0
            for i in range(start, k):
                product *= c[i]
            error = reward[steps[k]] + GAMMA * states[k + 1] - states[k]
            total += GAMMA ** (k - start) * product * rho[k] * error
        return float(total)

    following = gae_lambda * target(1) + (1 - gae_lambda) * states[1]
    return target(0), float(rho[0] * (reward[s] + GAMMA * following - states[0]))


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("T", first_quick([1, 3, 2, 4], 2))
def test_vtrace_of_every_pattern_of_ends_equals_sums_of_products(
    T: int, limits: tuple[float, float, float]
) -> None:
    columns = possible_columns(T)
    B, rng = len(columns), np.random.default_rng(T)
    kinds = np.array(columns).T  # [T, B]
    valid = ~np.isin(kinds, ["lost", "not taken"])
    terminated = np.isin(kinds, ["terminated", "both"])
    truncated = np.isin(kinds, ["truncated", "both", "lost"])
    reward, final_value, log_ratio = rng.normal(size=(3, T, B))
    value = rng.normal(size=(T + 1, B))
    is_lost = kinds == "lost"
    final_value[is_lost] = value[:-1][is_lost]  # of the same observation
    reward[~valid] = 0.0
    log_ratio[~valid] = np.nan  # of an action that nobody has taken
    arrays = (reward, terminated, truncated, valid, final_value)
    folded = fold_truncation(*map(torch.from_numpy, arrays), gamma=GAMMA)
    behaviour = rng.normal(size=(T, B))
    log_probs = torch.from_numpy(behaviour + log_ratio), torch.from_numpy(behaviour)
    ratio = importance_ratio(*log_probs, torch.from_numpy(valid))
    values = torch.from_numpy(value)
    return_, advantage = vtrace(*folded, values[:-1], values[-1], ratio, limits[2], *limits[:2])
    for b, column in enumerate(columns):
        for s in np.flatnonzero(valid[:, b]):
            own = (each[:, b] for each in (reward, value, final_value, np.exp(log_ratio)))
            expected = slow_vtrace(int(s), column, *own, limits)  # type: ignore[arg-type]
            found = return_[s, b].item(), advantage[s, b].item()
            assert found == pytest.approx(expected, rel=1e-9, abs=1e-12), (column, s)


def test_vtrace_carries_no_gradient() -> None:
    values = torch.randn(5, 3, requires_grad=True)
    ones = torch.ones(4, 3)
    ratio = importance_ratio(values[1:], ones, ones.bool())
    assert not ratio.requires_grad
    found = vtrace(ones, ones, values[:-1], values[-1], values[1:].exp())
    assert not any(each.requires_grad for each in found)


@pytest.mark.parametrize("num_final", [0, 1])
def test_cudnn_times_no_algorithms_for_a_number_of_observations_that_hardly_comes_again(
    num_final: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    seen = []

    def value_of(observation: torch.Tensor, _: object) -> torch.Tensor:
        seen.append((len(observation), torch.backends.cudnn.benchmark))
        return observation[:, 0]

    first = torch.zeros(num_final, dtype=torch.long)
    zeros = torch.zeros(3, 2)
    finals = {"final_observation": torch.zeros(num_final, 1), "final_step": first}
    batch = made_rollout(torch.zeros(4, 2, 1), zeros, zeros, **finals, final_env=first)
    values_beyond(value_of, batch, bootstrap_on_truncation=True)
    assert seen == [(2 + num_final, num_final == 0)]
    assert torch.backends.cudnn.benchmark
