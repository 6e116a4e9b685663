"""The limits of this system on processes and open files, and what to do if they are too low."""

from __future__ import annotations

import errno
import os
import sys

from accel_rl.samplers.errors import SamplerError

_WORKER_DESCRIPTORS, _GROUP_DESCRIPTORS = 6, 2  # open files of each here, at most
_SERIAL = (
    "SerialSampler (serial=true on the command line, where algo is not ga3c) or "
    "VectorEnv(num_workers=0)"
)


def shortage(error: OSError, num_workers: int) -> Exception:
    """What to say of ``error``, which came while workers, or what they need, were made."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return SamplerError(
            f"no more files can be opened ({error.strerror}); {num_workers} workers need up to "
            f"{_WORKER_DESCRIPTORS * num_workers} beside those of this program: raise "
            f"`ulimit -n`, or {_less_than(num_workers)}"
        )
    if error.errno in (errno.EAGAIN, errno.ENOMEM):
        return SamplerError(
            f"no more processes can be started ({error.strerror}) for {num_workers} workers; raise "
            f"`ulimit -u`, or the limit of processes or memory of the container, or "
            f"{_less_than(num_workers)}"
        )
    return error


def allow_open_files(num_workers: int, num_groups: int) -> None:
    """Raise this process' limit of open files to the number that the workers and groups need.

    Raises:
        SamplerError: this is not Linux.
        ValueError: it cannot be raised so far.
    """
    if sys.platform != "linux":
        raise SamplerError(
            f"parallel samplers need Linux, and this is {sys.platform}; use {_SERIAL}"
        )
    import resource  # not on every system

    own = num_workers * _WORKER_DESCRIPTORS + num_groups * _GROUP_DESCRIPTORS
    needed = own + len(os.listdir("/proc/self/fd")) + 64
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ValueError(
            f"{num_workers} workers in {num_groups} groups need {needed} open files, and "
            f"`ulimit -Hn` allows {hard}; raise `ulimit -n` to {needed}, or "
            f"{_less_than(num_workers)}"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _less_than(num_workers: int) -> str:
    if num_workers == 1:
        return f"use {_SERIAL}"
    return (
        f"use fewer workers (a smaller num_workers, with GA3C a smaller num_groups or max_agents), "
        f"or {_SERIAL}"
    )
