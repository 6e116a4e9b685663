"""Intervals of scores over runs, the same in plots, reports and sweeps.

From three runs on, an interval is the stratified percentile bootstrap of Agarwal et al. 2021, Deep
Reinforcement Learning at the Edge of the Statistical Precipice (arXiv:2108.13264), sections 4.1 and
4.3. Fewer runs have a range instead: the statistic if each run had the lowest score of its game,
and if each had the highest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

FEWEST_RUNS = 3
NUM_RESAMPLES = 2_000
METHOD = (
    "95 % interval: stratified bootstrap over the runs of each environment, "
    f"{NUM_RESAMPLES:,} draws; below {FEWEST_RUNS} runs: their range"
)
_TAILS = (0.025, 0.975)


@dataclass(frozen=True)
class Estimate:
    """A statistic and its interval, or, ``is_range``, its range; NaN if no game has two runs."""

    value: float
    low: float
    high: float
    is_range: bool = False

    def __str__(self) -> str:
        """``0.52 [0.40, 0.61]``, ``0.52 range [0.40, 0.61]``, or the value alone."""
        if math.isnan(self.low):
            return f"{self.value:,.2f}"
        kind = "range " * self.is_range
        return f"{self.value:,.2f} {kind}[{self.low:,.2f}, {self.high:,.2f}]"


def aggregate(scores: Sequence[Values], seed: int = 0) -> Mapping[str, Estimate]:
    """Return ``iqm``, ``mean`` and ``median`` over all runs of all games, with their intervals.

    Args:
        scores: for each game ``[runs]``, which are drawn again within their game.
    """
    points = statistics([each[np.newaxis] for each in scores])  # the scores as a single draw
    if max(map(len, scores)) == 1:
        return {name: Estimate(float(value[0]), np.nan, np.nan) for name, value in points.items()}
    is_range = min(map(len, scores)) < FEWEST_RUNS
    if is_range:
        draws = [np.outer([each.min(), each.max()], np.ones(len(each))) for each in scores]
    else:
        rng = np.random.default_rng(seed)
        draws = [each[_places(rng, len(each))] for each in scores]
    ends = (0.0, 1.0) if is_range else _TAILS
    found = {}
    for name, values in statistics(draws).items():
        low, high = np.quantile(values, ends)
        found[name] = Estimate(float(points[name][0]), float(low), float(high), is_range)
    return found


def interval_of_mean(y: Values, seed: int = 0) -> tuple[Values, Values]:
    """Return both ends, ``[n]``, of the interval of the mean over the runs of ``[runs, n]``."""
    runs = len(y)
    if runs == 1:
        return np.full(y.shape[1], np.nan), np.full(y.shape[1], np.nan)
    if runs < FEWEST_RUNS:
        return y.min(0), y.max(0)
    places = _places(np.random.default_rng(seed), runs)
    counts = (places[..., np.newaxis] == np.arange(runs)).sum(1)  # [draws, runs]
    low, high = np.quantile(counts @ y / runs, _TAILS, axis=0)
    return low, high


def _places(rng: np.random.Generator, runs: int) -> NDArray[np.int64]:
    return rng.integers(runs, size=(NUM_RESAMPLES, runs))


def statistics(scores: Sequence[Values]) -> dict[str, Values]:
    """Return ``iqm``, ``mean``, ``median``: ``[draws]`` each, of ``[draws, runs]`` for each game.

    ``iqm``: the mean of the middle half of all runs of all games. ``mean`` and ``median``: over
    games, of each game's mean.
    """
    means = np.stack([each.mean(1) for each in scores], 1)  # [draws, games]
    return {
        "iqm": interquartile_mean(np.concatenate(scores, 1)),
        "mean": means.mean(1),
        "median": np.median(means, 1),
    }


def interquartile_mean(scores: Values) -> Values:
    """``[draws, n] -> [draws]``: the mean without the lowest and the highest ``n // 4``."""
    cut = scores.shape[1] // 4
    middle: Values = np.sort(scores, 1)[:, cut : scores.shape[1] - cut].mean(1)
    return middle
