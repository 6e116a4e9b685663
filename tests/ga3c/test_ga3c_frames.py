"""How many functions of accel_rl a round of a predictor, and a take of a trainer, go through."""

import time
from functools import partial

import numpy as np
from frames import frames_of
from queued_play import make_sampler, policy
from tiers import PROCESSES
from toy_envs import ScriptedEnv

from accel_rl.ga3c.queue import ClosableQueue
from accel_rl.ga3c.segments import Segment


@PROCESSES
def test_predictor_serves_two_agents_in_few_functions() -> None:
    rounds = []
    with make_sampler(partial(ScriptedEnv, "." * 99_999 + "t"), 2) as sampler:
        for _ in range(50):
            pool = sampler._pool
            while not all(pool._orders.is_done(agent) for agent in range(2)):
                time.sleep(0.001)
            rounds.append(frames_of(lambda: sampler.serve(policy)))
        assert sampler.queue_times.batches == 50 and sampler.steps == 2 * 49
    # In one of five rounds segments end, and now and then the pool looks after its workers.
    assert np.median([len(entered) for entered in rounds]) <= 48


def test_trainer_takes_a_batch_in_few_functions() -> None:
    field = np.zeros(5, np.float32)
    queue = ClosableQueue[Segment](10)
    queue.put([Segment(field, field, field, field, field)] * 4, 1)
    assert len(frames_of(lambda: queue.take(20, 1))) <= 3
