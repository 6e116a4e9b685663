"""One training run from the command line: messages, exit codes, and settings of our own process."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from rich.console import Console

from accel_rl.samplers import SamplerError
from accel_rl.training.command_line import help_text, parse_arguments, wants_help
from accel_rl.training.loop import RunError, train
from accel_rl.training.malloc import tune_malloc
from accel_rl.training.progress import summary
from accel_rl.training.stopping import Interrupted


def run(arguments: Sequence[str]) -> int:
    """Parses, trains and reports; returns the exit code. See `accel_rl.__main__.main`."""
    console = Console()
    try:
        if wants_help(arguments):
            return print_help(help_text(arguments, console.width))
        _refuse_several_learners()
        # For env=module:function. Python itself looks here for `-m` alone, not for scripts.
        sys.path.append(os.getcwd())
        config = parse_arguments(arguments)
        tune_malloc()
        result = train(config, console)
    except (ValueError, SamplerError, RunError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except Interrupted as interrupted:
        print(f"stopped by {interrupted.signal.name} before training began", file=sys.stderr)
        return 128 + interrupted.signal
    console.print(summary(result.status, result.run_dir, result.updates, result.stopped_by))
    return 0 if result.stopped_by is None else 128 + result.stopped_by


def print_help(text: str) -> int:
    """Prints ``text``, all or as much as is wanted; returns the exit code."""
    try:
        print(text, flush=True)
    except BrokenPipeError:  # `--help | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _refuse_several_learners() -> None:
    world_size = os.environ.get("WORLD_SIZE", "1")
    if world_size != "1":
        raise ValueError(
            f"WORLD_SIZE={world_size}: several learners are not supported yet; "
            "start one: torchrun --nproc-per-node=1 launch/train.py ..."
        )
