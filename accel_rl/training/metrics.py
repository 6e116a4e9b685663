"""What learners measure between two rows of metrics, and report to the first of them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from math import isfinite, nan
from typing import Any, NamedTuple

import numpy as np
import torch

from accel_rl.algos.optimizer import as_metric
from accel_rl.config import TrainConfig
from accel_rl.parallel import GradientSync, Team, TeamError
from accel_rl.runs.tables import EPISODE_WINDOW
from accel_rl.samplers.base import Episode

CLIPPED = "clipped_action_share"
"""share of the floats in actions that lie beyond their bounds, and are clipped by environments"""
SAVED = "saved"
"""name of the steps after which learners have saved their last parts of checkpoints"""
FINGERPRINT = "parameters"
"""name of the fingerprints of parameters that learners in step compare at checkpoints"""

OnRow = Callable[[Mapping[str, float]], object]
"""is given a row of metrics, by column; NaN where there is no value; a mapping that it returns are
options of resets, and anything else that is true ends the run"""

_CPU = torch.device("cpu")
_LOGGER = logging.getLogger(__name__)


class LearnerMetrics:
    """The mean of each of the learner's metrics since the last `take`, over the updates with it.

    Sums stay on the learner's device. Only `take` and `not_finite` wait for the device.
    """

    def __init__(self, device: torch.device = _CPU) -> None:
        self._device = device
        # By the names that came together; some metrics are not those of each update.
        self._totals: dict[tuple[str, ...], torch.Tensor] = {}
        self._counts: dict[tuple[str, ...], int] = {}

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Count in the metrics of an update; a user's learner may give them in any form.

        Raises:
            ValueError: one is not one real number.
        """
        if not metrics:
            return
        names = tuple(metrics)
        values = torch.stack([as_metric(*item, self._device) for item in metrics.items()])
        self._totals[names] = self._totals[names] + values if names in self._totals else values
        self._counts[names] = self._counts.get(names, 0) + 1

    def take(self) -> dict[str, float]:
        """Return the means, and begin anew."""
        sums: dict[str, tuple[float, int]] = {}
        for name, total, count in self._read():
            before, number = sums.get(name, (0.0, 0))
            sums[name] = before + total, number + count
        self._totals, self._counts = {}, {}
        return {name: total / number for name, (total, number) in sums.items()}

    def not_finite(self) -> list[str]:
        """Return the names of the metrics that are not finite so far."""
        return list(dict.fromkeys(name for name, total, _ in self._read() if not isfinite(total)))

    def _read(self) -> list[tuple[str, float, int]]:
        """Return names, sums and counts, by one synchronisation with the device."""
        totals = torch.cat(tuple(self._totals.values())).tolist() if self._totals else []
        keys = [(name, self._counts[names]) for names in self._totals for name in names]
        return [(name, total, count) for (name, count), total in zip(keys, totals, strict=True)]

    def get_state(self) -> dict[str, Any]:
        totals = {names: total.cpu() for names, total in self._totals.items()}
        return {"totals": totals, "counts": dict(self._counts)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._totals = {names: total.to(self._device) for names, total in state["totals"].items()}
        self._counts = dict(state["counts"])


class Scores:
    """The last `EPISODE_WINDOW` finished episodes, and how many there were in all.

    ``episode_return_raw`` is the game's own score, summed over all lives of a game;
    ``episode_return_clipped`` is the same sum of what the learner sees. ``info_keys``: see
    `info_means`.
    """

    def __init__(self, info_keys: Sequence[str] = ()) -> None:
        self.num_episodes = 0
        self._info_keys = info_keys
        self._last: deque[Episode] = deque(maxlen=EPISODE_WINDOW)

    def add(self, episodes: Sequence[Episode], num_episodes: int | None = None) -> None:
        """Take in ``episodes``, without those that a lost worker cut off.

        ``num_episodes``: how many there were, if ``episodes`` are but the last of them.
        """
        whole = [episode for episode in episodes if not episode.is_lost]
        self.num_episodes += len(whole) if num_episodes is None else num_episodes
        self._last.extend(whole)

    def take(self) -> tuple[list[Episode], int]:
        """Return the last episodes and the number of all, and begin anew."""
        taken = list(self._last), self.num_episodes
        self._last.clear()
        self.num_episodes = 0
        return taken

    def get_state(self) -> dict[str, Any]:
        return {"num_episodes": self.num_episodes, "last": [tuple(each) for each in self._last]}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.num_episodes = state["num_episodes"]
        self._last.extend(Episode(*each) for each in state["last"])

    def summary(self) -> dict[str, float]:
        """Statistics of the window; NaN before the first episode has ended."""
        last: list[tuple[float, ...]] = [each[1:4] for each in self._last] or [(np.nan,) * 3]
        raw, clipped, length = np.array(last, np.float64).T
        p10, median, p90 = np.quantile(raw, np.array([0.1, 0.5, 0.9]))
        return {
            "episode_return_raw_mean": float(raw.mean()),
            "episode_return_raw_std": float(raw.std()),
            "episode_return_raw_min": float(raw.min()),
            "episode_return_raw_p10": float(p10),
            "episode_return_raw_median": float(median),
            "episode_return_raw_p90": float(p90),
            "episode_return_raw_max": float(raw.max()),
            "episode_return_clipped_mean": float(clipped.mean()),
            "episode_length_steps_mean": float(length.mean()),
            "episodes_in_window": float(len(self._last)),
            **info_means(self._last, self._info_keys),
        }


def info_means(episodes: Iterable[Episode], info_keys: Iterable[str]) -> dict[str, float]:
    """Return ``episode_info_<key>_mean`` for each key, over episodes whose last step has the key.

    NaN where none did.
    """
    infos = [episode.info for episode in episodes]
    told = {key: [info[key] for info in infos if key in info] for key in info_keys}
    return {
        f"episode_info_{key}_mean": float(np.mean(numbers or [np.nan]))
        for key, numbers in told.items()
    }


class Report(NamedTuple):
    """What one learner has measured since its last report.

    Attributes:
        episodes: the last ones of ``num_episodes``, at most `EPISODE_WINDOW`.
        numbers: metrics of the learner and of its `GradientSync`, by name.
        num_updates: since the run began.
    """

    episodes: list[Episode]
    num_episodes: int
    numbers: dict[str, float]
    num_updates: int


class Others:
    """The other learners of a run, as the first one hears of them.

    Args:
        num_earlier: updates that they had made by themselves when the run was resumed.
    """

    def __init__(self, team: Team, sync: GradientSync, num_earlier: int = 0) -> None:
        self._team = team
        self._sync = sync
        self._num_earlier = num_earlier
        self._num_updates = [0] * team.ranks.size
        self._lost: set[int] = set()

    @property
    def are_in_step(self) -> bool:
        """True if all learners make each update together, or if there is a single learner."""
        return self._sync.num_sharing == self._team.ranks.size

    @property
    def num_updates(self) -> int:
        """Updates that the others have made by themselves, as last reported."""
        return self._num_earlier + sum(self._num_updates)

    def merge(self, own: Report) -> Report:
        """Return ``own`` and the others' reports as one report, which counts each update once.

        Learners in step have reported as often as this one, and are waited for. Learners that are
        newly lost are logged.

        Raises:
            TeamError: a learner has not reported.
        """
        in_step, team = self.are_in_step, self._team
        for rank in set(range(1, team.ranks.size)) - self._lost if not in_step else ():
            if not team.is_stop_asked and team.is_lost(rank):
                _LOGGER.info("learner %d has ended early, and is waited for no more", rank)
                self._lost.add(rank)
        reports, episodes = [own], [own.episodes]
        for rank, messages in team.read(waits=in_step).items():
            theirs = [Report(*message) for message in messages]
            reports += theirs
            episodes.append([Episode(*each) for report in theirs for each in report.episodes])
            if theirs and not in_step:
                self._num_updates[rank] = theirs[-1].num_updates
        # Of all learners by turns, so that the last ones are not those of one learner.
        newest = zip_longest(*(each[::-1] for each in episodes))
        return Report(
            episodes=[each for turn in newest for each in turn if each is not None][::-1],
            num_episodes=sum(report.num_episodes for report in reports),
            numbers=merge_numbers(report.numbers for report in reports),
            num_updates=own.num_updates + self.num_updates,
        )

    def await_parts(self, steps: int, own: int | None = None) -> dict[int, int]:
        """Wait until the others have saved their parts of a checkpoint due after ``steps`` steps.

        Return the steps in the names of their files, by rank, without lost learners.

        Args:
            own: fingerprint of this learner's parameters, which learners in step share.

        Raises:
            TeamError: a learner has not answered, or has other parameters.
        """
        if own is not None:
            for rank, other in self._team.wait_for_all(FINGERPRINT, steps).items():
                if other != own:
                    raise TeamError(
                        f"the parameters of learner {rank} are no longer those of learner 0, after "
                        f"{steps:,} steps; go on from the last checkpoint with resume=RUN_DIR"
                    )
        return self._team.wait_for_all(SAVED, steps)


def merge_numbers(each: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return by name the least of ``*_min``, the largest of ``*_max``, the mean of all others."""
    values: dict[str, list[float]] = {}
    for numbers in each:
        for name, value in numbers.items():
            values.setdefault(name, []).append(value)
    how = {"_min": np.min, "_max": np.max}
    return {name: float(how.get(name[-4:], np.mean)(found)) for name, found in values.items()}


def has_reached_score(config: TrainConfig, row: Mapping[str, float]) -> bool:
    """Return whether the run stops at this row of metrics, see `TrainConfig.stop_at_score`."""
    wanted = config.stop_at_score
    if wanted is None or not row.get("episodes_in_window", 0.0) >= 20:
        return False
    return row.get("episode_return_raw_mean", nan) >= wanted


def is_due(interval: int, before: int, steps: int) -> bool:
    """Return whether ``steps`` have passed a multiple of ``interval`` that ``before`` had not."""
    return steps // interval > before // interval
