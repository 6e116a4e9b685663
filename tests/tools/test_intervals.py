"""Aggregates and intervals over games and seeds, against the definitions written out slowly."""

import itertools
import statistics as slow

import numpy as np
import pytest

from accel_rl.tools.intervals import (
    Estimate,
    aggregate,
    interval_of_mean,
    statistics,
)


def slow_iqm(scores: list[float]) -> float:
    """The mean of what is left when a quarter of the scores is taken off either end."""
    rest = sorted(scores)
    for _ in range(len(scores) // 4):
        rest = rest[1:-1]
    return sum(rest) / len(rest)


def slow_statistics(games: list[list[float]]) -> dict[str, float]:
    means = [sum(game) / len(game) for game in games]
    return {
        "iqm": slow_iqm([score for game in games for score in game]),
        "mean": sum(means) / len(means),
        "median": slow.median(means),
    }


def games_of(shape: list[int], seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=runs) ** 3 for runs in shape]


@pytest.mark.parametrize("shape", [[1], [3], [2, 2], [3, 3, 3], [5, 1, 4], [3] * 49], ids=str)
def test_point_estimates_equal_the_definitions(shape: list[int]) -> None:
    games = games_of(shape)
    found = aggregate(games)
    expected = slow_statistics([game.tolist() for game in games])
    assert {name: each.value for name, each in found.items()} == pytest.approx(expected)


def test_statistics_of_each_draw_equal_the_definitions() -> None:
    rng = np.random.default_rng(1)
    draws = [rng.normal(size=(20, runs)) for runs in (3, 5, 2)]
    found = statistics(draws)
    for draw in range(20):
        expected = slow_statistics([game[draw].tolist() for game in draws])
        assert {name: values[draw] for name, values in found.items()} == pytest.approx(expected)


def test_interval_is_that_of_all_possible_resamples() -> None:
    """Two games of three and four runs: 27 x 256 equally likely draws, each game's its own."""
    games = [[0.0, 1.0, 10.0], [100.0, 140.0, 150.0, 120.0]]
    everything = [
        slow_statistics([list(a), list(b)])
        for a in itertools.product(games[0], repeat=3)
        for b in itertools.product(games[1], repeat=4)
    ]
    found = aggregate([np.array(game) for game in games])
    for name, estimate in found.items():
        exact = sorted(each[name] for each in everything)
        assert min(abs(estimate.low - value) for value in exact) < 1
        # The share of draws at or below each end, within 4 standard errors of 2,000 draws.
        below = np.mean([value <= estimate.low + 1e-9 for value in exact])
        within = np.mean([value <= estimate.high + 1e-9 for value in exact])
        tolerance = 4 * np.sqrt(0.025 * 0.975 / 2_000)
        assert below > 0.025 - tolerance and within > 0.975 - tolerance
        strictly_below = np.mean([value < estimate.low - 1e-9 for value in exact])
        strictly_within = np.mean([value < estimate.high - 1e-9 for value in exact])
        assert strictly_below < 0.025 + tolerance and strictly_within < 0.975 + tolerance
        assert not estimate.is_range and exact[0] <= estimate.low <= estimate.high <= exact[-1]


def test_interval_of_a_curve_is_the_same_at_each_point() -> None:
    y = np.random.default_rng(2).normal(size=(5, 4))
    low, high = interval_of_mean(y)
    for place, column in enumerate(y.T):
        mean = aggregate([column])["mean"]
        assert (mean.low, mean.high) == pytest.approx((low[place], high[place]))
        assert column.min() <= mean.low < mean.value < mean.high <= column.max()


def test_fewer_than_three_runs_have_their_range_and_one_has_nothing() -> None:
    games = [[1.0, 4.0], [10.0, 30.0, 20.0]]
    found = aggregate([np.array(game) for game in games])
    low, high = (slow_statistics([[end(game)] * len(game) for game in games]) for end in (min, max))
    for name, estimate in found.items():
        assert (estimate.low, estimate.high) == pytest.approx((low[name], high[name]))
        assert estimate.is_range and "range [" in str(estimate)
    assert [each.tolist() for each in interval_of_mean(np.array([[1.0], [3.0]]))] == [[1.0], [3.0]]
    assert np.isnan(interval_of_mean(np.array([[1.0]]))).all()
    assert all(np.isnan(each.low) for each in aggregate(games_of([1, 1, 1])).values())
    texts = [str(Estimate(1234.5, low, 2000.0)) for low in (1000.0, np.nan)]
    assert texts == ["1,234.50 [1,000.00, 2,000.00]", "1,234.50"]


def test_games_are_resampled_apart_and_draws_are_seeded() -> None:
    """Each game's runs are alike, the games far apart: nothing can vary."""
    found = aggregate([np.ones(3), np.full(3, 50.0)])
    assert all((each.low, each.high) == (each.value, each.value) for each in found.values())
    games = games_of([4, 4])
    assert aggregate(games) == aggregate(games) != aggregate(games, seed=1)
