"""What a learner counts that is not the first: it reports to that one, and saves its own part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from accel_rl.config import TrainConfig
from accel_rl.parallel import Exchange, Team
from accel_rl.runs.checkpoint import PART, save_part
from accel_rl.samplers.base import Episode, SamplerTimes
from accel_rl.training.metrics import LearnerMetrics, Scores
from accel_rl.training.recorder import Interval
from accel_rl.training.reports import SAVED, make_report

_END = 2**62
"""more steps than any run has"""


class Follower:
    """Takes the `Recorder`'s place in the loop of such a learner.

    ``make_state``: what a checkpoint holds of this learner, as `Parts.get_state`.
    """

    def __init__(
        self,
        config: TrainConfig,
        run_dir: Path,
        make_state: Callable[[], dict[str, Any]],
        saved: Mapping[str, Any] | None,
        team: Team,
        exchange: Exchange,
    ) -> None:
        self.steps = 0 if saved is None else int(saved["counts"]["steps"])
        self.updates = exchange.num_updates
        self.learning_seconds = 0.0
        self.is_learning = False
        self._config = config
        self._run_dir = run_dir
        self._make_state = make_state
        self._team = team
        self._exchange = exchange
        self._unreported = Scores()
        self._learner_metrics = LearnerMetrics()
        self._log = Interval(config.log_interval, self.steps)
        self._checkpoint = Interval(config.checkpoint_interval, self.steps)
        self._reported_steps = self.steps
        self._saved_steps = -1 if saved is None else self.steps

    def begin(self, times: SamplerTimes) -> None:
        """Nothing: the first learner has the clock."""

    def close(self) -> None:
        """Nothing is open."""

    def saves_at(self, steps: int) -> bool:
        """As `Recorder.saves_at`."""
        return self._checkpoint.is_ahead(steps)

    def after_update(
        self,
        steps: int,
        num_updates: int,
        metrics: Mapping[str, torch.Tensor],
        episodes: Sequence[Episode],
        times: SamplerTimes,
    ) -> None:
        """As `Recorder.after_update`."""
        self.steps, self.updates = steps, num_updates
        self._unreported.add(episodes)
        self._learner_metrics.add(metrics)
        if self._log.is_due(steps):
            self._report()
        if self._checkpoint.is_due(steps):
            self._save(steps)

    def finish(self, steps: int, *, alone: bool = False) -> None:
        """The last report, when all learners together took ``steps``."""
        self.steps = steps
        if steps > self._reported_steps:
            self._report()

    def save(self, *, alone: bool = False) -> None:
        """The last part, unless the first learner saves ``alone``.

        It serves whatever checkpoint the first learner, which may not go in step, still makes.
        """
        if alone:
            return
        if self.steps > self._saved_steps:
            self._save(_END)
        else:
            self._team.reach(SAVED, _END, self._saved_steps)

    def _report(self) -> None:
        metrics = self._learner_metrics.take()
        self._team.post(make_report(self._team, self._exchange, self._unreported, metrics))
        self._reported_steps = self.steps

    def _save(self, reached: int) -> None:
        state = self._make_state()
        failure = state.pop("failure")
        rank, num_kept = self._team.ranks.rank, self._config.num_checkpoints
        own = {name: state[name] for name in PART}
        save_part(self._run_dir, self.steps, rank, own, num_kept)
        self._team.reach(SAVED, reached, self.steps)
        self._saved_steps = self.steps
        if failure is not None:
            raise failure
