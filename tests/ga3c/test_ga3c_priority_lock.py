"""The lock that some take before others."""

import threading
from time import perf_counter, sleep

from accel_rl.ga3c.queue import PriorityLock

HELD_SECONDS = 0.05


def test_urgent_one_waits_for_no_more_than_the_one_that_has_it() -> None:
    lock, is_over = PriorityLock(), threading.Event()
    holders: list[int] = []

    def go_on() -> None:
        while not is_over.is_set():
            with lock.in_turn():
                holders.append(1)
                assert len(holders) == 1
                sleep(HELD_SECONDS)
                holders.pop()

    threads = [threading.Thread(target=go_on) for _ in range(8)]
    for thread in threads:
        thread.start()
    waits = []
    for _ in range(10):
        began = perf_counter()
        with lock.urgently():
            waits.append(perf_counter() - began)
            assert not holders
            with lock.urgently():  # again
                sleep(0.001)
        sleep(HELD_SECONDS)
    is_over.set()
    for thread in threads:
        thread.join(5.0)
        assert not thread.is_alive()
    assert sorted(waits)[-2] < 2 * HELD_SECONDS, waits  # one for a moment that the machine is busy
