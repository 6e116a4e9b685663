"""A training run from start to end: build the parts, go through its iterations, leave results."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import logging
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from traceback import format_exc, format_exception
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import nn

from accel_rl.algos.replay_config import ReplayConfig
from accel_rl.config import TrainConfig
from accel_rl.models.joined import JoinedNetwork, convolves, indicated
from accel_rl.parallel import Team, TeamError
from accel_rl.presets import describe_settings
from accel_rl.runs.directory import describe_machine, log_to, run_place, write_config
from accel_rl.runs.files import WriteError, explain
from accel_rl.runs.yaml_file import UNSIGNED
from accel_rl.samplers import ParallelSampler, SamplerError
from accel_rl.spaces import Leaf, leaves_of, without_mask
from accel_rl.system.functions import ExitError, place_of, refusing_exit
from accel_rl.system.lasting_console import LastingConsole
from accel_rl.system.process_settings import directory, taking_back
from accel_rl.system.signing import user_key
from accel_rl.system.stopping import Interrupted, StopRequest
from accel_rl.trackers import check_trackers
from accel_rl.training.build import build
from accel_rl.training.devices import describe_sharing
from accel_rl.training.metrics import OnRow
from accel_rl.training.progress import (
    Progress,
    ProgressHandler,
    Status,
    make_progress,
)
from accel_rl.training.resume import (
    begin,
    describe_resumed,
    load_saved,
    without_loaded,
)
from accel_rl.training.run import ALONE, Run
from accel_rl.training.torch_setup import (
    gpu_arithmetic,
    is_forked,
    own_torch_state,
    quick_switches,
    sampling_threads,
)

_LOGGER = logging.getLogger(__name__)


class RunError(RuntimeError):
    """A run failed. The message says why; ``train.log`` of the run has the traceback."""


@dataclass(frozen=True)
class TrainResult:
    """The result of a run.

    Attributes:
        run_dir: directory of the run.
        status: counts, scores, speeds and shares of the time of the whole run. None for all
            learners but the first.
        updates: number of updates.
        stopped_by: signal that stopped the run, if any.
        is_cut: whether ``on_row`` or ``max_minutes`` ended the run.
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
    """Train as a configuration says.

    Ctrl-C, SIGTERM and SIGHUP end the run within seconds and save everything. Torch's random
    generator on the CPU is restored afterwards; generators on GPUs are seeded again.

    Args:
        config: the configuration. Only the command line starts several learners.
        console: where to show progress; None: the terminal.
        team: the learners of which this process is one; only the first shows progress.
        on_row: called in this thread with each row of ``metrics.csv``. If it returns True, the run
            ends and saves; if it returns a mapping, that are the options of all later resets of
            Gymnasium environments. An exception fails the run.

    Returns:
        The result of the run.

    Raises:
        ValueError: the configuration is not possible here. No process or file was made.
        SamplerError: this system is not Linux, and ``num_workers`` is not 0.
        RunError: the run failed later. Everything learned until then is saved if possible.
        Interrupted: the run was stopped before its first iteration.
        TeamError: another learner has ended.
    """
    if config.num_learners != team.ranks.size:
        raise ValueError(
            f"{config.num_learners} learners are asked for, and this process is one of "
            f"{team.ranks.size}: start them with `accel_rl train`, or give learners=1"
        )
    check_trackers(config.tracker, installed=True)
    place = run_place(config)
    with contextlib.ExitStack() as stack:
        stack.enter_context(taking_back([directory()]))  # where an environment has changed it
        stack.enter_context(sampling_threads())
        stack.enter_context(own_torch_state())
        saved = load_saved(config, place, team, stack)
        try:
            run = build(config, saved, team)
        except RuntimeError as error:
            if isinstance(error, SamplerError | TeamError) or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                raise
            # The GPU's memory does not suffice, it is taken, or its driver has failed.
            raise RunError(_explain(error, config).partition("\n")[0]) from error
        stack.push(lambda _, error, __: run.close(waits=not _is_stuck(error, team)))
        stack.enter_context(gpu_arithmetic(config, run.device))
        if run.device.type == "cuda" and run.has_threads:
            stack.enter_context(quick_switches())
        run_dir = begin(run, place, saved, stack)
        if saved is not None:
            saved = without_loaded(saved)
            gc.collect()  # torch's reader is a cycle, which keeps all that it has read
        progress = make_progress(console or LastingConsole(), config.title, team.ranks.size)
        stack.enter_context(contextlib.closing(progress))
        stop = stack.enter_context(StopRequest(progress.close, config.max_minutes))
        with _logging(run, run_dir, ProgressHandler(progress)):
            run.open(run_dir, stop, progress, on_row, saved)
            with contextlib.closing(run.records):
                if team.ranks.is_first:
                    write_config(config, run_dir / "config.yaml")
                    for text in first_lines(run, saved):
                        progress.say(text)
                        _LOGGER.info("%s", text)
                _LOGGER.info("%s", describe_machine(run.device))
                _start(run, progress, saved)
                stop.hold()
                run.records.begin(run.sampler.times)
                try:
                    with refusing_exit():
                        run.iterate()
                        run.finish()
                except Exception as error:
                    if not _salvage(run, error):
                        raise
            return _result(run, progress)


@contextlib.contextmanager
def _logging(run: Run, run_dir: Path, handler: logging.Handler) -> Iterator[None]:
    """Keep a log, and raise an error within as a `RunError`, with its details in the log."""
    ranks = run.team.ranks
    log = run_dir / ("train.log" if ranks.is_first else f"train_learner_{ranks.rank}.log")
    try:
        with log_to(log, handler):
            try:
                with refusing_exit():
                    yield
            except Exception as error:
                who = _blame(run.team) if isinstance(error, TeamError) else ""
                # At a level that goes to the file alone: people get the message from the caller.
                _LOGGER.info("the run failed%s\n%s", who, "".join(format_exception(error)))
                raise RunError(f"{_explain(error, run.config)}{who}\n(details: {log})") from error
    except WriteError as error:  # of the log itself
        raise RunError(_explain(error, run.config)) from error


def _start(run: Run, progress: Progress, saved: Mapping[str, Any] | None) -> None:
    """Start the simulators, unless ``max_minutes`` are over before; the run then ends in order."""
    sampler, due_at = run.sampler.config, monotonic()
    expected = sampler.num_envs * sampler.decorrelation_steps // 2

    def look(num_steps: int) -> None:
        nonlocal due_at
        if run.stop.is_asked():
            assert run.stop.received is not None
            raise Interrupted(run.stop.received)
        if run.team.ranks.is_first and monotonic() >= due_at:
            due_at = monotonic() + progress.interval_seconds
            progress.prepare(num_steps, expected)

    try:
        run.start(saved, look)
    except Interrupted:
        if not run.stop.is_own:
            raise


def first_lines(run: Run, saved: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield what people should know of ``run`` before it begins, a line each.

    Args:
        run: the run, whose directory is there.
        saved: the checkpoint from which it continues, or None.
    """
    config, ranks = run.config, run.team.ranks
    yield f"run directory: {run.run_dir}"
    yield run.describe()
    if saved is None and (told := describe_settings(config, run.sampler.env_spec)):
        yield told
    if run.initial:
        yield run.initial
    if ranks.size > 1:
        how = "they make each update together"
        if config.parallel.sync == "store":
            how = "they update one store of parameters"
        yield f"this is the first of {ranks.size} learners; {how}"
    if user_key() is None:
        yield f"the run is {UNSIGNED}"
    if saved is not None:
        yield describe_resumed(saved, config, ranks.size)
    if config.planned_steps != config.total_steps:
        is_far = config.planned_steps > 2 * config.total_steps
        advice = "; a smaller horizon or num_envs takes fewer steps" if is_far else ""
        yield (
            f"total_steps={config.total_steps:,} is rounded up to {config.planned_steps:,}, whole "
            f"rollouts of {config.sampler.num_envs} environments x {config.sampler.horizon} steps"
            f"{advice}"
        )
    if sharing := describe_sharing(config, ranks, run.device):
        yield sharing
    sampler = run.sampler
    num_shares = config.sampler.num_envs // sampler.config.num_envs  # one for each learner
    batch = config.learner.batches(config.sampler).get("batch_size")
    is_shared = isinstance(sampler, ParallelSampler) and num_shares > 1
    if run.device.type == "cuda" and is_shared and batch and batch.size < 64 * num_shares:
        yield (
            f"batch_size={batch.size} gives each of {num_shares} learners "
            f"{batch.size // num_shares} samples an update, which hardly use a GPU; "
            f"batch_size={256 * num_shares} "
            f"num_envs={8 * num_shares * sampler.num_possible} uses GPUs and cores"
        )
    if config.sampler.decorrelation_steps and (saved is None or saved["sampler"] is None):
        yield (
            f"each environment first takes up to {config.sampler.decorrelation_steps:,} random "
            f"steps (decorrelation_steps)"
        )
    is_short = config.sampler.horizon == 1 and not isinstance(config.learner, ReplayConfig)
    if config.memory is not None and is_short:
        yield (
            f"memory={config.memory} with horizon=1 hardly learns what to remember; use a larger "
            f"horizon"
        )
    if is_forked():
        yield (
            "this process was forked, so torch computes in one thread; start the process by spawn "
            "for more threads"
        )
    if not getattr(config.learner, "scales_actions", True):
        for _, leaf in leaves_of(sampler.env_spec.action):
            if not leaf.is_clipped:
                continue
            half = (leaf.limits[1] - leaf.limits[0]) / 2
            least, most = half.min(), half.max(initial=0.0, where=np.isfinite(half))
            if least < 0.1 or most > 10:
                yield (
                    f"actions of {config.env} have bounds {least:.2g} to {most:.2g} from their "
                    f"middle, and algo={config.algo} draws them with deviation 1 around 0; "
                    f"algo=ppo fits them to the bounds"
                )
    for path, leaf in leaves_of(without_mask(sampler.env_spec.observation)):
        yield from _seen(config, path, leaf, run.agent.model)
    is_slow = run.device.type == "cpu" and torch.backends.cpu.get_cpu_capability() == "AVX2"
    if is_slow and config.learner.precision == "bfloat16":  # a third of the speed of float32
        yield "precision=bfloat16 is slower than float32 on this processor, which has no AVX-512"


def _seen(
    config: TrainConfig, path: tuple[str, ...], leaf: Leaf, network: nn.Module
) -> Iterator[str]:
    """Yield how the network treats a leaf of observations, if users may not expect that."""
    is_number = leaf.dtype.kind in "iu" and len(leaf.shape) < 3
    has_indicators = path and (
        ":" in config.model or (isinstance(network, JoinedNetwork) and indicated(leaf) is not None)
    )
    part = f" ({path[-1]})" if path else ""
    if is_number and not has_indicators and (leaf.shape == () or leaf.counts is not None):
        yield (
            f"observations of {config.env}{part} are {'single ' * (leaf.shape == ())}integers, "
            f"which the network takes as quantities; if they only name states, wrap the "
            f"environment in gymnasium.wrappers.FlattenObservation"
        )
    is_picture = len(leaf.shape) == 3 or sum(size >= 16 for size in leaf.shape) >= 2
    if is_picture and ":" not in config.model and not convolves(network, leaf, not path):
        yield (
            f"observations of {config.env}{part} of shape "
            f"{list(leaf.shape)} go into dense layers, as numbers; convolutions take pictures "
            f"[channels, height, width] or [height, width, channels] that are large enough, "
            f"those of model=minatar small ones"
        )


def _result(run: Run, progress: Progress) -> TrainResult:
    stop, how = run.stop, "finished"
    if stop.received is not None:
        how = (
            "ended by on_row or max_minutes" if stop.is_own else f"stopped by {stop.received.name}"
        )
    _LOGGER.info("%s", how)
    status = None
    if run.team.ranks.is_first:
        status = dataclasses.replace(run.records.whole_run(), gpu=run.describe_gpu())
        progress.show(status)
        if status.gpu:
            _LOGGER.info("GPU: %s", status.gpu)
    stopped_by = None if stop.is_own else stop.received
    return TrainResult(run.run_dir, status, run.records.updates, stopped_by, stop.is_own)


def _is_stuck(error: BaseException | None, team: Team) -> bool:
    """Return whether the device may wait for ever, in an all-reduce with a learner that is gone.

    A call of the device would then wait, too.
    """
    causes = (error, error.__cause__ if error is not None else None)
    is_stuck = team.uses_nccl and any(isinstance(each, TeamError) for each in causes)
    if is_stuck:
        team.notice()
    return is_stuck


def _salvage(run: Run, error: Exception) -> bool:
    """Save what was learned before ``error``, whatever fails here.

    Return whether the run has ended in order: a signal for a whole group of processes has stopped
    the workers, too.
    """
    records = run.records
    if run.stop.received is not None and isinstance(error, SamplerError):
        records.finish(records.steps, alone=True)
        records.save_after_failure()
        return True
    if not run.team.ranks.is_first or _is_stuck(error, run.team):
        return False
    has_diverged = isinstance(error, FloatingPointError)
    for write in (partial(records.write_last_row, alone=True), records.save_after_failure):
        # Diverged, there is nothing left worth keeping; in the middle of an update, no one state.
        if write == records.save_after_failure and (has_diverged or records.is_learning):
            break
        try:
            write()
        except Exception as another:
            has_diverged |= isinstance(another, FloatingPointError)
            _LOGGER.info("not saved after the failure\n%s", format_exc())
    return False


def _blame(team: Team) -> str:
    """Return which learners have failed, as far as is known."""
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
    return f"{type(error).__name__}: {error}{place}"
