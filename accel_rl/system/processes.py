"""Functions for processes that start others: standard descriptors, search path, life pipes, forks.

Processes that are started here run with ``-P``: no module of the working directory may hide one of
the standard library. So a package that is not installed has to be named in their search path.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from pathlib import Path
from typing import Any
from weakref import WeakSet

import accel_rl

PACKAGE_PARENT = str(Path(accel_rl.__file__).parents[1])
"""the directory in which this package lies"""
_SEARCH_PATH = "PYTHONPATH"


def open_standard_descriptors() -> None:
    """Open /dev/null as standard input, output and error where these are closed.

    Otherwise the next sockets, pipes and shared memory would become descriptors 0 to 2, and
    whatever a program prints would be written into them.
    """
    descriptor = os.open(os.devnull, os.O_RDWR)
    while descriptor <= 2:
        os.set_inheritable(descriptor, True)
        descriptor = os.open(os.devnull, os.O_RDWR)
    os.close(descriptor)
    for number, (name, mode) in enumerate({"stdin": "r", "stdout": "w", "stderr": "w"}.items()):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))


def add_package_path(environment: dict[str, str]) -> None:
    """Put the package in front of the module search path that ``environment`` has."""
    path = environment.get(_SEARCH_PATH, "")
    if path.partition(os.pathsep)[0] != PACKAGE_PARENT:
        environment[_SEARCH_PATH] = os.pathsep.join(filter(None, [PACKAGE_PARENT, path]))


def forget_package_path() -> None:
    """Take the package out of the search path again, which programs started here inherit."""
    first, _, rest = os.environ.get(_SEARCH_PATH, "").partition(os.pathsep)
    if first == PACKAGE_PARENT:
        del os.environ[_SEARCH_PATH]
        if rest:
            os.environ[_SEARCH_PATH] = rest


def die_with_server(life: int, owner: int) -> None:
    """Let the kernel kill ``owner`` when the write end of the pipe ``life`` is closed.

    The ``owner`` is this process, or its process group as a negative number.
    """
    import fcntl  # not on every system

    fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(life, fcntl.F_SETOWN, owner)
    flags = fcntl.fcntl(life, fcntl.F_GETFL)
    fcntl.fcntl(life, fcntl.F_SETFL, flags | os.O_ASYNC | os.O_NONBLOCK)
    poll = select.poll()
    poll.register(life, 0)
    if poll.poll(0):  # the server was gone before the signal was asked for
        os._exit(1)


_OWNED: WeakSet[Any] = WeakSet()


def disown_in_forks(owned: Any) -> None:
    """Call ``owned.disown`` in each fork of this process, as long as ``owned`` lives.

    It lets go of what belongs to the parent, before anything else runs.
    """
    _OWNED.add(owned)


def _disown_all() -> None:
    for owned in list(_OWNED):
        owned.disown()


if hasattr(os, "register_at_fork"):  # not on every system
    os.register_at_fork(after_in_child=_disown_all)
