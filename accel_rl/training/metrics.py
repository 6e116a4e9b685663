"""What learners measure between two rows of metrics, and report to the first of them."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from accel_rl.algos.update import as_metric
from accel_rl.config import TrainConfig
from accel_rl.parallel import Exchange, Team, TeamError, fingerprint
from accel_rl.runs.tables import EPISODE_WINDOW
from accel_rl.samplers.base import Episode
from accel_rl.training.progress import Progress

CLIPPED = "clipped_action_share"
"""share of the floats in actions that lie beyond their bounds, and are clipped by environments"""
SAVED = "saved"
"""what learners call the steps after which they saved their last parts of checkpoints"""

OnRow = Callable[[Mapping[str, float]], object]
"""is given a row of metrics, by column; NaN where there is no value"""

_CPU = torch.device("cpu")
_LOGGER = logging.getLogger(__name__)


class Recorded(NamedTuple):
    """What is recorded: a run, as one of its learners sees it.

    ``make_state`` gives what a checkpoint holds beside what is counted here.
    """

    config: TrainConfig
    run_dir: Path
    team: Team
    exchange: Exchange
    make_state: Callable[[], dict[str, Any]]


class Rows(NamedTuple):
    """Where the first learner's rows go, and what is in them.

    ``metric_names``: the learner's, NaN in rows in which it has not learned. ``info_keys``: the
    environments'. ``on_row`` is given each row.
    """

    progress: Progress
    metric_names: Sequence[str]
    frame_skip: int = 1
    info_keys: Sequence[str] = ()
    on_row: OnRow = lambda row: None


class LearnerMetrics:
    """The mean of each of the learner's metrics since the last `take`, over the iterations with it.

    Sums stay on the learner's device; only `take` reads them, which waits for it.
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
        """The means, and starts anew. A synchronisation with the device."""
        totals: dict[str, float] = {}
        counts: dict[str, int] = {}
        values = iter(self._read())
        for names in self._totals:
            for name in names:
                totals[name] = totals.get(name, 0.0) + next(values)
                counts[name] = counts.get(name, 0) + self._counts[names]
        self._totals, self._counts = {}, {}
        return {name: total / counts[name] for name, total in totals.items()}

    def not_finite(self) -> list[str]:
        """Names of the metrics that are not finite so far. Waits for the device."""
        names = (name for names in self._totals for name in names)
        values = zip(names, self._read(), strict=True)
        return list(dict.fromkeys(name for name, value in values if not math.isfinite(value)))

    def _read(self) -> list[float]:
        """All sums, one after another, by one synchronisation with the device."""
        if not self._totals:
            return []
        values: list[float] = torch.cat(tuple(self._totals.values())).tolist()
        return values

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
        """The last episodes, and how many there were in all; and starts anew."""
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
        raw = np.array([episode.episode_return for episode in self._last] or [np.nan])
        clipped = np.array([episode.clipped_return for episode in self._last] or [np.nan])
        length = np.array([float(episode.episode_length) for episode in self._last] or [np.nan])
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
    """``episode_info_<key>_mean`` for each key: over the episodes whose last step told it.

    NaN where none did.
    """
    infos = [episode.info for episode in episodes]
    told = {key: [info[key] for info in infos if key in info] for key in info_keys}
    return {
        f"episode_info_{key}_mean": float(np.mean(numbers or [np.nan]))
        for key, numbers in told.items()
    }


class Report(NamedTuple):
    """Of one learner since its last one; ``num_updates`` since the run began.

    ``episodes``: the last ones of ``num_episodes``, no more than make a score. ``exchange``: of
    `Exchange.take_metrics`. ``fingerprint``: of its parameters, in rows that compare them where all
    learners must have the same; else None.
    """

    episodes: list[Episode]
    num_episodes: int
    metrics: dict[str, float]
    exchange: dict[str, float]
    num_updates: int
    fingerprint: int | None

    @classmethod
    def of(cls, message: Any, rank: int) -> Report:
        """The report that learner ``rank`` has posted; JSON has lists where it had tuples.

        Raises:
            TeamError: it is none.
        """
        try:
            report = cls(*message)
            return report._replace(episodes=[Episode(*each) for each in report.episodes])
        except TypeError:
            raise TeamError(
                f"what learner {rank} has posted is no report: {message!r:.100}"
            ) from None


def make_report(
    team: Team, exchange: Exchange, scores: Scores, metrics: dict[str, float], *, compares: bool
) -> Report:
    """This learner's, now. ``scores``: what it has not yet reported; nothing is left there.

    ``compares``: it has a fingerprint if learners must have the same parameters.
    """
    is_same = exchange.num_sharing == team.ranks.size > 1
    mark = fingerprint(exchange.parameters) if is_same and compares else None
    return Report(*scores.take(), metrics, exchange.take_metrics(), exchange.num_updates, mark)


class Others:
    """The other learners' reports, for the first.

    ``num_earlier``: updates that they had made by themselves when the run went on.
    """

    def __init__(self, team: Team, exchange: Exchange, num_earlier: int = 0) -> None:
        self._team = team
        self._exchange = exchange
        self._num_earlier = num_earlier
        self._num_updates = [0] * team.ranks.size
        self._lost: set[int] = set()

    @property
    def are_in_step(self) -> bool:
        """Whether they make each update together with the first; so where there are none."""
        return self._exchange.num_sharing == self._team.ranks.size

    @property
    def num_updates(self) -> int:
        """Updates that the others have made by themselves, as last reported."""
        return self._num_earlier + sum(self._num_updates)

    def merge(self, own: Report, steps: int) -> Report:
        """``own`` and what the others have reported, as one. Logs which of them are newly lost.

        Means are means over learners, and ``num_updates`` counts each update once. Where learners
        go in step, each has reported as often as this one, and is waited for.

        Raises:
            TeamError: a learner has not reported, or has other parameters than this one.
        """
        in_step = self.are_in_step
        if not in_step:
            self._log_lost()
        reports = [own]
        for rank, messages in self._team.read(waits=in_step).items():
            posted = [Report.of(message, rank) for message in messages]
            if posted:
                reports.append(_join(posted))
            for report in posted:
                if not in_step:
                    self._num_updates[rank] = report.num_updates
                if report.fingerprint != own.fingerprint:
                    raise TeamError(
                        f"the parameters of learner {rank} are no longer those of learner 0, after "
                        f"{steps:,} steps; go on from the last checkpoint with resume=RUN_DIR"
                    )
        # Of all learners by turns, so that the last ones are not those of one learner.
        by_turns = zip_longest(*(report.episodes[::-1] for report in reports))
        return Report(
            episodes=[each for turn in by_turns for each in turn if each is not None][::-1],
            num_episodes=sum(report.num_episodes for report in reports),
            metrics=mean_numbers([report.metrics for report in reports]),
            exchange=merge_exchanges([report.exchange for report in reports]),
            num_updates=own.num_updates + self.num_updates,
            fingerprint=own.fingerprint,
        )

    def await_parts(self, steps: int) -> dict[int, int]:
        """Waits until the others have saved their parts of a checkpoint due after ``steps`` steps.

        Returns after how many steps each of them did, as its file's name says; none of lost ones.
        """
        return self._team.wait_for_all(SAVED, steps)

    def _log_lost(self) -> None:
        """Says of each lost learner once that it is, unless all are being stopped."""
        for rank in set(range(1, self._team.ranks.size)) - self._lost:
            if not self._team.is_stop_asked and self._team.is_lost(rank):
                _LOGGER.info("learner %d has ended early, and is waited for no more", rank)
                self._lost.add(rank)


def _join(reports: Sequence[Report]) -> Report:
    """Those of one learner, oldest first, as one."""
    return reports[-1]._replace(
        episodes=[episode for report in reports for episode in report.episodes],
        num_episodes=sum(report.num_episodes for report in reports),
        metrics=mean_numbers([report.metrics for report in reports]),
        exchange=merge_exchanges([report.exchange for report in reports], adds_seconds=True),
    )


def mean_numbers(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """By name, the mean of those who have it; NaN where one of these is."""
    names = dict.fromkeys(name for numbers in each for name in numbers)
    having = {name: [numbers[name] for numbers in each if name in numbers] for name in names}
    return {name: sum(values) / len(values) for name, values in having.items()}


def merge_exchanges(
    each: Sequence[Mapping[str, float]], *, adds_seconds: bool = False
) -> dict[str, float]:
    """By name: the least of ``*_min``, the largest of ``*_max``, the mean of others.

    ``adds_seconds``: they are of one learner, whose ``*_seconds`` add up. NaN, of a learner without
    any push, counts for nothing.
    """
    merged = {}
    for name in each[0]:
        values = [numbers[name] for numbers in each if not math.isnan(numbers[name])]
        if not values:
            merged[name] = math.nan
        elif name.endswith("_min"):
            merged[name] = min(values)
        elif name.endswith("_max"):
            merged[name] = max(values)
        elif adds_seconds and name.endswith("_seconds"):
            merged[name] = sum(values)
        else:
            merged[name] = sum(values) / len(values)
    return merged


def exchange_columns(numbers: Mapping[str, float], seconds: float) -> Iterator[tuple[str, float]]:
    """Columns of metrics; seconds as shares of the ``seconds`` that the row is about."""
    for name, value in numbers.items():
        if name.endswith("_seconds"):
            yield name.removesuffix("_seconds") + "_share", value / seconds
        else:
            yield name, value


def gpu_columns(device: torch.device) -> dict[str, float]:
    """What this process has taken of a GPU's memory at most so far."""
    if device.type != "cuda":
        return {}
    return {"gpu_memory_bytes": torch.cuda.max_memory_reserved(device)}


class Interval:
    """Tells whether a multiple of ``steps`` was passed since the last time it was asked.

    ``begin``: where steps begin.
    """

    def __init__(self, steps: int, begin: int = 0) -> None:
        self._steps = steps
        self._passed = begin // steps

    def is_ahead(self, steps: int) -> bool:
        """What `is_due` will tell after ``steps``; this is not to ask."""
        return steps // self._steps > self._passed

    def is_due(self, steps: int) -> bool:
        passed = steps // self._steps
        is_due, self._passed = passed > self._passed, passed
        return is_due
