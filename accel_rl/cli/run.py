"""One training run from the command line: messages, exit codes, and settings of our own process."""

from __future__ import annotations

import dataclasses
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from accel_rl.cli.help import PLAN
from accel_rl.cli.launcher import end_with_parent, launch, take_given
from accel_rl.cli.parse import from_texts, parse_arguments, to_texts
from accel_rl.cli.plan import describe_plan
from accel_rl.config import TrainConfig
from accel_rl.parallel import Ranks, Team, TeamError, meet_by_store, read_ranks
from accel_rl.parallel.meeting import STORE_VARIABLE
from accel_rl.parallel.ranks import learner_timeout
from accel_rl.runs.directory import refuse_used
from accel_rl.samplers import SamplerError
from accel_rl.system.console import complain, tell_error
from accel_rl.system.functions import ExitError, refusing_exit
from accel_rl.system.lasting_console import LastingConsole
from accel_rl.system.process_settings import directory, taking_back
from accel_rl.system.stopping import Interrupted
from accel_rl.training.build import agent_of
from accel_rl.training.devices import (
    all_have_own_gpus,
    check_learners,
    check_same_processors,
    learner_device,
)
from accel_rl.training.metrics import OnRow
from accel_rl.training.progress import summary
from accel_rl.training.run import ALONE
from accel_rl.training.torch_setup import sampling_threads, tune_malloc
from accel_rl.training.train import RunError, TrainResult, train


def run(arguments: Sequence[str]) -> int:
    """Parses, trains and reports; returns the exit code. See `accel_rl.__main__.main`.

    Where the config asks for several learners and nobody has started them yet, this process does,
    and is their launcher.
    """
    on_row, quiet = take_given()
    console = LastingConsole(quiet=quiet)
    try:
        ranks = read_ranks(os.environ)
        if PLAN in arguments:
            with refusing_exit():
                return _plan([each for each in arguments if each != PLAN], console, ranks)
        if ranks.size > 1:
            return _run_in_team(arguments, console, ranks, on_row)
        config = parse_arguments(arguments)
        check_learners(config, ranks)
        if config.num_learners > 1:
            probe_learners(config)
            return launch(["train", *arguments], config.num_learners)
        tune_malloc()
        return _report(train(config, console, Team(ranks)), console)
    except Interrupted as interrupted:
        return _tell_interrupted(interrupted)
    except (ValueError, SamplerError, RunError, TeamError, ExitError) as error:
        tell_error(error, ["train", *arguments])
        return 1


def probe_learners(config: TrainConfig) -> None:
    """Raises ValueError where no learner could have the environment, the network or ``run_dir``.

    Here, there is one message of that, before any process starts.
    """
    if config.run_dir is not None and config.resume is None:
        refuse_used(Path(config.run_dir))
    with taking_back([directory()]):  # where learners will look for files and modules
        spec = config.probe_spec()
        device = learner_device(config, Ranks())
        if device.type == "cpu":  # memory of a GPU is for the learners alone
            with sampling_threads():
                agent_of(config, spec, device)


def _plan(arguments: Sequence[str], console: Console, ranks: Ranks) -> int:
    """Prints what a run would do here, and how fast."""
    if ranks.size > 1:
        raise ValueError(f"{PLAN} is for one process alone; give learners=N in place of torchrun")
    config = parse_arguments(arguments)
    check_learners(config, ranks)
    tune_malloc()
    for text in describe_plan(config):
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    return 0


def _run_in_team(
    arguments: Sequence[str], console: Console, ranks: Ranks, on_row: OnRow | None = None
) -> int:
    """As one learner of several; the first one resolves the config for all."""
    end_with_parent()
    team = meet_by_store(ranks, learner_timeout())
    if ranks.is_first:
        config = parse_arguments(arguments)
        given = {argument.partition("=")[0] for argument in arguments}
        if given & {"resume", "config"} and not given & {"learners", "gpus"}:
            config = dataclasses.replace(config, learners=ranks.size)
        if STORE_VARIABLE not in os.environ:  # our own launcher has checked
            check_learners(config, ranks)
        if config.num_learners != ranks.size:
            config = dataclasses.replace(config, learners=ranks.size)
        team.share("config", to_texts(config))
    else:
        console = LastingConsole(stderr=True, force_terminal=False)
        config = from_texts(team.share("config"))
    code = None
    try:
        if config.parallel.sync == "all_reduce":
            check_same_processors(config, team)
            team.open_group(nccl=all_have_own_gpus(config, team))
        else:
            team.watch()
        tune_malloc()
        code = _report(train(config, console, team, on_row=on_row), console)
    except Interrupted as interrupted:
        code = _tell_interrupted(interrupted, team)
    except (ValueError, SamplerError, RunError, TeamError) as error:
        _tell(error, team, arguments)
    finally:
        _leave(team, has_failed=code is None)
    return 1 if code is None else code


def _tell(error: Exception, team: Team, arguments: Sequence[str]) -> None:
    """Prints what ended this learner, unless another one has said it, or will."""
    is_first = team.ranks.is_first
    if not isinstance(error, RunError) and not is_first and 0 in team.find_failed()[0]:
        return  # what is wrong before training is so for all
    # A learner that has ended has said why, or its launcher does.
    causes = (error, error.__cause__)
    is_touched = any(isinstance(each, TeamError) for each in causes)
    if not is_touched or (is_first and not team.find_failed(0.0)[0]):
        name = "" if is_first else f"learner {team.ranks.rank}: "
        tell_error(f"{name}{error}" if name else error, ["train", *arguments])


def _leave(team: Team, *, has_failed: bool) -> None:
    """Out of the group of learners; in the middle of a failure the process ends here if need be."""
    if has_failed and team.uses_nccl:
        # The launcher ends the others as soon as this process is gone, and not before; to leave the
        # group in order, this one would wait for them.
        if sys.exc_info()[0] is not None:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
    team.close()


def _report(result: TrainResult, console: Console) -> int:
    """Print the summary of the first learner; return the exit code."""
    status, stopped_by = result.status, result.stopped_by
    if status is not None:
        table = summary(status, result.run_dir, result.updates, stopped_by, result.is_cut)
        console.print(table)
    return 0 if stopped_by is None else 128 + stopped_by


def _tell_interrupted(interrupted: Interrupted, team: Team = ALONE) -> int:
    if team.ranks.is_first:
        complain(f"stopped by {interrupted.signal.name} before training began")
    return 128 + interrupted.signal
