"""How many of our functions one step of a vector environment enters."""

import time
from typing import Any

import numpy as np
import pytest
from frames import frames_of

from accel_rl.vector import VectorEnv


@pytest.mark.processes
def test_a_step_of_workers_that_are_quick_enters_few_functions(monkeypatch) -> None:
    env = VectorEnv("CartPole-v1", 4, num_workers=2)
    send = env._pool.send

    def send_and_wait(*given: Any) -> None:
        send(*given)
        time.sleep(0.1)  # until the workers are done

    monkeypatch.setattr(env._pool, "send", send_and_wait)
    env.reset(seed=0)
    actions = np.zeros(4, int)
    counts = [len(frames_of(lambda: env.step(actions))) for _ in range(3)]
    env.close()
    assert min(counts) <= 18
