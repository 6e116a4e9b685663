"""The lock that some take before others."""

import threading
import time

from accel_rl.ga3c.queue import PriorityLock


def test_urgent_one_is_the_next_whoever_waited_before() -> None:
    lock, order = PriorityLock(), []

    def take(name: str) -> None:
        with lock.urgently() if name == "urgent" else lock.in_turn():
            order.append(name)
            if name == "urgent":
                with lock.urgently():  # again
                    pass

    threads = [threading.Thread(target=take, args=(name,)) for name in [*"abcdefgh", "urgent"]]
    with lock.in_turn():
        for thread in threads:
            thread.start()
        while not lock._num_urgent:
            time.sleep(0.001)
        time.sleep(0.05)  # so that all of them wait
        assert not order
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert order[0] == "urgent" and sorted(order[1:]) == [*"abcdefgh"]
