"""Runs of accel_rl in forks of a process that has loaded torch, which takes most of a short trial.

Trials that hit a run while it starts are started by a command, as people do.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

import matplotlib.figure  # noqa: F401

import accel_rl.cli.run
import accel_rl.cli.tools
import accel_rl.ga3c.run
import accel_rl.runs.tables
import accel_rl.training.train  # noqa: F401


def start(arguments: Sequence[str], environment: Mapping[str, str], output: str) -> Fork:
    """Start ``python -m accel_rl`` with these arguments, printing to the file ``output``."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["forks"])
    process = context.Process(target=_run, args=(arguments, dict(environment), output))
    process.start()
    return Fork(process)


def _run(arguments: Sequence[str], environment: Mapping[str, str], output: str) -> NoReturn:
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    file = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    from accel_rl.__main__ import main

    sys.exit(main(arguments))


class Fork:
    """The part of `subprocess.Popen` that trials use."""

    def __init__(self, process: multiprocessing.process.BaseProcess) -> None:
        self._process = process
        assert process.pid is not None
        self.pid = process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, or minus the signal that ended it; None if it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> int | None:
        self._process.join()
        return self._process.exitcode
