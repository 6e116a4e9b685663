"""What happens when a worker, an environment or a policy fails, and what is left behind."""

import os
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sampler_cases import KINDS, StandingClock, await_ends, worker_pids, zeros
from tiers import PROCESSES, SLOW, slow
from toy_envs import FaultyEnv, ToyEnv, is_running

from accel_rl.samplers import (
    ParallelSampler,
    SamplerConfig,
    SamplerError,
    SerialSampler,
    WorkerError,
)
from accel_rl.vector import VectorEnv

pytestmark = PROCESSES

T = 5


def config(**options) -> SamplerConfig:
    settings = {"num_envs": 8, "horizon": T, "num_groups": 2, "num_workers": 2}
    return SamplerConfig(**{**settings, "step_timeout_seconds": 100, **options})


Step = Callable[[], Any]


def collecting(kind: Any) -> Callable[..., Step]:
    def make(factory: Any, **options: Any) -> Step:
        sampler = kind(factory, config=config(num_workers=1, **options))
        sampler.start()
        return lambda: sampler.collect(zeros)

    return make


def stepping(factory: Any, **options: Any) -> Step:
    env = VectorEnv(factory, 8, num_workers=2, **options)
    env.reset()
    return lambda: env.step(np.zeros(8, int))


def by_groups(factory: Any, **options: Any) -> Step:
    env, actions = VectorEnv(factory, 8, num_workers=2, num_groups=2, **options), np.zeros(4, int)
    env.reset()
    env.send(actions)
    return lambda: (env.send(actions), env.recv())


def under_sb3(factory: Any, **options: Any) -> Step:
    from accel_rl.vector import SB3VecEnv  # loads torch, and workers load this module

    env = SB3VecEnv(VectorEnv(factory, 8, num_workers=2, autoreset_mode="SameStep", **options))
    env.reset()
    return lambda: env.step(np.zeros(8, int))


SERIAL, PARALLEL = collecting(SerialSampler), collecting(ParallelSampler)


@pytest.mark.parametrize(
    "face, fault, message",
    [
        (SERIAL, "raise", "failed in step: RuntimeError: the simul"),
        (SERIAL, "nan reward", "returned the reward nan; .*finite"),
        (SERIAL, "truncated alone", "failed in step: .*truncated"),
        (SERIAL, "ended alone", "failed in step: .*episode_ended"),
        (SERIAL, "four", "failed in step: .*StepResult"),
        (SERIAL, "no reward", "returned a reward of type NoneType; .*one number"),
        (SERIAL, "init", "no simulator here"),
        (SERIAL, "reset", "failed in reset.*cannot reset"),
        (PARALLEL, "raise", r"worker 0 .*environment \d \(toy\) failed in step: RuntimeError: the"),
        (PARALLEL, "stuck", r"worker 0 .*step_timeout_seconds=0\.5; .*raise step_timeout_seconds"),
        (by_groups, "kill", r"worker \d \(pid \d+.*SIGKILL"),
        slow(PARALLEL, "sleep", "within step_timeout_seconds=0.5"),
        slow(PARALLEL, "verbose", "failed in step: RuntimeError: ééé"),
        slow(PARALLEL, "reset", "worker 0.*cannot reset"),
        slow(stepping, "exit", r"worker \d .* ended with exit status 7"),
        slow(stepping, "init", "no simulator here"),
        slow(by_groups, "stuck", r"worker \d .*within step_timeout_seconds=0\.5"),
        slow(under_sb3, "nan", r"environment \d \(toy\) returned the raw_reward nan; .*finite"),
    ],
)
def test_failing_worker_is_named_and_none_is_left(face: Any, fault: str, message: str) -> None:
    """Nor is it forgotten: whoever goes on is told that all is closed."""
    timeout = 0.5 if fault in ("sleep", "stuck") else 100
    step: Any = None
    with pytest.raises((SamplerError, ValueError), match=message):
        step = face(partial(FaultyEnv, fault), step_timeout_seconds=timeout)
        for _ in range(10):
            step()
    assert not worker_pids()
    if step is not None:
        with pytest.raises(SamplerError, match=r"is closed|earlier collect \(\w+Err"):
            step()


def test_hang_in_a_reset_is_found_by_its_own_timeout(monkeypatch) -> None:
    factory = partial(FaultyEnv, "sleep in reset")
    env = VectorEnv(factory, 2, num_workers=1, step_timeout_seconds=1)
    env.reset()
    monkeypatch.setattr("accel_rl.samplers.base.RESET_SECONDS", 1)
    with pytest.raises(WorkerError, match=r"within 1 s \+ step_timeout_seconds=1; "):
        env.reset()
    assert not worker_pids()


def test_worker_that_stops_while_states_are_read_for_a_checkpoint_is_late_after_a_step_s_time():
    options = config(num_workers=1, step_timeout_seconds=0.5)
    sampler = ParallelSampler(ToyEnv, config=options)
    sampler.start()
    (victim,) = worker_pids()
    os.kill(victim, signal.SIGSTOP)
    with pytest.raises(WorkerError, match=rf"pid {victim}\b.*within step_timeout_seconds=0\.5"):
        sampler.get_state()
    assert not worker_pids()


def test_exception_of_an_environment_ends_the_run_under_restart_too_and_tells_where_it_was():
    options = config(num_workers=1, on_worker_failure="restart")
    with ParallelSampler(partial(FaultyEnv, "raise"), config=options) as sampler:
        with pytest.raises(WorkerError, match="the simulator broke") as caught:
            sampler.collect(zeros)
    assert "toy_envs.py" in caught.value.worker_traceback
    printed = "".join(traceback.format_exception(caught.value))
    assert re.search(r"In the worker:\n.*toy_envs\.py", printed, re.DOTALL)


@pytest.mark.parametrize(
    "number, told",
    [
        (signal.SIGKILL, "was killed by SIGKILL"),
        slow(signal.SIGSEGV, r"signal 11 \(Segmentation fault"),
        slow(40, r"signal 40 \(Real-time signal 6"),
    ],
)
def test_signal_that_ended_a_worker_is_told_whatever_it_is(number, told):
    with ParallelSampler(ToyEnv, config=config()) as sampler:
        sampler.collect(zeros)
        victim = worker_pids()[0]
        os.kill(victim, number)
        with pytest.raises(WorkerError, match=rf"pid {victim}, .*environments .*{told}"):
            sampler.collect(zeros)


@pytest.mark.parametrize(
    "fault, reset_policy, num_workers",
    [
        ("kill", "immediate", 1),
        slow("kill", "wait", 2),
        slow("sleep", "immediate", 2),
        slow("stuck", "wait", 2),
    ],
)
def test_lost_worker_is_replaced_under_restart(
    fault, reset_policy, num_workers, tmp_path, monkeypatch
):
    marker = tmp_path / "failed"
    clock = StandingClock(marker.exists)
    monkeypatch.setattr("accel_rl.samplers.pool.monotonic", clock)
    options = config(
        on_worker_failure="restart",
        reset_policy=reset_policy,
        num_workers=num_workers,
        step_timeout_seconds=2,
    )
    factory = partial(FaultyEnv, fault, at_step=8, marker=str(marker))
    with ParallelSampler(factory, config=options) as sampler:
        clock.sampler = sampler
        pids = worker_pids()
        rollouts = [sampler.collect(zeros).copy() for _ in range(3)]
        assert len(set(pids) & set(worker_pids())) == num_workers - 1
        episodes = sampler.take_episodes()
    # The fault came in the 8th step: row 2 of the second rollout.
    hit = rollouts[1]
    lost = np.flatnonzero(hit.truncated.any(axis=0))
    assert len(lost) == 8 // num_workers  # all environments of the worker, both groups
    assert sorted(e.env_index for e in episodes) == lost.tolist()
    assert all(e.truncated and e.episode_length in (6, 7, 8) for e in episodes)
    for b in lost:
        (t,) = np.flatnonzero(hit.truncated[:, b])
        assert hit.episode_ended[t, b] and hit.final_step[0, b] == t
        was_taken = hit.valid[t, b]
        assert hit.final_observation[0, b, 2] == T + t + was_taken
        assert hit.observation[t + 1, b, 2] == 0  # the replacement's first observation
        assert hit.reward[t, b] == (-1 if was_taken else 0)
    others = np.setdiff1d(np.arange(8), lost)
    assert hit.valid[:, others].all() and not hit.episode_ended[:, others].any()
    assert (rollouts[2].observation[-1, others, 2] == 3 * T).all()


class TwiceFaultyEnv(FaultyEnv):
    """Kills its worker in a step, and then, once, its successor while that starts."""

    def __init__(self, folder: str, own: int) -> None:
        super().__init__("kill", marker=f"{folder}/first")
        second = Path(folder, "second")
        if os.getpid() != own and Path(folder, "first").exists() and not second.exists():
            second.touch()
            os.kill(os.getpid(), signal.SIGKILL)


@SLOW
def test_replacement_that_is_lost_while_it_starts_is_replaced_too(tmp_path):
    factory = partial(TwiceFaultyEnv, str(tmp_path), os.getpid())
    with ParallelSampler(factory, config=config(on_worker_failure="restart")) as sampler:
        for _ in range(2):
            rollout = sampler.collect(zeros)
        assert sampler.generation == 2 and rollout.valid.all()


def test_restarts_end_at_their_limit(monkeypatch):
    monkeypatch.setattr("accel_rl.samplers.pool.MAX_RESTARTS", 1)
    options = config(num_workers=1, on_worker_failure="restart")
    with ParallelSampler(partial(FaultyEnv, "kill", at_step=2), config=options) as sampler:
        with pytest.raises(WorkerError, match="1 workers were restarted before"):
            for _ in range(10):
                sampler.collect(zeros)


HOST = """
import os, signal, sys, time
from functools import partial
import psutil
from toy_envs import FaultyEnv, HelpedEnv
from accel_rl.samplers import ParallelSampler, SamplerConfig
way, folder = sys.argv[1:]
if way == "blocks signals":
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
factory = partial(HelpedEnv, folder, os.getpid())
if way == "stuck":
    factory = partial(FaultyEnv, "stuck", marker=folder + "/stuck")
sampler = ParallelSampler(factory, config=SamplerConfig(num_envs=4, num_workers=2))
sampler.start()
pids = [process.pid for process in psutil.Process().children()]
fork = os.fork() if way == "forked" else 0
if way == "forked" and not fork:
    os.close(1)
    time.sleep(600)
print(fork, *pids, flush=True)
if way == "stopped worker":
    os.kill(pids[0], signal.SIGSTOP)
if way == "stuck":
    sampler.collect(lambda step: [0] * len(step.noise))
time.sleep(600)
"""


@SLOW
@pytest.mark.parametrize("way", ["waits", "stuck", "forked", "blocks signals", "stopped worker"])
def test_workers_and_their_programs_end_with_a_host_that_is_killed(way, tmp_path):
    command = [sys.executable, "-c", HOST, way, str(tmp_path)]
    fork = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as host:
        try:
            assert host.stdout is not None
            fork, *pids = map(int, host.stdout.readline().split())
            while way == "stuck" and not (tmp_path / "stuck").exists():
                time.sleep(0.01)
            host.kill()
            assert len(pids) == 2
            await_ends([*pids, *(int(each.name) for each in tmp_path.glob("[0-9]*"))])
            assert not fork or is_running(fork)
        finally:
            host.kill()
            if fork:
                os.kill(fork, signal.SIGKILL)


@KINDS
def test_sampler_used_out_of_turn_is_an_error(kind):
    sampler = kind(ToyEnv, config=config(num_workers=1))
    with pytest.raises(SamplerError, match=r"not running; call start"):
        sampler.collect(zeros)
    sampler.start()
    with pytest.raises(SamplerError, match="started before"):
        sampler.start()
    sampler.close()
    sampler.close()
    for use in (lambda: sampler.collect(zeros), sampler.start):
        with pytest.raises(SamplerError, match="was closed; make another one"):
            use()


class ModulesEnv(ToyEnv):
    """Observes whether torch is loaded, and the CPUs and threads it may use."""

    def reset(self, out) -> None:
        super().reset(out)
        out[:] = (
            "torch" in sys.modules,
            len(os.sched_getaffinity(0)),
            max(os.sched_getaffinity(0)),
        )


@pytest.mark.slow
def test_worker_never_loads_torch_and_is_pinned():
    with ParallelSampler(ModulesEnv, config=config()) as sampler:
        first = sampler.collect(zeros).observation[0]
        assert not first[:, 0].any()
        for worker, cpus in enumerate(sampler.plan.worker_cpus):
            assert (first[[2 * worker, 4 + 2 * worker], 1] == len(cpus)).all()
            assert (first[[2 * worker, 4 + 2 * worker], 2] == max(cpus)).all()


def test_affinity_off_leaves_workers_of_a_vector_env_alone():
    env = VectorEnv(ModulesEnv, 2, num_workers=1, affinity="off")
    assert (env.reset()[0][:, 1] == len(os.sched_getaffinity(0))).all()
    env.close()
