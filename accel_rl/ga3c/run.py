"""GA3C's run: agents, predictors and trainers go by themselves; this thread counts and records."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import dataclass

import numpy as np
import torch

from accel_rl.agents import PolicyAgent
from accel_rl.config import TrainConfig
from accel_rl.ga3c.learner import GA3C, GA3CConfig
from accel_rl.ga3c.report import QueueMeter, write_lags
from accel_rl.ga3c.sampler import QueuedSampler
from accel_rl.ga3c.threads import QueueThreads
from accel_rl.ga3c.tuner import Tuner
from accel_rl.ga3c.versions import Versions, VersionSync
from accel_rl.graphs import Graphs
from accel_rl.parallel import FlatParameters, Team
from accel_rl.runs.tables import CsvTable
from accel_rl.samplers.base import SamplerTimes
from accel_rl.system.topology import available_cpus
from accel_rl.training.build import agent_of
from accel_rl.training.devices import graphs_of, learner_device, make_graphs
from accel_rl.training.evaluation import EVALUATION_ENVS, Evaluator
from accel_rl.training.initial import take_initial
from accel_rl.training.records import Records
from accel_rl.training.run import Run

TUNER_SECONDS = 60.0
"""between two changes of the tuner"""
_MAX_PREDICTION_BATCH = 128
"""environments for which a predictor acts at once"""
POLL_SECONDS = 0.1
"""between two looks at what was done"""


class Tuning:
    """Change the numbers of threads and agents after each interval, and keep the time line.

    An interval begins when all agents that were added have begun; pauses are no part of it. Where
    the run goes on, the time line does.
    """

    def __init__(self, run: QueuedRun) -> None:
        config, learner, sampler, run_dir = run.config, run.learner.config, run.sampler, run.run_dir
        self._interval = TUNER_SECONDS
        self._sampler = sampler
        self._threads = run.threads
        self._records = records = run.records
        start = (learner.num_predictors, learner.num_trainers, config.sampler.num_groups)
        most_threads = max(2 * len(available_cpus()), *start[:2])
        rng = np.random.default_rng(np.random.SeedSequence([config.seed, 5]))
        most = (most_threads, most_threads, sampler.max_agents)
        self._tuner = Tuner(start, (1, 1, 1), most, rng)
        self._table = CsvTable(run_dir / "tuner.csv", records.steps)
        self._opened: float | None = None
        self._counts = 0, 0

    def look(self) -> None:
        """Move on if an interval has ended. To be called often."""
        now = self._records.seconds
        counts = self._threads.trainings.count, self._sampler.queue_times.predictions
        if self._opened is None:
            if self._sampler.num_starting == 0:
                self._opened, self._counts = now, counts
            return
        seconds = now - self._opened
        if seconds < self._interval:
            return
        trainings, predictions = (b - a for a, b in zip(self._counts, counts, strict=True))
        names = ("num_predictors", "num_trainers", "num_agents")
        row: dict[str, float] = {"steps": self._records.steps, "seconds": now}
        row |= dict(zip(names, self._tuner.counts, strict=True))
        row["trainings_per_second"] = trainings / seconds
        row["predictions_per_second"] = predictions / seconds
        row["is_kept"] = self._tuner.after_window(trainings / seconds)
        self._table.write(row)
        num_predictors, num_trainers, num_agents = self._tuner.counts
        self._threads.set_counts(num_predictors, num_trainers)
        self._sampler.set_num_agents(num_agents)
        self._opened = None

    def leave_out(self, trainings: int) -> None:
        """Leave out ``trainings`` made while the records' clock stood still."""
        self._counts = self._counts[0] + trainings, self._counts[1]


@dataclass(kw_only=True, eq=False)
class QueuedRun(Run):
    """A run of GA3C, with threads for its predictors and trainers."""

    sampler: QueuedSampler
    learner: GA3C
    threads: QueueThreads
    sync: VersionSync

    @property
    def has_threads(self) -> bool:
        return True

    def iterate(self) -> None:
        """Let all go on until ``planned_steps`` are taken or a stop is asked for, and record."""
        if not self.sampler.is_running:  # the time was over before
            return
        learner, threads = self.learner.config, self.threads
        sampler, records = self.sampler, self.records
        self._earlier = records.steps
        threads.progress = lambda: self.config.progress(self._earlier + sampler.steps)
        self._shares = Shares(sampler, threads, records)
        self._tuning = Tuning(self) if learner.tuner else None
        meter = QueueMeter(sampler, threads, lambda: records.seconds)
        self.sync.take_metrics = lambda: {
            "learning_rate": self.sync.versions.lr,
            **meter.take(),
        }
        try:
            self.evaluate_if_due()  # a stop may have cut off the last one
            threads.set_counts(learner.num_predictors, learner.num_trainers)
            while records.steps < self.config.planned_steps and not self.is_stopped():
                threads.woken.wait(POLL_SECONDS)
                threads.check()
                self._record()
                if self._tuning is not None:
                    self._tuning.look()
                self.evaluate_if_due()
            threads.finish()
            threads.check()
            self._record()
            records.write_last_row()
        except Exception:
            with suppress(Exception):  # the first error is the one to tell
                self._report()
            raise
        self._report()

    def _record(self) -> None:
        for metrics in self.threads.take_metrics():
            self.records.add_metrics(metrics)
        steps, episodes = self._earlier + self.sampler.steps, self.sampler.take_episodes()
        self.records.after_update(steps, {}, episodes, self._shares.read())

    def _report(self) -> None:
        write_lags(self.run_dir, self.threads.read_trainings().lags)

    def evaluate_if_due(self) -> None:
        """Let agents wait during `Run.evaluate_if_due`."""
        if not self.is_evaluation_due():
            return
        with self.sampler.paused():
            self.sync.pull()
            before = self.threads.read_trainings()
            super().evaluate_if_due()
            after = self.threads.read_trainings()  # of trainers, which have gone on meanwhile
        self._shares.leave_out(after.seconds - before.seconds)
        if self._tuning is not None:
            self._tuning.leave_out(after.count - before.count)

    @property
    def place(self) -> str:
        return f"in {self.sampler.config.num_groups} agents"

    @property
    def graphs(self) -> Graphs | None:
        return self.threads.graphs

    def close(self, *, waits: bool = True) -> None:
        try:
            self.threads.close()
        finally:
            self.sampler.close()


def build_queued(config: TrainConfig, seed: int, team: Team) -> QueuedRun:
    """Return a run of GA3C whose simulators have this seed."""
    learner = config.learner
    assert isinstance(learner, GA3CConfig)
    device = learner_device(config, team.ranks)
    agents = config.sampler.num_groups
    sampler = QueuedSampler(
        config.env_factory,
        config.sampler,
        seed,
        drives_gpu=device.type == "cuda",
        max_agents=4 * agents if learner.tuner else agents,
        max_prediction_batch=_MAX_PREDICTION_BATCH,
        training_queue_size=learner.training_queue_size,
        gamma=learner.gamma,
        bootstrap_on_truncation=learner.bootstrap_on_truncation,
    )
    with ExitStack() as undo:
        undo.callback(sampler.close)
        torch.manual_seed(config.seed)
        num_training = sampler.rollout_spec.B
        tried = num_training + EVALUATION_ENVS
        agent = agent_of(config, sampler.env_spec, device, env_index=tried)
        assert isinstance(agent, PolicyAgent)
        initial = take_initial(config, agent)
        graphs = graphs_of(config, agent.model, make_graphs(config, device))
        flat = FlatParameters(agent.model)
        versions = Versions(flat.parameter, learner.rule, learner.max_gradient_norm)
        sync = VersionSync(flat, versions)
        learns = GA3C(agent, learner, sync)
        threads = QueueThreads(agent, learns, versions, sampler, device, graphs)
        evaluator = None
        if config.evaluation_interval:
            evaluator = Evaluator(config, agent, device, team, num_training)
        undo.pop_all()
    return QueuedRun(
        config=config,
        team=team,
        device=device,
        sampler=sampler,
        agent=agent,
        learner=learns,
        sync=sync,
        evaluator=evaluator,
        threads=threads,
        initial=initial.text,
    )


class Shares:
    """The time of predictors and trainers, divided among waiting, inference and learning.

    Times are means over all these threads. A predictor that waits for trainers counts as learning.
    All other time counts as waiting for simulators. The simulators' time is the mean over the
    agents that run.
    """

    def __init__(self, sampler: QueuedSampler, threads: QueueThreads, records: Records) -> None:
        self._sampler = sampler
        self._threads = threads
        self._records = records
        self._waiting, self._policy, self._simulating = sampler.times
        self._rest = self._waiting
        self._before = self._read()

    def leave_out(self, learning_seconds: float) -> None:
        """Leave out seconds in which trainers learned while the records' clock stood still."""
        wall, policy, learning, busy = self._before
        self._before = wall, policy, learning + learning_seconds, busy

    def read(self) -> SamplerTimes:
        """Return the sampler's clocks, and add to the records' ``learning_seconds``."""
        now = self._read()
        wall, policy, learning, busy = (b - a for a, b in zip(self._before, now, strict=True))
        self._before = now
        number = max(1, self._threads.num_predictors + self._threads.num_trainers)
        self._policy += policy / number
        # Negative if an update has ended that began before the last reading.
        self._rest += wall - (policy + learning) / number
        self._waiting = max(self._waiting, self._rest)
        self._records.learning_seconds += learning / number
        self._simulating += busy / max(1, self._sampler.num_agents)
        return SamplerTimes(self._waiting, self._policy, self._simulating)

    def _read(self) -> tuple[float, float, float, float]:
        times, learning = self._sampler.queue_times, self._threads.trainings.seconds
        learning += times.predictor_blocked
        return self._records.seconds, times.predictor_busy, learning, self._sampler.busy_seconds
