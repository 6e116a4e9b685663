"""A learner that is stuck in C, waiting for one that is gone, is ended."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest
import torch.distributed as dist
from launched_runs import started
from tiers import PROCESSES

from accel_rl.parallel import Ranks, Team
from accel_rl.parallel.watcher import Watcher

pytestmark = PROCESSES
STUCK = """
import ctypes, os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # before torch has threads
from accel_rl.parallel import watcher
watcher.PATIENCE_SECONDS = 0.3
watching = watcher.Watcher({3: os.pidfd_open(int(sys.argv[1]))}, lambda rank: False)
print("ready", flush=True)
ctypes.CDLL(None).sleep(600)  # as CUDA does, it lets other threads run and handles no signal
"""


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def test_learner_that_is_stuck_in_c_ends_after_one_that_was_killed(other) -> None:
    with started("-c", STUCK, str(other.pid)) as stuck:
        assert stuck.stdout is not None and stuck.stdout.readline() == "ready\n"
        os.kill(stuck.pid, signal.SIGTERM)  # which does nothing
        with pytest.raises(subprocess.TimeoutExpired):
            stuck.wait(0.2)
        other.kill()
        _, said = stuck.communicate(timeout=100)
    told = "error: learner 3 has ended, and this one waits for it\n"
    assert (stuck.returncode, said) == (1, told)


@pytest.mark.parametrize("how", ["rests before", "rests afterwards", "left"])
def test_nobody_ends_who_has_noticed_or_was_told(how, other, monkeypatch) -> None:
    ended: list[int] = []
    looked = threading.Event()
    monkeypatch.setattr(os, "_exit", ended.append)

    def has_left(rank: int) -> bool:
        looked.set()
        return how == "left" and rank == 1

    process = os.pidfd_open(other.pid)
    patience = 0.1 if how == "left" else 100.0
    monkeypatch.setattr("accel_rl.parallel.watcher.PATIENCE_SECONDS", patience)
    watcher = Watcher({1: process}, has_left)
    if how == "rests before":
        watcher.rest()
    other.kill()
    other.wait()
    if how != "rests before":
        assert looked.wait(60)
    if how == "rests afterwards":
        watcher.rest()  # which the watcher does not outlast
    else:
        time.sleep(0.3)
    watcher.rest()
    os.close(process)
    assert not ended


def test_team_watches_with_nccl_and_says_when_it_leaves(other, monkeypatch) -> None:
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(Team, "_open_shared", lambda _: None)
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr("accel_rl.parallel.watcher.PATIENCE_SECONDS", 0.1)
    store = dist.HashStore()
    team, second = (Team(Ranks(rank, 2, rank, 2), store, 5.0) for rank in range(2))
    second.reach("process", 1, other.pid)
    team.open_group(nccl=True)
    team.close()
    assert second._has_left(0)
    other.kill()
    time.sleep(0.3)
    assert not ended
