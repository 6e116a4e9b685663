"""The command ``accel_rl``, and ``python -m accel_rl``."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from shlex import join
from shutil import get_terminal_size

# All else is imported where Ctrl-C is noted: an import may swallow a KeyboardInterrupt.
from accel_rl.system.stopping import LAUNCHER_VARIABLE, SIGNALS, noting_interrupts


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that ``arguments`` begin with; return the exit code.

    0: finished. 1: refused or failed, with one message on standard error. 130, 143, 129: stopped by
    Ctrl-C, SIGTERM or SIGHUP, results saved.
    """
    with noting_interrupts() as noted:
        try:
            return _choose(sys.argv[1:] if arguments is None else arguments)()
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
        except Exception as error:
            if noted:  # NumPy turns a Ctrl-C that comes while it loads into an ImportError
                return 128 + signal.SIGINT
            from accel_rl.system.extras import TRAINING_PACKAGES, missing_package

            if not isinstance(error, ModuleNotFoundError):
                raise
            if (error.name or "").partition(".")[0] not in TRAINING_PACKAGES:
                raise
            print(f"error: {missing_package('this command', 'train', error)}", file=sys.stderr)
            return 1


def _choose(given: Sequence[str]) -> Callable[[], int]:
    """Return the function that runs the command; it returns the exit code."""
    if LAUNCHER_VARIABLE in os.environ:  # our launcher lets signals wait until here
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    from accel_rl.system.processes import open_standard_descriptors

    open_standard_descriptors()  # before anything that stays open
    ends = getattr(signal, "SIGCHLD", None)  # Windows has none
    if ends and signal.getsignal(ends) is signal.SIG_IGN:  # of a parent: no process tells its end
        signal.signal(ends, signal.SIG_DFL)
    # OpenMP reads this when torch loads it. By default its idle threads spin for long, on cores
    # that the simulators need: on a busy machine that made training ten times slower. A spin of a
    # few microseconds still bridges the gaps between one operation and the next.
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # the bar of the summary is not in every encoding
    from accel_rl.system.console import print_text, tell_error

    command, arguments = (given[0], given[1:]) if given else ("--help", ())
    if command == "--version":
        from accel_rl import __version__

        return partial(print_text, __version__)
    from accel_rl.cli import help as texts
    from accel_rl.cli.suggest import suggest

    width = get_terminal_size().columns
    try:
        if command == "help" or texts.wants_help([command]):
            return partial(print_text, texts.main_help())
        if command not in texts.COMMANDS:
            if "=" in command or command.startswith("-"):
                raise ValueError(f"the command is missing: {join(['accel_rl', 'train', *given])}")
            raise ValueError(f"{command} is no command; {suggest(command, list(texts.COMMANDS))}")
        if texts.wants_help(arguments):
            text = texts.train_help(arguments, width) if command == "train" else ""
            return partial(print_text, text or texts.command_help(command, width))
        if command == "presets":
            return partial(print_text, texts.presets_table(width))
        if command == "completion":
            return partial(print_text, texts.completion(" ".join(arguments)))
        if command == "train":
            texts.check_names(arguments)
    except ValueError as error:
        tell_error(error)
        return lambda: 1
    return partial(_command(command), arguments)


def _command(name: str) -> Callable[[Sequence[str]], int]:
    """Import the function that runs a command."""
    if name == "train":
        from accel_rl.cli.run import run as command
    elif name == "check":
        from accel_rl.cli.check import run_check as command
    elif name == "sweep":
        from accel_rl.sweeps.command import sweep as command
    else:
        from accel_rl.cli.tools import run_tool

        command = partial(run_tool, name)
    return command


if __name__ == "__main__":
    sys.exit(main())
