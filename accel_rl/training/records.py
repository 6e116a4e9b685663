"""What a learner counts, and leaves behind at intervals: metrics, curve, checkpoints, progress."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from accel_rl.config import TrainConfig
from accel_rl.parallel import GradientSync, Team, fingerprint
from accel_rl.runs.checkpoint import PART, save_checkpoint, save_if_best, save_part
from accel_rl.runs.directory import plain_options
from accel_rl.runs.files import draw_or_warn
from accel_rl.runs.tables import CurveRows, MetricsWriter
from accel_rl.samplers.base import Episode, SamplerTimes
from accel_rl.system.stopping import Interrupted, StopRequest
from accel_rl.system.topology import available_cpus, idle_seconds, physical_cores
from accel_rl.trackers import TENSORBOARD, Trackers
from accel_rl.training.device_clock import make_device_clock
from accel_rl.training.evaluation import Evaluator
from accel_rl.training.metrics import (
    CLIPPED,
    FINGERPRINT,
    SAVED,
    LearnerMetrics,
    OnRow,
    Others,
    Report,
    Scores,
    is_due,
)
from accel_rl.training.progress import Progress, Status, line
from accel_rl.training.time_split import Reading, TimeSplit, find_bottleneck

CURVE_SECONDS = 60.0
"""between two drawings of the learning curve: each takes a third of a second from training"""
_END = 2**62
"""more steps than any run has"""

_LOGGER = logging.getLogger(__name__)


class Records:
    """Counts steps, updates and seconds, and writes what is due after each iteration.

    Each learner of a run has records. The first learner's write rows, into which they merge the
    others' reports; the others save only their parts of checkpoints.

    Training time runs from `begin`, without what `pause` takes out. The loop adds to
    ``learning_seconds``, and calls ``device_clock`` around its updates.

    Args:
        make_state: returns what a checkpoint holds beside counts and statistics.
        progress: shows where the run stands; None for all learners but the first.
        metric_names: the learner's metrics, NaN in rows in which it has not learned.
        info_keys: the environments' keys.
        on_row: called with each row.
        saved: the checkpoint from which the run goes on.
    """

    def __init__(
        self,
        config: TrainConfig,
        run_dir: Path,
        team: Team,
        sync: GradientSync,
        make_state: Callable[[], dict[str, Any]],
        progress: Progress | None = None,
        *,
        metric_names: Sequence[str] = (),
        frame_skip: int = 1,
        info_keys: Sequence[str] = (),
        on_row: OnRow = lambda row: None,
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        self._make_state, self._progress = make_state, progress
        self._metric_names, self._on_row, self._frame_skip = metric_names, on_row, frame_skip
        counts = {"steps": 0, "updates": 0, "training_seconds": 0.0}
        if saved is not None:
            counts = saved["counts"]
        self.steps, self.updates = int(counts["steps"]), int(counts["updates"])
        self.learning_seconds = 0.0
        self.core_seconds = 0.0  # processor time of learning, if it is in this thread, on the CPU
        self.device_clock = make_device_clock(sync.parameters.parameter.device)
        self.is_learning = False  # what a checkpoint would hold is of no one moment
        self.scores = Scores(info_keys)
        self._has_told_clipping = False
        self._unreported = Scores()  # where there are others, among whose a row puts them
        self._config, self._run_dir = config, run_dir
        self._sync, self._team = sync, team
        self._own_updates = sync.num_updates
        # Where updates go on while a checkpoint is made, it has more of them than were counted.
        self._others = Others(team, sync, max(0, self.updates - self._own_updates))
        self._learner_metrics = LearnerMetrics(sync.parameters.gradient.device)
        self._is_time = False  # a checkpoint is due by `checkpoint_minutes`
        self._saved_steps = -1 if saved is None else self.steps
        self._has_unsaved_evaluation = False
        if self._progress is not None:
            evaluated = saved["evaluator"] if saved is not None else None
            evaluated_steps = self.steps if evaluated is None else evaluated["steps"]
            self._writer = MetricsWriter(
                run_dir,
                self.steps,
                evaluated_steps,
                tensorboard=TENSORBOARD in config.tracker,
                send=lambda row, steps: self._trackers.log(row, steps),
            )
            self._curve = CurveRows(() if saved is None else self._writer.metrics.earlier_rows())
            if saved is not None:
                self.scores.set_state(saved["recorder"]["scores"])
                self._learner_metrics.set_state(saved["recorder"]["learner_metrics"])
            # Last, so that none stays open if a table is damaged.
            self._trackers = Trackers(config.tracker, run_dir, plain_options(config), self._say)
        self._earlier_seconds = counts["training_seconds"]
        self._spent = {"evaluating": 0.0, "logging": 0.0, "saving": 0.0}
        self.begin(SamplerTimes(0.0, 0.0, 0.0))

    def begin(self, times: SamplerTimes) -> None:
        """Training starts now, with the sampler's clocks at ``times``."""
        self._times = times
        self._began = self._shown = self._drawn = self._saved_at = perf_counter()
        self._first = self._before_last_row = self._last_row = self._read()

    def pause(self, seconds: float) -> None:
        """Take ``seconds`` that just passed out of the training time.

        Where there are other learners that went on meanwhile, only out of what the shares are of.
        """
        if self._others.are_in_step:
            self._began += seconds
        else:
            self._spent["evaluating"] += seconds

    @property
    def seconds(self) -> float:
        """Training time so far."""
        return self._earlier_seconds + perf_counter() - self._began

    @property
    def frames(self) -> int:
        return self.steps * self._frame_skip

    def whole_run(self) -> Status:
        """Return where the run stands, with speeds and shares since `begin`."""
        return self._status(self._first, self._read())

    def add_metrics(self, metrics: Mapping[str, torch.Tensor]) -> None:
        """Count in the metrics of one update, 0-d each."""
        self._learner_metrics.add(metrics)

    def saves_at(self, steps: int) -> bool:
        """Return whether a checkpoint is due when `after_update` is called with ``steps``."""
        return self._is_time or is_due(self._config.checkpoint_steps, self.steps, steps)

    def after_update(
        self,
        steps: int,
        metrics: Mapping[str, torch.Tensor],
        episodes: Sequence[Episode],
        times: SamplerTimes,
    ) -> None:
        """Count one iteration; write and show what is due.

        ``steps``: of all learners so far.

        Raises:
            OSError: something could not be written.
            FloatingPointError: learning has diverged.
        """
        is_row_due, saves = is_due(self._config.row_steps, self.steps, steps), self.saves_at(steps)
        if self._team.ranks.size == 1 and self._config.learner.in_rollouts:
            # The last row at once, since a run may be killed in its last evaluation.
            is_row_due |= steps >= self._config.planned_steps > self.steps
        self.steps = steps
        self._own_updates = self._sync.num_updates
        self.updates = self._own_updates + self._others.num_updates
        self._times = times
        (self.scores if self._team.ranks.size == 1 else self._unreported).add(episodes)
        self._learner_metrics.add(metrics)
        now = perf_counter()
        if self._progress is not None and now - self._shown >= self._progress.interval_seconds:
            self._progress.show(self.status())
            self._shown = now
        if is_row_due:
            self.write_row()
            self._spent["logging"] += perf_counter() - now
            if now - self._drawn >= CURVE_SECONDS and self._progress is not None:
                is_drawn = self.draw_curve()
                self._drawn = now if is_drawn else math.inf  # else its warning would come again
        if saves:
            began, interval = perf_counter(), self._config.checkpoint_steps
            self.save(steps if self._is_time else steps // interval * interval)
            self._saved_at = perf_counter()
            self._spent["saving"] += self._saved_at - began
        if (minutes := self._config.checkpoint_minutes) is not None:
            # After the next iteration, so that learners in step, and a rollout ahead, agree.
            is_time = perf_counter() >= self._saved_at + 60 * minutes
            self._is_time = bool(self._team.largest(int(is_time)))

    def write_row(self, *, alone: bool = False) -> None:
        """Write a row of metrics about the time since the last row, or post a report for it.

        ``alone``: without the other learners, which after a failure may never report.

        Raises:
            FloatingPointError: a metric of the learner is not finite.
            TeamError: another learner is gone.
            ValueError: the learner told a metric that is not among its `metric_names`.
        """
        before = self._last_row
        metrics = self._learner_metrics.take()
        seconds = max(self.seconds - before.wall, 1e-9)
        sync = {}
        for name, value in self._sync.take_metrics().items():
            is_time, kind = name.endswith("_seconds"), name.removesuffix("_seconds")
            sync[f"{kind}_share" if is_time else name] = value / seconds if is_time else value
        numbers = {name: value for name, value in sync.items() if not math.isnan(value)}
        own = Report(*self._unreported.take(), numbers | metrics, self._sync.num_updates)
        if self._progress is None:
            self._team.post(own)
            self._last_row = self._read()
            return
        if unnamed := ", ".join(sorted(metrics.keys() - set(self._metric_names))):
            raise ValueError(
                f"the learner's update returned a value for {unnamed}, which is not in its "
                "metric_names; add it there"
            )
        report = own if alone else self._others.merge(own)
        self.scores.add(report.episodes, report.num_episodes)
        self.updates = self._own_updates + self._others.num_updates
        now = self._read()
        status = self._status(before, now)
        split, device = status.split, self._sync.parameters.parameter.device
        peak = torch.cuda.max_memory_reserved(device) if device.type == "cuda" else None
        row: dict[str, float] = {
            **self._counts(now.wall),
            "steps_per_second": status.steps_per_second,
            "frames_per_second": status.steps_per_second * self._frame_skip,
            "updates_per_second": (now.updates - before.updates)
            / max(now.wall - before.wall, 1e-9),
            **status.scores,
            "waiting_for_simulators_share": split.waiting,
            "inference_share": split.inference,
            "learning_share": split.learning,
            "other_share": split.other,
            "simulators_busy_share": split.simulating,
            **({} if peak is None else {"gpu_memory_bytes": peak}),
            **dict.fromkeys((*sync, *self._metric_names), math.nan),
            **report.numbers,
        }
        self._writer.write(row)
        self._curve.add(row)
        self._before_last_row, self._last_row = before, now
        _LOGGER.info(line(status))
        self._on_row(row)
        if row.get(CLIPPED, 0.0) > 0.5 and not self._has_told_clipping:
            self._has_told_clipping = True
            self._say(
                f"{row[CLIPPED]:.0%} of the floats in actions lie beyond their bounds and are "
                f"clipped ({CLIPPED}), so that the environment sees little of what is learned; if "
                f"scores do not rise, a smaller learner.lr may help, or algo=sac"
            )
        self._refuse(
            name for name in self._metric_names if not math.isfinite(report.numbers.get(name, 0.0))
        )

    def _refuse(self, diverged: Iterable[str]) -> None:
        """Raise FloatingPointError if there are metrics that have ``diverged``."""
        if names := ", ".join(diverged):
            raise FloatingPointError(
                f"learning has diverged: {names} not finite after {self.steps:,} "
                "steps; a smaller learner.lr or a tighter gradient clip may help, if no "
                "observation is NaN or infinite"
            )

    def evaluate(self, evaluator: Evaluator, stop: StopRequest) -> None:
        """Evaluate now, outside the training time; a stop cuts the evaluation off.

        Raises:
            OSError: its row, or the policy as the best so far, could not be written.
        """
        began = perf_counter()
        with suppress(Interrupted):  # the loop ends, and saves
            row = evaluator.evaluate(self.steps, stop)
            if self._progress is not None:  # the first learner has the games of all
                self._keep(row, evaluator)
        self.pause(perf_counter() - began)

    def _keep(self, row: Mapping[str, float], evaluator: Evaluator) -> None:
        """Write the row of an evaluation, and the policy if it is the best so far."""
        score = row["episode_return_raw_mean"]
        parameters = self._sync.parameters
        save_if_best(self._run_dir, self.steps, score, parameters, evaluator.others)
        self._writer.write_evaluation({"steps": self.steps, "frames": self.frames, **row})
        said = "no game was finished"
        if games := round(row["episodes"]):
            said = f"score {score:.4g} in {games:,} game{'s' * (games > 1)}"
        self._say(f"evaluation after {self.steps:,} steps: {said}")
        self._has_unsaved_evaluation = True

    def _say(self, text: str) -> None:
        assert self._progress is not None, "only the first learner says anything"
        self._progress.say(text)
        _LOGGER.info("%s", text)

    def draw_curve(self, *, is_last: bool = False) -> bool:
        """Draw ``learning_curve.png``; log a warning and return False if that fails."""
        path = self._run_dir / "learning_curve.png"
        config, (minutes, seconds) = self._config, divmod(round(self.seconds), 60)
        took = f"{minutes} min {seconds} s, {len(physical_cores(available_cpus()))} cores"

        def draw() -> None:
            from accel_rl.runs.figures import draw_learning_curve

            draw_learning_curve(path, self._curve.rows, config.algo, config.env, took)

        return draw_or_warn(draw, path, is_last=is_last)

    def save(self, due: int | None) -> None:
        """Save a checkpoint, or this learner's part of checkpoints due after up to ``due`` steps.

        Args:
            due: None after a failure: save a checkpoint without the other learners' parts.

        Raises:
            OSError: it could not be written.
            FloatingPointError: learning has diverged; what was saved before stays.
            SamplerError: it was written without the simulators, which have failed.
            TeamError: another learner has not saved its part, or has other parameters.
        """
        # After a failure, the simulators in a file that is there are worth more.
        has_more = due is not None and self._has_unsaved_evaluation
        if self._progress is None:
            self._save_part(due)
            return
        if self.steps == self._saved_steps and not has_more:
            return
        began, parts = perf_counter(), None
        self._refuse(self._learner_metrics.not_finite())
        if due is not None and self._team.ranks.size > 1:
            in_step = self._others.are_in_step
            mark = fingerprint(self._sync.parameters) if in_step else None
            parts = self._others.await_parts(due, mark)
        state = self._state(parts)
        failure = state.pop("failure", None)
        save_checkpoint(self._run_dir, self.steps, state)
        self._saved_steps, self._has_unsaved_evaluation = self.steps, False
        _LOGGER.info("checkpoint after %s steps, in %.2f s", self.steps, perf_counter() - began)
        if failure is not None:
            raise failure

    def _save_part(self, due: int | None) -> None:
        if due is None:
            return
        failure = None
        if self.steps != self._saved_steps:
            state = self._make_state()
            own = {name: state[name] for name in PART}
            save_part(self._run_dir, self.steps, self._team.ranks.rank, own)
            self._saved_steps, failure = self.steps, state["failure"]
        if self._others.are_in_step:
            self._team.reach(FINGERPRINT, due, fingerprint(self._sync.parameters))
        self._team.reach(SAVED, due, self._saved_steps)
        if failure is not None:
            raise failure

    def save_after_failure(self) -> None:
        """Save a checkpoint without the other learners' parts; errors are those of `save`."""
        self.save(None)

    def save_last(self) -> None:
        """Save at the end.

        The part of a learner that is not the first serves any checkpoint that the first learner
        still makes.
        """
        self.save(_END if self._progress is None else self.steps)

    def _state(self, parts: dict[int, int] | None) -> dict[str, Any]:
        """Return a checkpoint; ``parts``: steps of the other learners' parts, by rank."""
        self.scores.add(*self._unreported.take())
        state = {
            "counts": self._counts(self.seconds),
            "recorder": {
                "scores": self.scores.get_state(),
                "learner_metrics": self._learner_metrics.get_state(),
            },
            "num_learners": self._team.ranks.size,
            "num_envs": self._config.sampler.num_envs,
            "parts": parts,
            **self._make_state(),
        }
        # Of a store, where others may have diverged; constants may be infinite.
        if any(torch.isnan(each).any() for each in state["learner"]["parameters"].values()):
            self._refuse(["parameters"])
        return state

    def write_last_row(self, *, alone: bool = False) -> None:
        """Write a row about the time since the last row, if there was a step."""
        if self.steps > self._last_row.steps:
            self.write_row(alone=alone)

    def finish(self, steps: int, *, alone: bool = False) -> None:
        """Write the last row and curve, when all learners together have taken ``steps``."""
        self.steps = steps
        self.write_last_row(alone=alone)
        if self._progress is None:
            return
        began = perf_counter()
        self.draw_curve(is_last=True)  # may load Matplotlib, for seconds that no training takes
        self._began += perf_counter() - began

    def close(self) -> None:
        """Closes files; calling it again does nothing."""
        if self._progress is not None:
            self._writer.close()
            self._trackers.send_files([self._run_dir / "learning_curve.png"])
            self._trackers.close()

    def status(self) -> Status:
        """Return where the run stands, with speeds and shares since the last row but one.

        The last may have been written just now.
        """
        return self._status(self._before_last_row, self._read())

    def _status(self, before: Reading, now: Reading) -> Status:
        seconds, split = max(now.wall - before.wall, 1e-9), TimeSplit.between(before, now)
        on_gpu = self._sync.parameters.parameter.is_cuda
        return Status(
            steps=self.steps,
            since_steps=before.steps,
            planned_steps=self._config.planned_steps,
            frame_skip=self._frame_skip,
            seconds=now.wall,
            steps_per_second=(now.steps - before.steps) / seconds,
            num_episodes=self.scores.num_episodes,
            scores=self.scores.summary(),
            split=split,
            bottleneck=find_bottleneck(split, self._config, on_gpu=on_gpu),
        )

    def _counts(self, seconds: float) -> dict[str, float]:
        return {
            "steps": self.steps,
            "frames": self.frames,
            "updates": self.updates,
            "episodes": self.scores.num_episodes,
            "training_seconds": seconds,
        }

    def _read(self) -> Reading:
        times, late = self._times, self.device_clock.late_seconds
        return Reading(
            wall=self.seconds,
            waiting=times.waiting,
            inference=times.policy - late,
            simulating=times.simulating,
            learning=self.learning_seconds + late,
            **self._spent,
            core=self.core_seconds,
            idle=idle_seconds(),
            steps=self.steps,
            updates=self.updates,
        )
