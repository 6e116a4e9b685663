"""``python -m accel_rl``: the same as ``launch/train.py``, from wherever accel_rl is installed.

``python -m accel_rl evaluate``, ``play``, ``plot``, ``report``, ``export``, ``package``, ``check``
and ``sweep`` are the same as the other scripts.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial

# All else is imported where Ctrl-C is noted: an import may swallow a KeyboardInterrupt.
from accel_rl.system.stopping import LAUNCHER_VARIABLE, SIGNALS, noting_interrupts

TOOLS = ("evaluate", "play", "plot", "report", "export", "package")
COMMANDS = (*TOOLS, "check", "sweep")


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains as the arguments say, or does what the first says; returns the exit code.

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
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:  # of a parent: no process tells its end
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # OpenMP reads this when torch loads it. By default its idle threads spin for long, on cores
    # that the simulators need: on a busy machine that made training ten times slower. A spin of a
    # few microseconds still bridges the gaps between one operation and the next.
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # the bar of the summary is not in every encoding
    if list(given) == ["--version"]:
        from accel_rl import __version__
        from accel_rl.system.console import print_text

        return partial(print_text, __version__)
    if given and given[0] in TOOLS:
        from accel_rl.cli.tools import run_tool

        return partial(run_tool, given[0], given[1:])
    if given and given[0] == "check":
        from accel_rl.cli.check import run_check

        return partial(run_check, given[1:])
    if given and given[0] == "sweep":
        from accel_rl.sweep.command import sweep

        return partial(sweep, given[1:])
    from difflib import get_close_matches

    is_word = bool(given) and given[0].isalpha()
    if is_word and (near := get_close_matches(given[0], COMMANDS, 1)):
        print(f"error: {given[0]} is no command; did you mean {near[0]}?", file=sys.stderr)
        return lambda: 1
    from accel_rl.cli.run import run

    return partial(run, given)


if __name__ == "__main__":
    sys.exit(main())
