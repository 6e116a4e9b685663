"""Where learners find their store and their secret."""

import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from accel_rl.parallel import Ranks, Team, TeamError, meet_by_store
from accel_rl.parallel.meeting import (
    SECRET_FILE_VARIABLE,
    SECRET_VARIABLE,
    STORE_VARIABLE,
    open_loopback_store,
)

ONE_MACHINE = [Ranks(rank, 2, rank, 2) for rank in range(2)]
TWO_MACHINES = [Ranks(rank, 2, 0, 1) for rank in range(2)]


@pytest.fixture(autouse=True)
def nothing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (SECRET_VARIABLE, SECRET_FILE_VARIABLE, STORE_VARIABLE, "MASTER_PORT"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def meet(ranks: list[Ranks], timeout_seconds: float = 10.0) -> list[Team]:
    with ThreadPoolExecutor(len(ranks)) as threads:
        return list(threads.map(lambda each: meet_by_store(each, timeout_seconds), ranks))


def listening() -> set[tuple[str, int]]:
    connections = psutil.Process().net_connections("tcp")
    return {each.laddr for each in connections if each.status == psutil.CONN_LISTEN}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def test_store_of_learners_that_another_launcher_started_is_on_loopback(monkeypatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "a-name-that-nobody-knows")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    before = listening()
    first, second = meet(ONE_MACHINE)
    assert [address[0] for address in listening() - before] == ["127.0.0.1"]
    first.share("config", 3)
    assert second.share("config") == 3
    first.close()
    second.close()


def test_port_that_is_in_use_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("MASTER_PORT", str(server.getsockname()[1]))
        with pytest.raises(TeamError, match=r"learner 0 finds no store .*in use"):
            meet_by_store(ONE_MACHINE[0])


def elsewhere(kind: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the store be where nobody listens; its address."""
    address = f"127.0.0.1:{free_port()}"
    if kind == "own launcher":
        monkeypatch.setenv(STORE_VARIABLE, address)
        return address
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", address.partition(":")[2])
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    if kind == "agent":
        monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    return address


KINDS = ["own launcher", "agent", "another launcher"]


@pytest.mark.parametrize("kind", KINDS)
def test_store_that_is_nowhere_is_told_with_its_address(kind, monkeypatch) -> None:
    address = elsewhere(kind, monkeypatch)
    with pytest.raises(TeamError, match=f"{address} within learner_timeout_seconds=0.2"):
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


@pytest.fixture
def launcher_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    store = open_loopback_store()
    monkeypatch.setenv(STORE_VARIABLE, f"127.0.0.1:{store.port}")
    yield


@pytest.mark.usefixtures("launcher_store")
def test_secret_of_the_launcher_is_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each learner has it in its own environment, and simulators in none."""
    teams = []
    for ranks in TWO_MACHINES:
        monkeypatch.setenv(SECRET_VARIABLE, "s" * 64)
        teams.append(meet_by_store(ranks, 1.0))  # waits for nobody: the secret is of this run alone
        assert SECRET_VARIABLE not in os.environ
    first, second = teams
    assert first.is_signed
    first.share("config", 3)
    assert second.share("config") == 3


@pytest.mark.usefixtures("launcher_store")
@pytest.mark.parametrize("source", ["user", "file"])
def test_lasting_secret_signs(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if source == "file":
        file = tmp_path / "secret"
        file.write_text("s" * 64 + "\n")
        file.chmod(0o600)
        monkeypatch.setenv(SECRET_FILE_VARIABLE, str(file))
    first, second = meet(ONE_MACHINE if source == "user" else TWO_MACHINES)
    assert first.is_signed and second.is_signed
    second.post("a")
    assert first.read(waits=True) == {1: ["a"]}


@pytest.mark.usefixtures("launcher_store")
def test_without_a_secret_nothing_is_signed(tmp_path: Path) -> None:
    assert not any(team.is_signed for team in meet(TWO_MACHINES))
    assert not (tmp_path / "state").exists()  # a key of this machine is of no use to others


def test_short_secret_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, "s" * 31)
    with pytest.raises(ValueError, match=r"ACCEL_RL_SECRET has 31 .*openssl rand -hex 32"):
        meet_by_store(TWO_MACHINES[0])


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        ("absent", "openssl rand -hex 32"),
        ("short", "openssl rand -hex 32"),
        ("readable by others", "chmod 600"),
        ("a pipe", "regular file"),
        ("a directory", "regular file|openssl"),
    ],
)
def test_bad_file_of_the_secret_is_refused(kind, remedy, tmp_path, monkeypatch) -> None:
    file = tmp_path / "secret"
    if kind == "a pipe":
        os.mkfifo(file, 0o600)
    elif kind == "a directory":
        file.mkdir(0o700)
    elif kind != "absent":
        file.write_text("s" * (64 if kind == "readable by others" else 31) + "\n")
        file.chmod(0o644 if kind == "readable by others" else 0o600)
    monkeypatch.setenv(SECRET_FILE_VARIABLE, str(file))
    with pytest.raises(ValueError, match=f"ACCEL_RL_SECRET_FILE=.*({remedy})"):
        meet_by_store(TWO_MACHINES[0])
