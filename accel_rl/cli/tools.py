"""Commands on saved runs from the command line: arguments, messages, exit codes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from accel_rl.cli.parse import override
from accel_rl.cli.suggest import split
from accel_rl.runs.files import WriteError, explain
from accel_rl.samplers import SamplerError
from accel_rl.system.console import complain, tell_error
from accel_rl.system.functions import ExitError, place_of, refusing_exit
from accel_rl.system.lasting_console import LastingConsole
from accel_rl.system.stopping import Interrupted, StopRequest
from accel_rl.tools.compare import name_value
from accel_rl.tools.evaluate import EvaluateOptions, evaluate_run, report_table
from accel_rl.tools.export import ExportOptions, export_run
from accel_rl.tools.package import FILM, PackageOptions, package_run
from accel_rl.tools.play import PlayOptions, play
from accel_rl.tools.plot import PlotOptions, plot, scores_table
from accel_rl.tools.report import ReportOptions, report
from accel_rl.training.torch_setup import tune_malloc

OPTIONS: dict[str, Any] = {
    "evaluate": EvaluateOptions(),
    "play": PlayOptions(),
    "plot": PlotOptions(),
    "report": ReportOptions(),
    "export": ExportOptions(),
    "package": PackageOptions(),
}


def run_tool(name: str, arguments: Sequence[str]) -> int:
    """Does what ``name`` (evaluate, play, ...) says; returns the exit code as training does."""
    console = LastingConsole()
    try:
        tune_malloc()
        with StopRequest(), refusing_exit():
            _run(name, arguments, console)
    except (ValueError, SamplerError, OSError, ExitError) as error:
        choice = "choose another place by out=PATH"
        text = explain(error, choice) if isinstance(error, WriteError) else error
        place = place_of(error, libraries=False)
        tell_error(f"{text}{place}" if place else text, [name, *arguments])
        return 1
    except Interrupted as interrupted:
        complain(f"stopped by {interrupted.signal.name}; nothing was written")
        return 128 + interrupted.signal
    except Exception as error:
        place = place_of(error, libraries=False)
        if not place:
            raise
        tell_error(f"{type(error).__name__}: {error}{place}")
        return 1
    return 0


def _run(name: str, arguments: Sequence[str], console: Console) -> None:
    runs = [Path(each) for each in arguments if _names_run(each)]
    options = override(OPTIONS[name], split([each for each in arguments if not _names_run(each)]))
    if name not in ("plot", "report") and len(runs) != 1:
        raise ValueError(
            f"{name} takes one run directory, as in runs/pong-a2c-0-...; {len(runs)} are given"
        )
    if name == "plot":
        groups, without_value = plot(runs, options)
        if groups:
            console.print(scores_table(groups, options.x, console.width, options.column))
        older = [run for group in groups for run in group.left_out]
        _tell_left_out("newer runs have the same options and seed", older)
        _tell_left_out(f"there is no {name_value(options.column)} yet", without_value)
        written = [options.path]
    elif name == "report":
        written = [report(runs, options)]
    elif name == "play":
        game = play(runs[0], options, console)
        end = "cut off by the time limit" if game.is_truncated else "not over"
        end = "game over" if game.is_over else end
        how = ", greedy" if options.greedy else ""
        _tell(console, f"score {game.score:g} after {game.num_steps:,} steps, {end}{how}")
        written = [game.path]
    elif name == "export":
        written = export_run(runs[0], options)
    elif name == "package":
        package = package_run(runs[0], options)
        if package.why_no_film is not None:
            complain(f"{FILM} is left out: {package.why_no_film}")
        written = [package.path]
    else:
        console.print(report_table(evaluate_run(runs[0], options, console)))
        written = [options.out or runs[0] / "evaluation.json"]
    for path in written:
        _tell(console, f"written: {path}")


def _tell(console: Console, words: str) -> None:
    """One line as it is, which is not broken."""
    console.print(words, markup=False, highlight=False, soft_wrap=True)


def _tell_left_out(why: str, runs: Sequence[Path]) -> None:
    if runs:
        names = ", ".join(run.name for run in runs)
        complain(f"left out, since {why}: {names}")


def _names_run(argument: str) -> bool:
    is_option = "=" in argument or argument.startswith("-")
    return not is_option or os.path.isdir(argument)  # Path raises where a name is too long
