"""A training run from start to end: build the parts, collect and update in turns, leave results."""

from __future__ import annotations

import contextlib
import logging
import signal
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console

from accel_rl.config import TrainConfig
from accel_rl.parallel import Exchange
from accel_rl.samplers import SamplerError
from accel_rl.samplers.base import Sampler
from accel_rl.training.evaluation import Evaluator
from accel_rl.training.parts import Learner, Parts, Server, build
from accel_rl.training.progress import (
    Progress,
    ProgressHandler,
    Status,
    make_progress,
)
from accel_rl.training.recorder import Recorder
from accel_rl.training.resume import describe_resumed, load_last
from accel_rl.training.run_directory import (
    describe_machine,
    hold,
    log_to,
    make_run_directory,
    write_config,
)
from accel_rl.training.stopping import Interrupted, StopRequest
from accel_rl.training.torch_threads import learning_threads, sampling_threads

_LOGGER = logging.getLogger(__name__)


class RunError(RuntimeError):
    """A run ended early. The message says why; the traceback is in the run's ``train.log``."""


@dataclass(frozen=True)
class TrainResult:
    """How a run ended. ``status`` has its counts, and its speeds and shares over all of it."""

    run_dir: Path
    status: Status
    updates: int
    stopped_by: signal.Signals | None = None


def train(config: TrainConfig, console: Console | None = None) -> TrainResult:
    """Trains as ``config`` says, showing progress on ``console``.

    Ctrl-C and SIGTERM end it within seconds with everything saved, as ``stopped_by`` tells.

    Raises:
        ValueError: the config cannot be had here, before any process or file is made.
        SamplerError: this is not Linux, and ``serial`` is false.
        RunError: it failed later; what was learned until then is saved if that is possible.
        Interrupted: stopped before the first iteration; nothing was learned.
    """
    with sampling_threads(), contextlib.ExitStack() as stack:
        saved = None
        if config.resume is not None:
            run_dir = Path(config.resume)
            stack.enter_context(hold(run_dir))
            saved = load_last(config)
        parts = build(config, saved)
        stack.callback(parts.sampler.close)
        stack.callback(parts.server.close)
        if saved is not None:
            parts.set_state(saved)
        else:
            run_dir = make_run_directory(config, datetime.now())
            stack.enter_context(hold(run_dir))
        progress = stack.enter_context(
            contextlib.closing(make_progress(console or Console(), config.title))
        )
        stop = stack.enter_context(StopRequest(progress.close))
        try:
            with log_to(run_dir / "train.log", ProgressHandler(progress)):
                return _run(config, parts, run_dir, progress, stop, saved)
        except Exception as error:
            raise RunError(f"{_explain(error)}\n(details: {run_dir / 'train.log'})") from error


def _run(
    config: TrainConfig,
    parts: Parts,
    run_dir: Path,
    progress: Progress,
    stop: StopRequest,
    saved: Mapping[str, Any] | None,
) -> TrainResult:
    write_config(config, run_dir / "config.yaml")
    _LOGGER.info("%s", describe_machine(parts.device))
    for notice in _notices(config, parts, run_dir, saved):
        progress.say(notice)
        _LOGGER.info("%s", notice)
    recorder = Recorder(
        config,
        run_dir,
        progress,
        parts.get_state,
        saved,
        metric_names=parts.learner.metric_names,
        frame_skip=parts.sampler.env_spec.frame_skip,
        device=parts.device,
    )
    try:
        parts.start(saved)
        stop.hold()
        recorder.begin(parts.sampler.times)
        try:
            iterate(
                config,
                parts.sampler,
                parts.server,
                parts.learner,
                parts.exchange,
                recorder,
                parts.evaluator,
                stop,
            )
        except Exception as error:
            # Whoever stops a whole group of processes at once has stopped the workers too.
            if stop.received is None or not isinstance(error, SamplerError):
                _save_what_can_be(recorder, error)
                raise
        recorder.finish()
    except Exception:
        # At a level that goes to the file alone: people get the message from whoever called.
        _LOGGER.info("the run failed\n%s", traceback.format_exc())
        raise
    finally:
        recorder.close()
    result = TrainResult(run_dir, recorder.whole_run(), recorder.updates, stop.received)
    _LOGGER.info("%s", f"stopped by {stop.received.name}" if stop.received else "finished")
    return result


def iterate(
    config: TrainConfig,
    sampler: Sampler,
    server: Server,
    learner: Learner,
    exchange: Exchange,
    recorder: Recorder,
    evaluator: Evaluator | None,
    stop: StopRequest,
) -> None:
    """Collect, update, record, until ``planned_steps`` are taken or a stop is asked for."""
    _evaluate_if_due(recorder, evaluator, stop)  # a stop may have cut off the last one
    while recorder.steps < config.planned_steps and stop.received is None:
        sampler.collect(server)
        began = perf_counter()
        recorder.is_learning = True
        with learning_threads():
            batch = server.finish()
            metrics = learner.update(batch, config.progress(recorder.steps))
        recorder.learning_seconds += perf_counter() - began
        recorder.is_learning = False
        recorder.after_update(
            config.steps_per_iteration,
            exchange.num_updates,
            metrics,
            sampler.take_episodes(),
            sampler.times,
        )
        _evaluate_if_due(recorder, evaluator, stop)


def _evaluate_if_due(recorder: Recorder, evaluator: Evaluator | None, stop: StopRequest) -> None:
    if evaluator is None or not evaluator.is_due(recorder.steps):
        return
    began = perf_counter()
    try:
        recorder.write_evaluation(evaluator.evaluate(recorder.steps, stop))
    except Interrupted:  # the loop ends, and saves
        pass
    recorder.pause(perf_counter() - began)


def _notices(
    config: TrainConfig, parts: Parts, run_dir: Path, saved: Mapping[str, Any] | None
) -> list[str]:
    notices = [f"run directory: {run_dir}", parts.describe()]
    if saved is not None:
        notices.append(describe_resumed(saved))
    if config.planned_steps != config.total_steps:
        notices.append(
            f"total_steps={config.total_steps:,} is rounded up to {config.planned_steps:,}, "
            f"whole rollouts of {config.sampler.num_envs} environments x {config.sampler.horizon}"
        )
    return notices


def _save_what_can_be(recorder: Recorder, error: Exception) -> None:
    """After a failure: what was learned is worth keeping, and the first error worth telling."""
    writers = [recorder.write_last_row, recorder.draw_curve]
    # Diverged, there is nothing left worth keeping; in the middle of an update, no one state.
    if not isinstance(error, FloatingPointError) and not recorder.is_learning:
        writers.append(recorder.save)
    for write in writers:
        try:
            write()
        except Exception:
            _LOGGER.info("not saved after the failure\n%s", traceback.format_exc())


def _explain(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return (
            f"cannot write {error.filename}: {error.strerror}; "
            "free some space there, or choose another run_dir"
        )
    if isinstance(error, ValueError | SamplerError | FloatingPointError):
        return str(error)
    return f"{type(error).__name__}: {error}"
