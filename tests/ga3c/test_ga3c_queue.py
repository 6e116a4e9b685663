"""The queue between predictors and trainers: nothing lost, bounded, closed for both sides."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from queued_play import switching_often

from accel_rl.ga3c.queue import ClosableQueue, PriorityLock, QueueClosed

Item = tuple[int, ...]  # producer, number, and as many more as make its length


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(9) as threads:
        yield threads


@pytest.mark.parametrize("capacity", [1, 3, 50])
def test_many_producers_and_consumers_conserve_items_and_each_producers_order(capacity, threads):
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

    with switching_often():
        consumers = [threads.submit(consume, c) for c in range(3)]
        for producer in [threads.submit(produce, p) for p in range(4)]:
            producer.result(60)
        queue.close()
        for consumer in consumers:
            consumer.result(60)
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


def test_take_waits_for_the_length_asked_for(threads):
    queue = ClosableQueue[Item](10)
    taken = threads.submit(queue.take, 4, 10)
    queue.put([(0, 0, 0)], 1)
    time.sleep(0.05)
    assert not taken.done()
    queue.put([(1, 1)], 1)
    assert taken.result(60) == [(0, 0, 0), (1, 1)]


def test_full_queue_gives_what_it_has_and_takes_nothing_at_once():
    queue = ClosableQueue[Item](2)
    queue.put([(0, 0), (1, 1)], 1)
    queue.put([], 1)
    assert queue.is_full
    assert queue.take(100, 1) == [(0, 0), (1, 1)]


def test_put_waits_for_room(threads):
    queue = ClosableQueue[Item](2)
    put = threads.submit(queue.put, [(i, i) for i in range(5)], 10)
    time.sleep(0.05)
    assert len(queue) == 2 and not put.done()
    assert [queue.take(1, 1)[0][0] for _ in range(3)] == [0, 1, 2]
    put.result(60)
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


def test_waiting_threads_wake_on_close(threads):
    full, empty = ClosableQueue[Item](1), ClosableQueue[Item](1)
    full.put([(0, 0)], 1)
    waiting = [threads.submit(full.put, [(1, 1)], 60) for _ in range(3)]
    waiting += [threads.submit(empty.take, 1, 60) for _ in range(3)]
    time.sleep(0.05)
    full.close()
    empty.close()
    assert [type(each.exception(60)) for each in waiting] == [QueueClosed] * 6
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


def test_urgent_one_has_a_lock_next_whoever_waited_before(threads):
    lock, order = PriorityLock(), []

    def take(name: str) -> None:
        with lock.urgently() if name == "urgent" else lock.in_turn():
            order.append(name)
            if name == "urgent":
                with lock.urgently():  # again
                    pass

    with lock.in_turn():
        taken = [threads.submit(take, name) for name in [*"abcdefgh", "urgent"]]
        while not lock._num_urgent:
            time.sleep(0.001)
        time.sleep(0.05)  # so that all of them wait
        assert not order
    for each in taken:
        each.result(60)
    assert order[0] == "urgent" and sorted(order[1:]) == [*"abcdefgh"]
