"""Where learners find their store."""

import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest
from launched_runs import started, wait_for
from tiers import PROCESSES

from accel_rl.parallel import MachineStore, Ranks, Team, TeamError, meet_by_store
from accel_rl.parallel.meeting import STORE_VARIABLE

ONE_MACHINE = [Ranks(rank, 2, rank, 2) for rank in range(2)]
TWO_MACHINES = [Ranks(rank, 2, 0, 1) for rank in range(2)]


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (STORE_VARIABLE, "MASTER_PORT"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def meet(ranks: list[Ranks], timeout_seconds: float = 10.0) -> list[Team]:
    with ThreadPoolExecutor(len(ranks)) as threads:
        return list(threads.map(lambda each: meet_by_store(each, timeout_seconds), ranks))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@pytest.mark.parametrize("ranks", [ONE_MACHINE, TWO_MACHINES], ids=["one machine", "two"])
def test_learners_that_another_launcher_started_meet(ranks, monkeypatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    first, second = meet(ranks)
    first.share("config", 3)
    assert second.share("config") == 3
    second.post("a")
    assert first.read(waits=True) == {1: ["a"]}
    assert [first.add_steps(5), second.add_steps(7)] == [5, 12]
    # What learners of one machine say is in memory of which the network has the address alone.
    assert isinstance(first._store, MachineStore) == (ranks is ONE_MACHINE)
    first.close()
    second.close()


def test_learners_of_our_launcher_meet_in_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MachineStore()
    monkeypatch.setenv(STORE_VARIABLE, store.address)
    first, second = meet(ONE_MACHINE)
    store.set("lost/1", "null")
    assert first.is_lost(1) and not second.is_lost(0)


def test_sums_take_no_more_memory() -> None:
    first = MachineStore()
    second = MachineStore(first.address)
    messages, total = (f"/proc/self/fd/{each}" for each in first.address.split(":")[1:])
    before = os.stat(messages).st_size
    for _ in range(100):
        first.add("steps", 5)
        second.add("steps", 7)
    assert second.add("steps", 0) == 1200
    assert os.stat(messages).st_size == before and os.stat(total).st_size == 16


STOPPED_WITH_THE_LOCK = """
import os, signal, sys
from accel_rl.parallel import MachineStore
with MachineStore(sys.argv[1])._locked():
    os.kill(os.getpid(), signal.SIGSTOP)
"""


@PROCESSES
def test_learner_that_was_stopped_with_the_lock_is_named_until_it_is_killed() -> None:
    store = MachineStore(timeout_seconds=0.2)
    store.set("lost/1", "null")
    with started("-c", STOPPED_WITH_THE_LOCK, store.address) as stopped:
        process = psutil.Process(stopped.pid)
        wait_for(lambda: process.status() == psutil.STATUS_STOPPED, stopped)
        team = Team(Ranks(0, 2, 0, 2), store, 100.0)
        message = rf"stayed locked for 0.2 seconds; process {stopped.pid} holds it: .*stopped"
        for call in (
            lambda: team.add_steps(5),
            lambda: team.share("config", 3),
            lambda: team.is_lost(1),
            lambda: store.get("lost/1"),
            lambda: store.delete_key("lost/1"),
            lambda: MachineStore(store.address, 0.2),
        ):
            with pytest.raises(TeamError, match=message):
                call()
        team.close()
        stopped.kill()
        stopped.wait(60)
    team = Team(Ranks(0, 2, 0, 2), store, 100.0)
    assert team.add_steps(5) == 5 and team.is_lost(1)


def test_port_that_is_in_use_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("MASTER_PORT", str(server.getsockname()[1]))
        with pytest.raises(TeamError, match=r"learner 0 finds no store .*in use"):
            meet_by_store(ONE_MACHINE[0])


@pytest.mark.parametrize(
    "address", ["127.0.0.1:4", f"{os.getpid()}:999:1000"], ids=["port", "memory"]
)
def test_store_of_the_launcher_that_is_gone_is_one_message(address, monkeypatch) -> None:
    monkeypatch.setenv(STORE_VARIABLE, address)
    with pytest.raises(TeamError, match="learner 1 finds no store of its launcher"):
        meet_by_store(ONE_MACHINE[1])


def elsewhere(kind: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the store be where nobody listens; its address."""
    port = str(free_port())
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", port)
    if kind == "agent":
        monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    return f"127.0.0.1:{port}"


KINDS = ["agent", "another launcher"]


@pytest.mark.parametrize("kind", KINDS)
def test_store_that_is_nowhere_is_told_with_its_address(kind, monkeypatch) -> None:
    address = elsewhere(kind, monkeypatch)
    with pytest.raises(TeamError, match=f"{address} within 0.2 s"):
        meet_by_store(ONE_MACHINE[1], 0.2)


@pytest.mark.parametrize("kind", KINDS)
def test_signal_ends_the_wait_for_a_store(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere(kind, monkeypatch)
    signals = iter([signal.SIGALRM])
    connect = socket.create_connection

    def tried(*arguments: Any) -> Any:
        for _ in signals:  # at the first try
            signal.setitimer(signal.ITIMER_REAL, 0.05)
        return connect(*arguments)

    monkeypatch.setattr(socket, "create_connection", tried)
    old = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            meet_by_store(ONE_MACHINE[1], 100.0)
    finally:
        signal.signal(signal.SIGALRM, old)
