"""How learners talk through the store; several of them in one process, over a store in memory."""

import contextlib
import math
import os
import pickle
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from launched_runs import started
from tiers import PROCESSES
from torch.distributed import HashStore, PrefixStore

from accel_rl.parallel import MachineStore, Ranks, Team, TeamError, TorchGroup
from accel_rl.parallel.team import LOST


def make_teams(size: int, timeout_seconds: float = 0.2) -> tuple[list[Team], PrefixStore]:
    store = PrefixStore("run", HashStore())
    return [Team(Ranks(rank, size), store, timeout_seconds) for rank in range(size)], store


def lose(store: PrefixStore, rank: int) -> None:
    store.set(f"{LOST}/{rank}", "null")


def test_what_the_first_shares_all_have() -> None:
    (first, second), _ = make_teams(2)
    with pytest.raises(TeamError, match=r"learner 0 has not answered within 0.2 s .*share/config"):
        second.share("config")
    assert first.share("config", {"seed": 3}) == second.share("config") == {"seed": 3}


def test_pickle_in_the_store_is_not_executed(tmp_path: Path) -> None:
    class RunsCode:
        def __reduce__(self) -> tuple[object, ...]:
            return open, (str(tmp_path / "was-here"), "w")

    (_, second), store = make_teams(2)
    store.set("share/config", pickle.dumps(RunsCode()).decode("latin-1"))
    with pytest.raises(ValueError):
        second.share("config")
    assert not (tmp_path / "was-here").exists()


def test_numbers_of_numpy_are_read_as_those_of_python() -> None:
    (first, second), _ = make_teams(2)
    second.post([np.float32(0.5), np.int64(3), math.inf])
    assert first.read(waits=True) == {1: [[0.5, 3, math.inf]]}


class OnGpu(torch.Tensor):
    is_cuda = True


@pytest.mark.parametrize("given", [None, "eth0"])
def test_sockets_of_learners_of_one_machine_are_on_loopback(given, monkeypatch) -> None:
    (first, _), _ = make_teams(2)
    first.ranks = Ranks(0, 2, 0, 2)
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_DEBUG")
    for name in names:
        monkeypatch.setenv(name, given or "")
        if given is None:
            monkeypatch.delenv(name)
    found: list[str] = []

    def look(*_: object, **__: object) -> None:
        found.extend(os.environ[name] for name in names)

    monkeypatch.setattr(dist, "init_process_group", look)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(Team, "_open_shared", lambda _: None)
    monkeypatch.setattr(Team, "watch", lambda _: None)
    first.open_group(nccl=True)
    assert found == [given or "lo", given or "lo", given or "WARN"]


def test_nccl_that_cannot_begin_names_what_a_container_needs(monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("NCCL error: unhandled system error")

    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "broadcast", fail)
    with pytest.raises(TeamError, match=r"unhandled system error; in a container, .*--ipc=host"):
        TorchGroup().broadcast_(torch.zeros(1, device="meta").as_subclass(OnGpu))


def test_messages_are_read_once_and_in_order_by_rank() -> None:
    (first, second, third), _ = make_teams(3)
    third.post("c")
    second.post("a")
    second.post("b")
    assert first.read(waits=False) == {1: ["a", "b"], 2: ["c"]}
    assert first.read(waits=False) == {1: [], 2: []}


def test_waiting_for_messages_takes_one_of_each_and_names_who_is_missing() -> None:
    (first, second, third), store = make_teams(3)
    second.post("a")
    second.post("b")
    third.post("c")
    assert first.read(waits=True) == {1: ["a"], 2: ["c"]}
    with pytest.raises(TeamError, match="learner 2 has not answered within"):
        first.read(waits=True)
    lose(store, 2)
    second.post("d")
    assert first.read(waits=True) == {1: ["d"], 2: []}


def test_learners_meet_but_for_those_that_are_lost() -> None:
    (first, second, third), store = make_teams(3)
    second.reach("end", 1)
    with pytest.raises(TeamError, match="learner 2 has not answered"):
        first.meet("end")
    third.reach("end", 1)
    first.meet("end")
    second.reach("later", 1)
    lose(store, 2)
    first.meet("later")


@PROCESSES
def test_process_that_has_ended_is_waited_for_no_longer_where_no_launcher_tells() -> None:
    (first, second), _ = make_teams(2)
    with subprocess.Popen(["sleep", "100"]) as process:
        second.reach("process", 1, process.pid)
        first.watch()
        with pytest.raises(TeamError, match="learner 1 has not answered"):
            first.meet("begin")
        process.kill()
        process.wait(60)
    first.meet("end")
    second.reach("saved", 1, 500)
    assert first.wait_for_all("saved", 1) == {1: 500}
    first.close()


SECOND_OF_GROUP = """
import sys, time
from accel_rl.parallel import MachineStore, Ranks, Team
team = Team(Ranks(1, 2, 1, 2), MachineStore(sys.argv[1]), 60.0)
team.open_group()
print("ready", flush=True)
time.sleep(600)
"""


@PROCESSES
def test_learner_of_a_group_that_was_killed_is_named_at_once_where_no_launcher_tells() -> None:
    store = MachineStore()
    with (
        started("-c", SECOND_OF_GROUP, store.address) as second,
        contextlib.closing(Team(Ranks(0, 2, 0, 2), store, 100.0)) as first,
    ):
        first.open_group()
        assert second.stdout is not None and second.stdout.readline() == "ready\n"
        second.kill()
        assert first.read(waits=True) == {1: []}
        first.meet("end")
        assert first.find_failed()[0] == [1]


def test_learner_that_ended_after_it_noticed_a_failure_is_not_blamed() -> None:
    (first, second, _), store = make_teams(3)
    second.reach("failure", 1)
    lose(store, 1)
    lose(store, 2)
    assert first.find_failed()[0] == [2]


def test_steps_of_all_are_counted_together_and_a_request_is_seen_by_all() -> None:
    (first, second), _ = make_teams(2)
    assert [first.add_steps(5), second.add_steps(7), first.add_steps(0)] == [5, 12, 12]
    assert not first.is_stop_asked and not second.is_stop_asked
    first.ask_to_stop()
    second.ask_to_stop()
    first.ask_to_stop()
    assert first.is_stop_asked and second.is_stop_asked
    assert [second.add_steps(3), first.add_steps(0)] == [15, 15]
