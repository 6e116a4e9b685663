"""What learners of one run tell the first of them, which keeps the run's records."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from accel_rl.parallel import Exchange, Team, TeamError, fingerprint
from accel_rl.samplers.base import Episode
from accel_rl.training.metrics import Scores

SAVED = "saved"
"""what learners call the steps after which they saved their last parts of checkpoints"""

_LOGGER = logging.getLogger(__name__)


class Report(NamedTuple):
    """Of one learner since its last one; ``num_updates`` since the run began.

    ``episodes``: the last ones of ``num_episodes``, no more than make a score. ``exchange``: of
    `Exchange.take_metrics`. ``fingerprint``: of its parameters, where all learners must have the
    same; else None.
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
    team: Team, exchange: Exchange, scores: Scores, metrics: dict[str, float]
) -> Report:
    """This learner's, now. ``scores``: what it has not yet reported; nothing is left there."""
    is_same = exchange.num_sharing == team.ranks.size
    mark = fingerprint(exchange.parameters) if is_same and team.ranks.size > 1 else None
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
        return Report(
            episodes=_spread(reports),
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


def _spread(reports: Sequence[Report]) -> list[Episode]:
    """The episodes of several learners as if each one's had ended at equal distances of time, so
    that the last ones are of all learners."""
    placed = [
        (1 + behind / report.num_episodes, episode)
        for report in reports
        for behind, episode in enumerate(report.episodes, 1 - len(report.episodes))
    ]
    return [episode for _, episode in sorted(placed, key=lambda each: each[0])]


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
