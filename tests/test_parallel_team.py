"""How learners talk through the store; several of them in one process, over a store in memory."""

import subprocess

import pytest
from torch.distributed import HashStore, PrefixStore

from accel_rl.parallel import Ranks, Team, TeamError
from accel_rl.parallel.team import LOST


def make_teams(size: int, timeout_seconds: float = 0.2) -> tuple[list[Team], PrefixStore]:
    store = PrefixStore("run", HashStore())
    return [Team(Ranks(rank, size), store, timeout_seconds) for rank in range(size)], store


def test_what_the_first_shares_all_have() -> None:
    (first, second), _ = make_teams(2)
    with pytest.raises(TeamError, match=r"learner 0 has not answered within 0.2 s .*share/config"):
        second.share("config")
    assert first.share("config", {"seed": 3}) == second.share("config") == {"seed": 3}


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
    store.set(f"{LOST}/2", "1")
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
    store.set(f"{LOST}/2", "1")
    first.meet("later")


def test_process_that_has_ended_is_waited_for_no_longer_where_no_launcher_tells() -> None:
    (first, second), _ = make_teams(2)
    with subprocess.Popen(["sleep", "100"]) as process:
        second.reach("process", 1, process.pid)
        first.watch()
        with pytest.raises(TeamError, match="learner 1 has not answered"):
            first.meet("begin")
        process.kill()
        process.wait(10)
    first.meet("end")
    second.reach("saved", 1, 500)
    assert first.wait_for_all("saved", 1) == {1: 500}
    first.close()


def test_steps_of_all_are_counted_together_and_a_request_is_seen_by_all() -> None:
    (first, second), _ = make_teams(2)
    assert [first.add_steps(5), second.add_steps(7), first.add_steps(0)] == [5, 12, 12]
    assert not first.is_stop_asked and not second.is_stop_asked
    first.ask_to_stop()
    second.ask_to_stop()
    first.ask_to_stop()
    assert first.is_stop_asked and second.is_stop_asked
    assert [second.add_steps(3), first.add_steps(0)] == [15, 15]
