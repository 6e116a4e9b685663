"""Aggregates of scores over games and seeds, with intervals by the stratified bootstrap.

As Agarwal et al. 2021, Deep Reinforcement Learning at the Edge of the Statistical Precipice
(arXiv:2108.13264), sections 4.1 and 4.3: ``scores`` has an array ``[runs of it]`` for each game.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

NUM_RESAMPLES = 2_000
LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """``low`` and ``high`` are NaN where no game has two runs: nothing is known of their spread."""

    value: float
    low: float
    high: float


def aggregate(scores: Sequence[Values], seed: int = 0) -> Mapping[str, Estimate]:
    """``iqm``, ``mean`` and ``median`` over all runs of all games, with 95 % intervals.

    Runs are drawn anew within each game, with replacement, `NUM_RESAMPLES` times; the interval is
    between the 2.5 % and 97.5 % quantiles of what the draws give (percentile bootstrap). ``seed``:
    of the draws.
    """
    # [1, runs] for each game: the scores themselves as a single draw.
    points = statistics([each[np.newaxis] for each in scores])
    if max(len(each) for each in scores) == 1:
        return {name: Estimate(float(value[0]), np.nan, np.nan) for name, value in points.items()}
    rng = np.random.default_rng(seed)
    draws = [each[rng.integers(len(each), size=(NUM_RESAMPLES, len(each)))] for each in scores]
    tails = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    return {
        name: Estimate(float(points[name][0]), *map(float, np.quantile(values, tails)))
        for name, values in statistics(draws).items()
    }


def statistics(scores: Sequence[Values]) -> dict[str, Values]:
    """``iqm``, ``mean``, ``median``: ``[draws]`` each, of ``[draws, runs]`` for each game.

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
