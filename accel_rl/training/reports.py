"""What learners of one run tell the first of them, which keeps the run's records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from accel_rl.parallel import Exchange, Team, TeamError, fingerprint
from accel_rl.samplers.base import Episode

SAVED = "saved"
"""what learners call the steps after which they saved their last parts of checkpoints"""


class Report(NamedTuple):
    """Of one learner since its last one; ``num_updates`` since the run began.

    ``exchange``: of `Exchange.take_metrics`. ``fingerprint``: of its parameters, where all learners
    must have the same; else None.
    """

    episodes: list[Episode]
    metrics: dict[str, float]
    exchange: dict[str, float]
    num_updates: int
    fingerprint: int | None


def make_report(
    team: Team, exchange: Exchange, episodes: list[Episode], metrics: dict[str, float]
) -> Report:
    """This learner's, now."""
    is_same = exchange.num_sharing == team.ranks.size
    mark = fingerprint(exchange.parameters) if is_same and team.ranks.size > 1 else None
    return Report(episodes, metrics, exchange.take_metrics(), exchange.num_updates, mark)


class Others:
    """The other learners' reports, for the first.

    ``num_before``: updates that others had made by themselves when the run was stopped.
    """

    def __init__(self, team: Team, exchange: Exchange, num_before: int = 0) -> None:
        self._num_before = num_before
        self._team = team
        self._exchange = exchange
        self._num_updates = [0] * team.ranks.size

    @property
    def num_updates(self) -> int:
        """Updates that the others have made by themselves, as last reported."""
        return self._num_before + sum(self._num_updates)

    def merge(self, own: Report, steps: int) -> Report:
        """``own`` and what the others have reported, as one.

        Means are means over learners, and ``num_updates`` counts each update once. Where learners
        go in step, each has reported as often as this one, and is waited for.

        Raises:
            TeamError: a learner has not reported, or has other parameters than this one.
        """
        in_step = self._exchange.num_sharing == self._team.ranks.size
        reports = [own]
        for rank, messages in self._team.read(waits=in_step).items():
            for report in messages:
                reports.append(report)
                if not in_step:
                    self._num_updates[rank] = report.num_updates
                if report.fingerprint != own.fingerprint:
                    raise TeamError(
                        f"the parameters of learner {rank} are no longer those of learner 0, after "
                        f"{steps:,} steps; go on from the last checkpoint with resume=RUN_DIR"
                    )
        return Report(
            episodes=[episode for report in reports for episode in report.episodes],
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


def mean_numbers(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """By name, the mean of those who have it; NaN where one of these is."""
    names = dict.fromkeys(name for numbers in each for name in numbers)
    having = {name: [numbers[name] for numbers in each if name in numbers] for name in names}
    return {name: sum(values) / len(values) for name, values in having.items()}


def merge_exchanges(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """By name: the least of ``*_min``, the largest of ``*_max``, the mean of others.

    NaN, of a learner without any push, counts for nothing.
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
        else:
            merged[name] = sum(values) / len(values)
    return merged
