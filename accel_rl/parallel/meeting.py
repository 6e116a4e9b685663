"""How a learner finds the store of its run, and the secret that signs what is written there.

The secret comes from the first of these that there is:

- ``ACCEL_RL_SECRET``. Our own launcher gives its learners 32 random bytes in it, new for each run.
- the file that ``ACCEL_RL_SECRET_FILE`` names, which all machines of a run must see;
- with all learners on one machine, the user's key (`accel_rl.system.signing`).

Otherwise nothing is signed. An environment variable is readable by the same user alone
(``/proc/PID/environ``), as a descriptor would be, and a launcher of any kind can pass it on. A
learner takes ``ACCEL_RL_SECRET`` out of its environment, so that simulators do not inherit it.
"""

from __future__ import annotations

import os
import socket
import stat
import time
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from accel_rl.parallel.group import TeamError, first_line
from accel_rl.parallel.ranks import Ranks
from accel_rl.parallel.team import Team
from accel_rl.system.processes import check_threads
from accel_rl.system.signing import user_key

PREFIX = "accel_rl"
"""of all keys in the store"""
STORE_VARIABLE = "ACCEL_RL_STORE"
"""environment variable in which our own launcher says where its store is: host:port"""
SECRET_VARIABLE = "ACCEL_RL_SECRET"
"""environment variable with the secret of a run's learners"""
SECRET_FILE_VARIABLE = "ACCEL_RL_SECRET_FILE"
"""environment variable with the path of a file that holds the secret"""

_TRY_SECONDS, _PAUSE_SECONDS = 1.0, 0.1
"""for a connection to the store, and until the next try"""
_LEAST_BYTES = 32
_MOST_BYTES = 65536
_ADVICE = "make one with `openssl rand -hex 32`"


def meet_by_store(ranks: Ranks, timeout_seconds: float = 1800.0) -> Team:
    """Return this learner's team, which it can talk to through the store.

    `Team.open_group` does the rest.

    Raises:
        ValueError: The secret is too short, or others can read its file.
        TeamError: There is no store, or another learner has another secret or has not come in time.
    """
    if ranks.size == 1:
        return Team(ranks)
    is_of_this_run = {STORE_VARIABLE, SECRET_VARIABLE} <= os.environ.keys()
    secret = _find_secret(ranks)
    try:
        store = _open_store(ranks, timedelta(seconds=timeout_seconds))
    except (OSError, RuntimeError, ValueError) as error:
        raise TeamError(
            f"learner {ranks.rank} finds no store of its launcher: {first_line(error)}"
        ) from error
    team = Team(ranks, PrefixStore(PREFIX, store), timeout_seconds, secret)
    if not is_of_this_run:
        team.renew_key()
    return team


def open_loopback_store(port: int = 0, timeout: timedelta = timedelta(seconds=300)) -> TCPStore:
    """Return a new store that no other machine reaches.

    By itself torch's store listens on all interfaces, whatever its host.

    Args:
        port: Where it listens; 0 lets the kernel choose.
        timeout: Longest wait for a key.

    Raises:
        OSError: The port is in use.
        RuntimeError: The system does not allow the store's thread.
    """
    check_threads(1)
    listening = socket.create_server(("127.0.0.1", port))
    port = listening.getsockname()[1]
    descriptor = listening.detach()  # the store's from now on
    return TCPStore(
        "127.0.0.1",
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timeout,
        master_listen_fd=descriptor,
        use_libuv=False,  # which takes no descriptor in older versions of torch
    )


def _open_store(ranks: Ranks, timeout: timedelta) -> Store:
    if STORE_VARIABLE in os.environ:
        host, _, given = os.environ[STORE_VARIABLE].rpartition(":")
        return _store_of_another(host, int(given), timeout)
    has_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # which has the store
    if ranks.local_size == ranks.size and not has_agent and "MASTER_PORT" in os.environ:
        port = int(os.environ["MASTER_PORT"])
        if ranks.is_first:
            return open_loopback_store(port, timeout)
        return _store_of_another("127.0.0.1", port, timeout)
    if (has_agent or not ranks.is_first) and {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        _wait_for_listener(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout)
    # Public, but without types; the store of torchrun's agent if there is one, else of rank 0.
    store: Store = next(dist.rendezvous("env://", timeout=timeout))[0]  # type: ignore[attr-defined]
    store.set_timeout(timeout)
    return store


def _store_of_another(host: str, port: int, timeout: timedelta) -> TCPStore:
    _wait_for_listener(host, port, timeout)
    return TCPStore(host, port, is_master=False, timeout=timeout)


def _wait_for_listener(host: str, port: int, timeout: timedelta) -> None:
    """Return when somebody listens there: while torch itself waits for that, signals do nothing."""
    deadline = time.monotonic() + timeout.total_seconds()
    while True:
        try:
            socket.create_connection((host, port), _TRY_SECONDS).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"nobody has listened at {host}:{port} within "
                    f"learner_timeout_seconds={timeout.total_seconds():g} ({error}); "
                    "see whether the launcher and the first learner run"
                ) from error
        time.sleep(_PAUSE_SECONDS)


def _find_secret(ranks: Ranks) -> bytes | None:
    given = os.fsencode(os.environ.pop(SECRET_VARIABLE, ""))
    if given:
        if len(given) < _LEAST_BYTES:
            raise ValueError(
                f"{SECRET_VARIABLE} has {len(given)} characters; it must have at least "
                f"{_LEAST_BYTES}: {_ADVICE}"
            )
        return given
    if path := os.environ.get(SECRET_FILE_VARIABLE):
        return _read_secret(path)
    return user_key() if ranks.local_size == ranks.size else None


def _read_secret(path: str) -> bytes:
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077:
                raise ValueError(
                    f"{SECRET_FILE_VARIABLE}={path} must be a regular file that its owner alone "
                    f"can read; use `chmod 600 {path}`"
                )
            secret = file.read(_MOST_BYTES).strip()
    except OSError as error:
        raise ValueError(
            f"{SECRET_FILE_VARIABLE}={path} cannot be read: {error.strerror}; {_ADVICE}"
        ) from error
    if len(secret) < _LEAST_BYTES:
        raise ValueError(
            f"{SECRET_FILE_VARIABLE}={path} has {len(secret)} characters; it must have at least "
            f"{_LEAST_BYTES}: {_ADVICE}"
        )
    return secret


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would wait for a writer
