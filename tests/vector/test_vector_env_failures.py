"""What happens when a worker or an environment fails behind `VectorEnv` and its adapters."""

import os
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from sampler_cases import worker_pids
from toy_envs import FaultyEnv, ToyEnv

from accel_rl.samplers import SamplerError, WorkerError
from accel_rl.vector import SB3VecEnv, TorchRLEnv, VectorEnv

B = 8
ZEROS = np.zeros(B, np.int64)
Step = Callable[[], Any]


def stepped(make: Callable[[], Any]) -> tuple[VectorEnv, Step]:
    env = VectorEnv(make, B, num_workers=2, step_timeout_seconds=1)
    env.reset()
    return env, lambda: env.step(ZEROS)


def by_groups(make: Callable[[], Any]) -> tuple[VectorEnv, Step]:
    env = VectorEnv(make, B, num_workers=2, num_groups=2, step_timeout_seconds=1)
    env.reset()
    env.send(ZEROS[:4])

    def step() -> None:
        env.send(ZEROS[:4])
        env.recv()

    return env, step


def under_sb3(make: Callable[[], Any]) -> tuple[SB3VecEnv, Step]:
    options = {"num_workers": 2, "autoreset_mode": "SameStep", "step_timeout_seconds": 1}
    env = SB3VecEnv(VectorEnv(make, B, **options))
    env.reset()
    return env, lambda: env.step(ZEROS)


def under_torchrl(make: Callable[[], Any]) -> tuple[Any, Step]:
    options = {"num_workers": 2, "autoreset_mode": "Disabled", "step_timeout_seconds": 1}
    env = TorchRLEnv(VectorEnv(make, B, **options))
    state = [env.reset()]

    def step() -> None:
        _, state[0] = env.step_and_maybe_reset(state[0].set("action", torch.from_numpy(ZEROS)))

    return env, step


FACES = [stepped, by_groups, under_sb3, under_torchrl]


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise", r"worker \d .*environment \d \(toy\) failed in step: RuntimeError: the simul"),
        ("nan", r"environment \d \(toy\) returned the raw_reward nan; it must be finite"),
        ("nan reward", r"environment \d \(toy\) returned the reward nan; it must be finite"),
        ("exit", r"worker \d .* ended with exit status 7"),
        ("sleep", r"worker \d .* has not answered within step_timeout_seconds=1"),
        ("stuck", r"worker \d .* has not answered within step_timeout_seconds=1"),
    ],
)
def test_failing_worker_is_named_in_time_and_none_is_left(
    face: Any, fault: str, message: str
) -> None:
    _, step = face(partial(FaultyEnv, fault, at_step=3))
    started = time.monotonic()
    with pytest.raises(WorkerError, match=message):
        for _ in range(10):
            step()
    assert time.monotonic() - started < 2
    assert not worker_pids()
    with pytest.raises(SamplerError, match="this vector environment is closed"):
        step()


@pytest.mark.parametrize("face", FACES)
def test_killed_worker_is_named_within_a_second(face: Any) -> None:
    _, step = face(ToyEnv)
    step()
    victim = worker_pids()[0]
    os.kill(victim, signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(WorkerError, match=f"pid {victim}.*SIGKILL"):
        for _ in range(3):
            step()
    assert time.monotonic() - started < 1
    assert not worker_pids()


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    ("fault", "message"),
    [("init", "no simulator here"), ("reset", "environment . .toy. failed in")],
)
def test_environment_that_cannot_start_is_one_error(face: Any, fault: str, message: str) -> None:
    with pytest.raises((ValueError, SamplerError), match=message):
        face(partial(FaultyEnv, fault))
    assert not worker_pids()


def test_hang_in_a_reset_is_found_by_its_own_timeout() -> None:
    env = VectorEnv(partial(FaultyEnv, "sleep in reset"), 2, num_workers=1, reset_timeout_seconds=1)
    env.reset()
    started = time.monotonic()
    with pytest.raises(WorkerError, match="has not answered within reset_timeout_seconds=1"):
        env.reset()
    assert time.monotonic() - started < 2
    assert not worker_pids()


@pytest.mark.parametrize(
    ("fault", "under_sb3"),
    [("none", False), ("stuck", False), ("stuck", True)],
    ids=["waiting", "stuck in C", "stuck in C, under SB3"],
)
def test_killed_parent_leaves_no_worker(fault: str, under_sb3: bool) -> None:
    script = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parents[1] / "helpers")!r})
from functools import partial
import psutil
from toy_envs import FaultyEnv
from accel_rl import vector
factory = partial(FaultyEnv, {fault!r})
env = vector.VectorEnv(factory, 4, num_workers=2, autoreset_mode="SameStep")
if {under_sb3}:
    env = vector.SB3VecEnv(env)
env.reset()
print(*(p.pid for p in psutil.Process().children()), flush=True)
while {fault!r} == "stuck":
    env.step([0] * 4)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    workers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
    assert len(workers) == 2
    time.sleep(0.5)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert not psutil.wait_procs(workers, timeout=2)[1], "workers outlive their parent"


@pytest.mark.parametrize("num_envs", [10**8, 10**6])
def test_more_environments_than_fit_are_refused_before_anything_is_allocated(
    num_envs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accel_rl.samplers.base.free_memory", lambda: 10_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="num_envs"):
            VectorEnv("CartPole-v1", num_envs)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
