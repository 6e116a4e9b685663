"""GA3C's dynamic adjustment: climbs noisy surfaces, and measures its baseline where it stands."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from accel_rl.ga3c.tuner import Tuner

Counts = tuple[int, ...]
LEAST, MOST = (1, 1, 1), (4, 4, 12)


def saturating(counts: Counts) -> float:
    """Each place saturates; beyond that, each one more costs 4 %."""
    best = (2, 2, 8)
    shares = [
        min(n, at) / at * (1 - 0.04 * max(0, n - at)) for n, at in zip(counts, best, strict=True)
    ]
    return float(np.prod(shares))


def ridge(counts: Counts) -> float:
    """A chain as fast as its slowest link: from the ridge, no change in one place alone pays."""
    p, t, a = counts
    return min(3 * p, 5 * t, a) / (1 + 0.05 * (p + t + 0.3 * a))


def climb(surface: Any, noise: float, seed: int, windows: int = 120, most: Counts = MOST) -> Tuner:
    rng = np.random.default_rng(seed)
    tuner = Tuner(LEAST, LEAST, most, rng)
    for _ in range(windows):
        assert all(np.less_equal(LEAST, tuner.counts)) and all(np.less_equal(tuner.counts, most))
        tuner.after_window(surface(tuner.counts) * (1 + noise * rng.standard_normal()))
    return tuner


def wide(counts: Counts) -> float:
    """As measured with a thread or two of each kind and 1 to 64 agents: agents count."""
    p, t, a = counts
    return a / (a + 3) * (1 - 0.03 * abs(t - 2) - 0.03 * (p - 1))


@pytest.mark.parametrize(
    ("surface", "most", "windows", "reached"),
    [
        (saturating, MOST, 120, 0.95),
        (ridge, MOST, 120, 0.95),
        (wide, (4, 4, 64), 60, 0.9),
    ],
)
def test_tuner_climbs_a_noisy_surface_to_near_its_best(surface, most, windows, reached) -> None:
    best = max(map(surface, product(*map(range, LEAST, np.add(most, 1)))))
    assert surface(LEAST) < 0.3 * best
    found = [surface(climb(surface, 0.05, seed, windows, most).kept) / best for seed in range(40)]
    # One may just have been misled.
    assert np.quantile(found, 0.1) >= reached
    assert min(found) > reached - 0.1


@pytest.mark.parametrize(("surface", "slowdown"), [(saturating, 0.5), (ridge, 0.7), (ridge, 0.9)])
def test_slower_counts_are_not_kept_when_all_becomes_slower(surface, slowdown) -> None:
    """Windows remembered from before would speak for what runs less often than what is kept."""
    for seed in range(15):
        tuner = climb(surface, 0.0, seed, windows=80)
        for _ in range(120):
            before = tuner.kept
            tuner.after_window(slowdown * surface(tuner.counts))
            assert surface(tuner.kept) >= surface(before)


def peak(counts: Counts) -> float:
    """Best in the middle of a line, and falling to both sides."""
    return 10.0 - abs(counts[0] - 5)


def test_baseline_of_the_counts_that_run_never_keeps_a_worse_change() -> None:
    for seed in range(20):
        tuner = Tuner([5], [1], [9], np.random.default_rng(seed))
        for _ in range(40):
            tuner.after_window(peak(tuner.counts))
            assert tuner.kept == (5,)


def test_counts_given_up_are_followed_by_a_window_of_those_kept() -> None:
    tuner = Tuner([5, 5], [1, 1], [9, 9], np.random.default_rng(0))
    ran = []
    for _ in range(40):
        before, counts = tuner.kept, tuner.counts
        is_kept = tuner.after_window(peak(counts) + peak(counts[1:]))
        assert is_kept == (counts == tuner.kept)
        assert is_kept or tuner.counts == before
        ran.append(counts)
    assert ran[0::2] == [(5, 5)] * 20
    assert len(set(ran[1::2])) == 5, "each change that does not pay is tried in turn"
    assert ran[1:11:2] == ran[11:21:2]


def test_a_change_that_pays_is_made_again_twice_as_large() -> None:
    tuner = Tuner([1], [1], [9], np.random.default_rng(0))
    ran = []
    for _ in range(7):
        ran.append(tuner.counts[0])
        tuner.after_window(peak(tuner.counts))
    assert ran == [1, 2, 4, 8, 4, 3, 4], "8 is beyond the peak, and so is one fewer than 4"
    assert tuner.kept == (4,) and tuner.counts == (5,)


def test_changes_of_many_are_larger_and_stay_within_the_limits() -> None:
    tuner = Tuner([1], [1], [64], np.random.default_rng(0))
    ran = []
    for _ in range(7):
        ran.append(tuner.counts[0])
        tuner.after_window(float(tuner.counts[0]))
    assert ran == [1, 2, 4, 8, 24, 64, 48]


def test_counts_without_room_stay() -> None:
    tuner = Tuner([2, 3], [2, 3], [2, 3], np.random.default_rng(0))
    assert tuner.after_window(1.0) and tuner.after_window(0.0)
    assert tuner.counts == (2, 3)
