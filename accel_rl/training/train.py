"""A training run from start to end: build the parts, go through its iterations, leave results."""

from __future__ import annotations

import contextlib
import gc
import logging
import signal
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from accel_rl.config import TrainConfig
from accel_rl.console import LastingConsole
from accel_rl.functions import ExitError, place_of, refusing_exit
from accel_rl.ga3c.queued import QueuedSampler
from accel_rl.parallel import Exchange, StoreExchange, Team, TeamError
from accel_rl.processes import NO_MORE_PROCESSES, lacks_processes
from accel_rl.runs.checkpoint import sign_simulators
from accel_rl.runs.directory import (
    describe_machine,
    log_to,
    write_config,
)
from accel_rl.runs.files import WriteError, explain
from accel_rl.runs.yaml_file import UNSIGNED
from accel_rl.samplers import ParallelSampler, SamplerError
from accel_rl.samplers.layout import even_num_envs
from accel_rl.signing import user_key
from accel_rl.topology import available_cpus
from accel_rl.training.build import ALONE, Parts, build
from accel_rl.training.devices import computes_bfloat16_slowly
from accel_rl.training.engine_trial import tune_engine
from accel_rl.training.follower import Follower
from accel_rl.training.iterate import is_apart, iterate, iterate_overlapped
from accel_rl.training.overlap import LAG
from accel_rl.training.progress import (
    Progress,
    ProgressHandler,
    Status,
    make_progress,
)
from accel_rl.training.queue_threads import QueueThreads
from accel_rl.training.queued_loop import iterate_queued
from accel_rl.training.recorder import OnRow, Recorder
from accel_rl.training.resume import (
    begin,
    describe_idleness,
    describe_resumed,
    load_saved,
    without_loaded,
)
from accel_rl.training.stopping import StopRequest
from accel_rl.training.torch_setup import is_forked, own_torch_state, sampling_threads

_LOGGER = logging.getLogger(__name__)


class RunError(RuntimeError):
    """A run ended early. The message says why; the traceback is in the run's ``train.log``."""


@dataclass(frozen=True)
class TrainResult:
    """How a run ended. ``status`` has its counts, its scores, and its speeds and shares over all.

    Only the first of several learners knows that; the others' ``status`` is None. ``is_cut``:
    ``on_row`` has ended it.
    """

    run_dir: Path
    status: Status | None
    updates: int
    stopped_by: signal.Signals | None = None
    is_cut: bool = False


def train(
    config: TrainConfig,
    console: Console | None = None,
    team: Team = ALONE,
    *,
    on_row: OnRow | None = None,
) -> TrainResult:
    """Trains as ``config`` says, showing progress on ``console``.

    Ctrl-C, SIGTERM and SIGHUP end it within seconds with everything saved, as ``stopped_by`` tells.
    With a ``team`` this is one of its learners; only the first shows progress. Torch's generator on
    the CPU is afterwards what it was; those on GPUs are seeded anew.

    ``on_row`` is called with each row of ``metrics.csv`` as it is written, in this thread. If it
    returns True the run ends like that, too, as ``is_cut`` tells; what it raises fails the run.

    Raises:
        ValueError: the config cannot be had here, before any process or file is made.
        SamplerError: this is not Linux, and ``serial`` is false.
        RunError: it failed later; what was learned until then is saved if that is possible.
        Interrupted: stopped before the first iteration; nothing was learned.
        TeamError: another learner is gone.
    """
    is_first = team.ranks.is_first
    with contextlib.ExitStack() as stack:
        stack.enter_context(sampling_threads())
        stack.enter_context(own_torch_state())
        saved = load_saved(config, team, stack)
        cpus = available_cpus()
        parts = _build(config, saved, team)
        stack.callback(lambda: parts.sampler.close())  # of the parts that there are then

        def close_server(_: object, error: BaseException | None, __: object) -> None:
            if not _is_stuck(error, team):
                parts.server.close()

        stack.push(close_server)
        run_dir = begin(config, saved, parts, team, stack)
        if saved is not None:
            saved = without_loaded(saved)
            gc.collect()  # torch's reader is a cycle, which keeps all that it has read
        progress = stack.enter_context(
            contextlib.closing(make_progress(console or LastingConsole(), config.title))
        )
        stop = stack.enter_context(StopRequest(progress.close))
        log = run_dir / ("train.log" if is_first else f"train_learner_{team.ranks.rank}.log")
        who = ""
        try:
            with log_to(log, ProgressHandler(progress)), refusing_exit():
                try:
                    if config.tune:
                        config, parts = tune_engine(config, parts, team, cpus, progress.say)
                    return _run(config, parts, run_dir, progress, stop, saved, team, on_row)
                except TeamError as error:
                    who = _blame(team)
                    _LOGGER.info("%s%s", error, who)
                    raise
        except Exception as error:
            # Of a log that cannot be written there are no details.
            is_log = isinstance(error, WriteError) and error.filename == str(log)
            details = "" if is_log else f"\n(details: {log})"
            raise RunError(f"{_explain(error, config)}{who}{details}") from error


def _build(config: TrainConfig, saved: Mapping[str, Any] | None, team: Team) -> Parts:
    if config.num_learners != team.ranks.size:
        raise ValueError(
            f"{config.num_learners} learners are asked for, and this process is one of "
            f"{team.ranks.size}: start them with `python -m accel_rl`, or give learners=1"
        )
    try:
        return build(config, saved, team)
    except RuntimeError as error:
        if isinstance(error, SamplerError | TeamError) or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            raise
        # Of the GPU: its memory does not suffice, it is taken, or its driver has failed.
        raise RunError(_explain(error, config).partition("\n")[0]) from error


def _run(
    config: TrainConfig,
    parts: Parts,
    run_dir: Path,
    progress: Progress,
    stop: StopRequest,
    saved: Mapping[str, Any] | None,
    team: Team,
    on_row: OnRow | None,
) -> TrainResult:

    def look(row: Mapping[str, float]) -> None:
        if on_row is not None and on_row(row) and row["steps"] < config.planned_steps:
            stop.ask()

    recorder = _make_recorder(config, parts, run_dir, progress, saved, team, look)
    try:
        if team.ranks.is_first:
            write_config(config, run_dir / "config.yaml")
            for notice in _notices(config, parts, run_dir, saved, team):
                progress.say(notice)
                _LOGGER.info("%s", notice)
        _LOGGER.info("%s", describe_machine(parts.device))
        parts.start(saved)
        stop.hold()
        recorder.begin(parts.sampler.times)
        try:
            with refusing_exit():
                _go_through(config, parts, recorder, stop, team, run_dir)
                finish(config, parts.exchange, recorder, team)
        except Exception as error:
            # Whoever stops a whole group of processes at once has stopped the workers too.
            if stop.received is None or not isinstance(error, SamplerError):
                if isinstance(recorder, Recorder) and not _is_stuck(error, team):
                    _save_what_can_be(recorder, error)
                raise
            recorder.finish(recorder.steps, alone=True)
            recorder.save(alone=True)
    except Exception:
        # At a level that goes to the file alone: people get the message from whoever called.
        _LOGGER.info("the run failed\n%s", traceback.format_exc())
        raise
    finally:
        recorder.close()
    how = "finished"
    if stop.received is not None:
        how = "ended by on_row" if stop.is_own else f"stopped by {stop.received.name}"
    _LOGGER.info("%s", how)
    status = None
    if isinstance(recorder, Recorder):
        status = recorder.whole_run()
        progress.show(status)
    stopped_by = None if stop.is_own else stop.received
    return TrainResult(run_dir, status, recorder.updates, stopped_by, stop.is_own)


def _go_through(
    config: TrainConfig,
    parts: Parts,
    recorder: Recorder | Follower,
    stop: StopRequest,
    team: Team,
    run_dir: Path,
) -> None:
    exchange, evaluator = parts.exchange, parts.evaluator
    if isinstance(parts.sampler, QueuedSampler):
        sampler, threads = parts.sampler, parts.server
        assert isinstance(threads, QueueThreads) and isinstance(recorder, Recorder)
        iterate_queued(config, sampler, threads, exchange, recorder, evaluator, stop, run_dir)
        return
    collecting = parts.in_turns
    if parts.overlap is None:
        is_small = parts.is_small
        iterate(config, *collecting, exchange, recorder, evaluator, stop, team, is_small=is_small)
        return
    with contextlib.closing(parts.overlap) as overlap:
        try:
            iterate_overlapped(
                config, *collecting, overlap, exchange, recorder, evaluator, stop, team
            )
        except BaseException:
            # Simulators may be ahead of what was learned from: not to be saved like that.
            parts.sampler.close()
            raise


def _make_recorder(
    config: TrainConfig,
    parts: Parts,
    run_dir: Path,
    progress: Progress,
    saved: Mapping[str, Any] | None,
    team: Team,
    on_row: OnRow,
) -> Recorder | Follower:
    def make_state() -> dict[str, Any]:
        state = parts.get_state()
        return {**state, "signature": sign_simulators(config.env, state)}

    if not team.ranks.is_first:
        return Follower(config, run_dir, make_state, saved, team, parts.exchange)
    return Recorder(
        config,
        run_dir,
        progress,
        make_state,
        saved,
        metric_names=parts.learner.metric_names + ((LAG,) if config.overlap else ()),
        frame_skip=parts.sampler.env_spec.frame_skip,
        info_keys=parts.sampler.env_spec.info_keys,
        device=parts.device,
        exchange=parts.exchange,
        team=team,
        on_row=on_row,
    )


def finish(
    config: TrainConfig, exchange: Exchange, recorder: Recorder | Follower, team: Team
) -> None:
    """The last records and the last checkpoint, of all learners together."""
    steps = recorder.steps
    if isinstance(exchange, StoreExchange):
        exchange.pull()  # steps that the store has not seen go into it
    if is_apart(config, team):
        if isinstance(recorder, Follower):  # done before the first one goes on to its own last
            recorder.finish(steps)
            recorder.save()
            team.reach("end", 1)  # and waits for nobody: the first one may evaluate for long
            return
        team.meet("end")
        steps = team.add_steps(0)
    recorder.finish(steps)
    recorder.save()


def _notices(
    config: TrainConfig,
    parts: Parts,
    run_dir: Path,
    saved: Mapping[str, Any] | None,
    team: Team,
) -> list[str]:
    notices = [f"run directory: {run_dir}", parts.describe()]
    if team.ranks.size > 1:
        how = "make each update together"
        if config.parallel.sync == "store":
            how = "update one store of parameters"
        notices.append(f"the first of {team.ranks.size} learners, which {how}")
    if not team.is_signed:
        notices.append(
            "learners do not sign what they say to each other, so whoever reaches their store can "
            "change the run; give all of them the same ACCEL_RL_SECRET_FILE (docs/safety.md)"
        )
    if user_key() is None:
        notices.append(f"the run is {UNSIGNED}")
    if saved is not None:
        notices.append(describe_resumed(saved, team.ranks.size))
        if idleness := describe_idleness(saved, config):
            notices.append(idleness)
    if config.planned_steps != config.total_steps:
        is_far = config.planned_steps > 2 * config.total_steps
        advice = "; a smaller horizon or num_envs takes fewer" if is_far else ""
        notices.append(
            f"total_steps={config.total_steps:,} is rounded up to {config.planned_steps:,}, whole "
            f"rollouts of {config.sampler.num_envs} environments x {config.sampler.horizon}{advice}"
        )
    if advice := _uneven(config, parts):
        notices.append(advice)
    if config.sampler.decorrelation_steps and (saved is None or saved["sampler"] is None):
        notices.append(
            f"simulators begin with up to {config.sampler.decorrelation_steps:,} random steps each "
            f"(decorrelation_steps)"
        )
    if config.lstm and config.sampler.horizon == 1:
        notices.append("lstm=true with horizon=1 hardly learns what to remember; use a longer one")
    if is_forked():
        notices.append(
            "this process was forked, so torch computes in one thread; start it by spawn for more"
        )
    if _counts_states(parts):
        notices.append(
            f"observations of {config.env} are single integers, which the network takes as they "
            f"are; where they only name states, wrap it in gymnasium.wrappers.FlattenObservation"
        )
    if computes_bfloat16_slowly(config, parts.device):
        notices.append(
            "precision=bfloat16 is slower than float32 on this processor, which has no AVX-512"
        )
    return notices


def _uneven(config: TrainConfig, parts: Parts) -> str:
    """Which ``num_envs`` keeps all workers busy alike, if this one does not."""
    sampler = parts.sampler
    if not isinstance(sampler, ParallelSampler):
        return ""
    num_workers = len(sampler.plan.worker_cpus)
    num_shares = config.sampler.num_envs // sampler.config.num_envs  # one for each learner
    better = [str(num_shares * each) for each in even_num_envs(sampler.config, num_workers)]
    if not better:
        return ""
    return (
        f"num_envs={config.sampler.num_envs} gives some of {num_workers} workers more to do than "
        f"others; num_envs={' or '.join(better)} keeps all evenly busy"
    )


def _counts_states(parts: Parts) -> bool:
    spec = parts.sampler.env_spec
    return spec.observation_shape == () and spec.observation_dtype.kind in "iu"


def _is_stuck(error: BaseException | None, team: Team) -> bool:
    """Whether the device may wait for ever, in an all-reduce with a learner that is gone.

    Whoever then asks it for anything waits with it, and nobody could tell what has happened.
    """
    causes = (error, error.__cause__ if error is not None else None)
    return team.uses_nccl and any(isinstance(each, TeamError) for each in causes)


def _save_what_can_be(recorder: Recorder, error: Exception) -> None:
    """After a failure: what was learned is worth keeping, and the first error worth telling."""
    errors = [error, _attempt(partial(recorder.write_last_row, alone=True))]
    _attempt(recorder.draw_curve)
    # Diverged, there is nothing left worth keeping; in the middle of an update, no one state.
    has_diverged = any(isinstance(each, FloatingPointError) for each in errors)
    if not has_diverged and not recorder.is_learning:
        _attempt(partial(recorder.save, alone=True))


def _attempt(write: Callable[[], object]) -> Exception | None:
    """Writes something; what that failed with, if it did, is for the log."""
    try:
        write()
    except Exception as error:
        _LOGGER.info("not saved after the failure\n%s", traceback.format_exc())
        return error
    return None


def _blame(team: Team) -> str:
    """Which learners have failed, as far as can be told."""
    lost, silent = team.find_failed()
    texts = [f"; learner {rank} has ended" for rank in lost]
    return "".join(texts or [f"; learner {rank} does not answer" for rank in silent])


def _explain(error: Exception, config: TrainConfig) -> str:
    if isinstance(error, WriteError):
        is_new = config.resume is None
        return explain(error, "choose another run_dir" if is_new else "resume a copy elsewhere")
    place = place_of(error, libraries=False)  # of the user's own network, say
    if isinstance(error, ValueError | SamplerError | FloatingPointError | TeamError | ExitError):
        return f"{error}{place}"
    if lacks_processes(error):
        return NO_MORE_PROCESSES
    return f"{type(error).__name__}: {error}{place}"
