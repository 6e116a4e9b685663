"""The iterations of a run: collect, update, record; in turns, or the first two at the same time."""

from __future__ import annotations

import signal
from functools import partial
from time import perf_counter

from accel_rl.config import TrainConfig
from accel_rl.parallel import Exchange, StoreExchange, Team
from accel_rl.samplers.sampler import RolloutSampler
from accel_rl.training.build import ALONE
from accel_rl.training.evaluation import Evaluator
from accel_rl.training.follower import Follower
from accel_rl.training.overlap import Overlap
from accel_rl.training.protocols import Learner, Server
from accel_rl.training.recorder import Recorder
from accel_rl.training.stopping import StopRequest
from accel_rl.training.torch_setup import learning_threads, num_learning_threads


def iterate(
    config: TrainConfig,
    sampler: RolloutSampler,
    server: Server,
    learner: Learner,
    exchange: Exchange,
    recorder: Recorder | Follower,
    evaluator: Evaluator | None,
    stop: StopRequest,
    team: Team = ALONE,
    *,
    is_small: bool = False,
) -> None:
    """Collect, update, record, until ``planned_steps`` are taken or a stop is asked for.

    ``is_small``: of `has_small_updates`.
    """
    num_threads = num_learning_threads(is_small=is_small)
    _evaluate_if_due(recorder, evaluator, stop, exchange)  # a stop may have cut off the last one
    while recorder.steps < config.planned_steps and not _is_stopped(config, team, stop):
        sampler.collect(server)
        steps = _count_steps(config, recorder, team)
        began = perf_counter()
        recorder.is_learning = True
        with learning_threads(num_threads):
            batch = server.finish()
            metrics = learner.update(batch, config.progress(recorder.steps), steps)
        recorder.learning_seconds += perf_counter() - began
        recorder.is_learning = False
        recorder.after_update(
            steps, exchange.num_updates, metrics, sampler.take_episodes(), sampler.times
        )
        _evaluate_if_due(recorder, evaluator, stop, exchange)


def iterate_overlapped(
    config: TrainConfig,
    sampler: RolloutSampler,
    server: Server,
    learner: Learner,
    overlap: Overlap,
    exchange: Exchange,
    recorder: Recorder | Follower,
    evaluator: Evaluator | None,
    stop: StopRequest,
    team: Team = ALONE,
) -> None:
    """As `iterate`, but each rollout is collected while the one before is learned from.

    ``server`` acts with the agent of ``overlap`` and keeps its rollout. Nothing is left that was
    collected and not learned from where a checkpoint is due, a stop is asked for or the run ends.
    """
    _evaluate_if_due(recorder, evaluator, stop, exchange)
    batch = None
    while True:
        is_stopped = _is_stopped(config, team, stop)
        if batch is None:
            if is_stopped or recorder.steps >= config.planned_steps:
                return
            overlap.take_over()
            sampler.collect(server)
            batch = server.finish()
        steps = _count_steps(config, recorder, team)
        goes_on = steps < config.planned_steps and not is_stopped and not recorder.saves_at(steps)
        episodes = sampler.take_episodes()
        update = partial(learner.update, batch, config.progress(recorder.steps), steps)
        recorder.is_learning = True
        result = overlap.begin(update)
        try:
            if goes_on:
                sampler.collect(server)
        finally:  # the update is made, and counts, also where the sampler fails
            began = perf_counter()
            metrics = result()
            recorder.learning_seconds += perf_counter() - began
            recorder.is_learning = False
            recorder.after_update(steps, exchange.num_updates, metrics, episodes, sampler.times)
        batch = None
        _evaluate_if_due(recorder, evaluator, stop, exchange)
        if goes_on:
            overlap.take_over(config.sampler.horizon)
            batch = server.finish()


def is_apart(config: TrainConfig, team: Team) -> bool:
    """Whether there are other learners, which do not go in step with this one."""
    return team.ranks.size > 1 and config.parallel.sync == "store"


def _count_steps(config: TrainConfig, recorder: Recorder | Follower, team: Team) -> int:
    """Steps of all learners, with those of one more iteration of this one."""
    if is_apart(config, team):
        return team.add_steps(config.steps_per_iteration)
    return recorder.steps + config.steps_per_iteration


def _is_stopped(config: TrainConfig, team: Team, stop: StopRequest) -> bool:
    """Whether to stop here. Learners that go in step all do so after the same iteration."""
    received = 0 if stop.received is None else int(stop.received)
    if is_apart(config, team):
        if received:
            team.ask_to_stop()
        elif team.is_stop_asked:  # by another, whose signal is not known here
            stop.received = signal.SIGTERM
        return team.is_stop_asked
    received = team.largest(received)
    if received and stop.received is None:
        stop.received = signal.Signals(received)
    return received > 0


def _evaluate_if_due(
    recorder: Recorder | Follower,
    evaluator: Evaluator | None,
    stop: StopRequest,
    exchange: Exchange,
) -> None:
    """An evaluation where one is due, of the parameters as they are then.

    Others go on meanwhile: no step waits for its end to go into a store, and the next gradient is
    of the parameters that are there then.
    """
    if evaluator is None or stop.received is not None or not evaluator.is_due(recorder.steps):
        return
    assert isinstance(recorder, Recorder), "the first learner evaluates"
    store = exchange if isinstance(exchange, StoreExchange) else None
    if store is not None:
        store.pull()
    recorder.evaluate(evaluator, stop)
    if store is not None:
        store.pull()
