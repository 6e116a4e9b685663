"""What happens when a worker or an environment fails behind `VectorEnv` and its adapters."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from sampler_cases import worker_pids
from tiers import PROCESSES, slow
from toy_envs import FaultyEnv

from accel_rl.samplers import SamplerError, WorkerError
from accel_rl.vector import SB3VecEnv, VectorEnv

B = 8
ZEROS = np.zeros(B, np.int64)
Step = Callable[[], Any]
pytestmark = PROCESSES


def stepped(make: Callable[[], Any], **options: Any) -> Step:
    env = VectorEnv(make, B, num_workers=2, **options)
    env.reset()
    return lambda: env.step(ZEROS)


def by_groups(make: Callable[[], Any], **options: Any) -> Step:
    env = VectorEnv(make, B, num_workers=2, num_groups=2, **options)
    env.reset()
    env.send(ZEROS[:4])

    def step() -> None:
        env.send(ZEROS[:4])
        env.recv()

    return step


def under_sb3(make: Callable[[], Any], **options: Any) -> Step:
    env = SB3VecEnv(VectorEnv(make, B, num_workers=2, autoreset_mode="SameStep", **options))
    env.reset()
    return lambda: env.step(ZEROS)


@pytest.mark.parametrize(
    ("face", "fault", "message"),
    [
        (by_groups, "kill", r"worker \d \(pid \d+.*SIGKILL"),
        slow(stepped, "raise", r"worker \d .*environment \d \(toy\) failed in step: RuntimeError"),
        slow(stepped, "sleep", r"worker \d .*within step_timeout_seconds=0\.5"),
        slow(by_groups, "stuck", r"worker \d .*within step_timeout_seconds=0\.5"),
        slow(under_sb3, "nan", r"environment \d \(toy\) returned the raw_reward nan; .*finite"),
        slow(stepped, "exit", r"worker \d .* ended with exit status 7"),
        slow(stepped, "init", "no simulator here"),
        slow(stepped, "reset", "environment . .toy. failed in"),
    ],
)
def test_failing_worker_is_named_and_none_is_left(face: Any, fault: str, message: str) -> None:
    options = {"step_timeout_seconds": 0.5 if fault in ("sleep", "stuck") else 100}
    step: Any = None
    with pytest.raises((WorkerError, ValueError), match=message):
        step = face(partial(FaultyEnv, fault, at_step=3), **options)
        for _ in range(10):
            step()
    assert not worker_pids()
    if step is not None:
        with pytest.raises(SamplerError, match="this vector environment is closed"):
            step()


def test_hang_in_a_reset_is_found_by_its_own_timeout() -> None:
    factory = partial(FaultyEnv, "sleep in reset")
    env = VectorEnv(factory, 2, num_workers=1, reset_timeout_seconds=2)
    env.reset()
    with pytest.raises(WorkerError, match="has not answered within reset_timeout_seconds=2"):
        env.reset()
    assert not worker_pids()
