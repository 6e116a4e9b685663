"""The queue between predictors and trainers: nothing lost, bounded, closed for both sides."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from tiers import PROCESSES

from accel_rl.ga3c.queue import ClosableQueue, QueueClosed

Item = tuple[int, ...]  # producer, number, and as many more as make its length


@pytest.fixture
def switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def run_all(*calls: Callable[[], None]) -> list[threading.Thread]:
    threads = [threading.Thread(target=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    return threads


def join_all(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def outcome(call: Callable[[], object], to: list[object]) -> Callable[[], None]:
    """Notes in ``to`` what ``call`` returns or raises."""

    def run() -> None:
        try:
            to.append(call())
        except (QueueClosed, TimeoutError) as error:
            to.append(error)

    return run


@pytest.mark.parametrize("capacity", [1, 3, 50])
def test_many_producers_and_consumers_conserve_items_and_each_producers_order(
    capacity, switching_often
):
    queue = ClosableQueue[Item](capacity)
    num_items, batches, sizes = 200, [[] for _ in range(3)], []

    def produce(producer: int) -> None:
        for first in range(0, num_items, 4):
            items = [(producer, first + i, *range((first + i) % 3)) for i in range(4)]
            queue.put(items, 10)
            sizes.append(len(queue))

    def consume(consumer: int) -> None:
        try:
            while True:
                batches[consumer].append(queue.take(7, 10))
        except QueueClosed:
            pass

    consumers = run_all(*(lambda c=c: consume(c) for c in range(3)))
    join_all(run_all(*(lambda p=p: produce(p) for p in range(4))))
    queue.close()
    join_all(consumers)
    taken = [item for own in batches for batch in own for item in batch]
    assert sorted(item[:2] for item in taken) == [
        (producer, number) for producer in range(4) for number in range(num_items)
    ]
    assert len(queue) == 0 and max(sizes) <= capacity
    for own in batches:
        for producer in range(4):
            numbers = [item[1] for batch in own for item in batch if item[0] == producer]
            assert numbers == sorted(numbers)


def test_take_gives_as_few_items_as_have_the_length_asked_for():
    queue = ClosableQueue[Item](10)
    queue.put([(0, 0, 0), (1, 1), (2, 2, 2, 2), (3, 3)], 1)
    assert queue.take(4, 1) == [(0, 0, 0), (1, 1)]
    assert queue.take(4, 1) == [(2, 2, 2, 2)]
    assert queue.take(0, 1) == [(3, 3)]


def test_take_waits_for_the_length_asked_for():
    queue, taken = ClosableQueue[Item](10), []
    threads = run_all(outcome(lambda: queue.take(4, 10), taken))
    queue.put([(0, 0, 0)], 1)
    time.sleep(0.05)
    assert not taken
    queue.put([(1, 1)], 1)
    join_all(threads)
    assert taken == [[(0, 0, 0), (1, 1)]]


def test_full_queue_gives_what_it_has_and_takes_nothing_at_once():
    queue = ClosableQueue[Item](2)
    queue.put([(0, 0), (1, 1)], 1)
    queue.put([], 1)
    assert queue.is_full
    assert queue.take(100, 1) == [(0, 0), (1, 1)]


def test_put_waits_for_room():
    queue, put = ClosableQueue[Item](2), []
    threads = run_all(outcome(lambda: queue.put([(i, i) for i in range(5)], 10), put))
    time.sleep(0.05)
    assert len(queue) == 2 and not put
    assert [queue.take(1, 1)[0][0] for _ in range(3)] == [0, 1, 2]
    join_all(threads)
    assert put == [None]
    assert queue.take(4, 1) == [(3, 3), (4, 4)]


def test_closed_queue_gives_what_it_holds_and_takes_nothing():
    queue = ClosableQueue[Item](10)
    queue.put([(i, i) for i in range(3)], 1)
    queue.close()
    queue.close()
    with pytest.raises(QueueClosed, match="takes nothing more"):
        queue.put([(9, 9)], 1)
    assert queue.take(4, 1) == [(0, 0), (1, 1)]
    assert queue.take(4, 1) == [(2, 2)]
    with pytest.raises(QueueClosed, match=r"this queue is closed and is empty$"):
        queue.take(1, 1)


def test_closed_queue_tells_the_first_error_that_closed_it():
    queue = ClosableQueue[Item](10)
    queue.close("ValueError: wrong")
    queue.close("KeyError")
    text = r"this queue is closed, after an error \(ValueError: wrong\), and "
    with pytest.raises(QueueClosed, match=text + "takes nothing more"):
        queue.put([(9, 9)], 1)
    with pytest.raises(QueueClosed, match=text + "is empty"):
        queue.take(1, 1)


def test_waiting_threads_wake_on_close():
    full, empty, outcomes = ClosableQueue[Item](1), ClosableQueue[Item](1), []
    full.put([(0, 0)], 1)
    puts = [outcome(lambda: full.put([(1, 1)], 60), outcomes) for _ in range(3)]
    takes = [outcome(lambda: empty.take(1, 60), outcomes) for _ in range(3)]
    threads = run_all(*puts, *takes)
    time.sleep(0.05)
    full.close()
    empty.close()
    join_all(threads)
    assert [type(each) for each in outcomes] == [QueueClosed] * 6
    assert full.take(1, 1) == [(0, 0)]


def test_time_in_which_the_process_is_stopped_is_no_waiting(monkeypatch):
    """Of a slice in which it was, no more than the slice counts."""
    queue, waits = ClosableQueue[Item](1), []
    monkeypatch.setattr("accel_rl.ga3c.queue._SLICE_SECONDS", 0.5)
    monkeypatch.setattr(queue._changed, "wait_for", lambda _, seconds: waits.append(seconds))
    with pytest.raises(TimeoutError, match=r"short of 1 samples for 1\.75 s"):
        queue.take(1, 1.75)
    assert waits == [0.5, 0.5, 0.5, 0.25]


def test_waits_end_and_say_what_was_waited_for():
    queue = ClosableQueue[Item](2)
    queue.put([(0, 0)], 1)
    short = r"the training queue has been short of 20 samples for 0.05 s \(1 of 2 segments\)"
    with pytest.raises(TimeoutError, match=short):
        queue.take(20, 0.05)
    full = r"the training queue has been full for 0.05 s \(2 of 2 segments\)"
    with pytest.raises(TimeoutError, match=full):
        queue.put([(1, 1), (2, 2)], 0.05)
    assert queue.take(4, 1) == [(0, 0), (1, 1)]


@PROCESSES
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_queue_is_closed_in_a_fork_whoever_had_its_lock() -> None:
    queue: ClosableQueue[str] = ClosableQueue(2)
    queue.put(["item"], 1)
    held, may_go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with queue._changed:
            held.set()
            may_go_on.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        code = 1
        try:
            with pytest.raises(QueueClosed, match=rf"of process {os.getppid()}, .* is a fork"):
                queue.take(1, 1)
            code = 0
        finally:
            os._exit(code)
    code = os.waitpid(pid, 0)[1]
    may_go_on.set()
    thread.join()
    assert code == 0 and queue.take(1, 1) == ["item"]
