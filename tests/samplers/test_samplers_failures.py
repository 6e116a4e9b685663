"""What happens when a worker, an environment or a policy fails, and what is left behind."""

import os
import re
import signal
import subprocess
import sys
import time
import traceback
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from sampler_cases import worker_pids, zeros
from toy_envs import FaultyEnv, ToyEnv, is_running

from accel_rl.samplers import (
    ParallelSampler,
    SamplerConfig,
    SamplerError,
    SerialSampler,
    WorkerError,
)
from accel_rl.vector import VectorEnv

T = 5


def config(**options) -> SamplerConfig:
    settings = {"num_envs": 8, "horizon": T, "num_groups": 2, "num_workers": 2}
    return SamplerConfig(**{**settings, "step_timeout_seconds": 2, **options})


@pytest.mark.parametrize(
    "fault, message",
    [
        ("raise", r"worker \d .*environment \d \(toy\) failed in step: RuntimeError: the simul"),
        ("nan", r"environment \d \(toy\) returned the raw_reward nan; it must be finite"),
        ("nan reward", r"environment \d \(toy\) returned the reward nan; it must be finite"),
        ("truncated alone", r"environment \d \(toy\) failed in step: .*truncated always with it"),
        ("ended alone", r"environment \d \(toy\) failed in step: .*episode_ended goes with"),
        ("four", r"environment \d \(toy\) failed in step: .*it returned \(.*, which is no StepRes"),
        ("kill", r"worker \d \(pid \d+, .*environments .*\) was killed by SIGKILL"),
        ("exit", r"worker \d .* ended with exit status 7"),
        (
            "sleep",
            r"step_timeout_seconds=2; .*\(a reset within a step included\): raise step_timeout",
        ),
        ("stuck", r"worker \d .* has not answered within step_timeout_seconds=2"),
    ],
)
def test_failing_worker_is_named_in_time_and_none_is_left(fault, message):
    sampler = ParallelSampler(partial(FaultyEnv, fault, at_step=3), config=config())
    sampler.start()
    started = time.monotonic()
    with pytest.raises(WorkerError, match=message):
        sampler.collect(zeros)
    assert time.monotonic() - started < 3
    assert not worker_pids()


def test_worker_that_stops_while_states_are_read_for_a_checkpoint_is_late_after_a_step_s_time():
    sampler = ParallelSampler(ToyEnv, config=config(step_timeout_seconds=0.5))
    sampler.start()
    victim = worker_pids()[0]
    os.kill(victim, signal.SIGSTOP)
    started = time.monotonic()
    with pytest.raises(WorkerError, match=rf"pid {victim}\b.*within step_timeout_seconds=0\.5"):
        sampler.get_state()
    assert time.monotonic() - started < 2
    assert not worker_pids()


def test_worker_traceback_is_kept():
    sampler = ParallelSampler(partial(FaultyEnv, "raise"), config=config())
    sampler.start()
    with pytest.raises(WorkerError) as caught:
        sampler.collect(zeros)
    assert "toy_envs.py" in caught.value.worker_traceback
    printed = "".join(traceback.format_exception(caught.value))
    assert re.search(r"In the worker:\n.*toy_envs\.py", printed, re.DOTALL)


def test_long_message_in_any_script_does_not_block_the_worker():
    sampler = ParallelSampler(partial(FaultyEnv, "verbose"), config=config())
    sampler.start()
    started = time.monotonic()
    with pytest.raises(WorkerError, match="failed in step: RuntimeError: ééé"):
        sampler.collect(zeros)
    assert time.monotonic() - started < 1.5  # before the step timeout


def test_killed_worker_is_named_within_a_second():
    with ParallelSampler(ToyEnv, config=config(final_observation_slots=T)) as sampler:
        sampler.collect(zeros)
        victim = worker_pids()[0]
        os.kill(victim, signal.SIGKILL)
        started = time.monotonic()
        with pytest.raises(WorkerError, match=f"pid {victim}.*SIGKILL"):
            sampler.collect(zeros)
        assert time.monotonic() - started < 1


@pytest.mark.parametrize("kind", [SerialSampler, ParallelSampler])
@pytest.mark.parametrize("fault, message", [("init", "no simulator here"), ("reset", "cannot")])
def test_environment_that_cannot_start_is_one_error(kind, fault, message):
    with pytest.raises((ValueError, SamplerError), match=message):
        kind(partial(FaultyEnv, fault), config=config()).start()
    assert not worker_pids()


def test_exception_of_an_environment_ends_the_run_under_restart_too():
    options = config(on_worker_failure="restart")
    with ParallelSampler(partial(FaultyEnv, "raise"), config=options) as sampler:
        with pytest.raises(WorkerError, match="the simulator broke"):
            sampler.collect(zeros)


@pytest.mark.parametrize("reset_policy", ["immediate", "wait"])
@pytest.mark.parametrize("fault", ["kill", "sleep", "stuck"])
def test_lost_worker_is_replaced_under_restart(fault, reset_policy, tmp_path):
    marker = str(tmp_path / "failed")
    options = config(on_worker_failure="restart", reset_policy=reset_policy)
    factory = partial(FaultyEnv, fault, at_step=8, marker=marker)
    with ParallelSampler(factory, config=options) as sampler:
        pids = worker_pids()
        rollouts = [sampler.collect(zeros).copy() for _ in range(3)]
        assert len(set(pids) & set(worker_pids())) == 1
        episodes = sampler.take_episodes()
    assert Path(marker).exists()
    # The fault came in the 8th step: row 2 of the second rollout.
    hit = rollouts[1]
    lost = np.flatnonzero(hit.truncated.any(axis=0))
    assert len(lost) == 4  # all environments of the worker, both groups
    assert sorted(e.env_index for e in episodes) == lost.tolist()
    assert all(e.truncated and e.length in (6, 7, 8) for e in episodes)
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


def test_worker_lost_between_rollouts_is_replaced_under_restart():
    options = config(on_worker_failure="restart", reset_policy="wait", final_observation_slots=T)
    with ParallelSampler(ToyEnv, config=options) as sampler:
        for round_ in range(6):
            sampler.collect(zeros)
            os.kill(worker_pids()[round_ % 2], signal.SIGKILL)
            time.sleep(0.05)
        rollout = sampler.collect(zeros)
        assert len(worker_pids()) == 2
        assert all(e.length <= 8 for e in sampler.take_episodes())  # none runs on over a restart
        assert rollout.valid[0].sum() >= 4


class TwiceFaultyEnv(FaultyEnv):
    """Kills its worker in a step, and then, once, its successor while that starts."""

    def __init__(self, folder: str, own: int) -> None:
        super().__init__("kill", marker=f"{folder}/first")
        second = Path(folder, "second")
        if os.getpid() != own and Path(folder, "first").exists() and not second.exists():
            second.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def test_replacement_that_is_lost_while_it_starts_is_replaced_too(tmp_path):
    factory = partial(TwiceFaultyEnv, str(tmp_path), os.getpid())
    with ParallelSampler(factory, config=config(on_worker_failure="restart")) as sampler:
        for _ in range(2):
            rollout = sampler.collect(zeros)
        assert sampler.generation == 2 and rollout.valid.all()


def test_signal_that_ended_a_worker_is_told_whatever_it_is():
    options = config(num_workers=1)
    for number, told in ((signal.SIGSEGV, "Segmentation fault"), (40, "Real-time signal 6")):
        with ParallelSampler(ToyEnv, config=options) as sampler:
            sampler.collect(zeros)
            os.kill(worker_pids()[0], number)
            with pytest.raises(WorkerError, match=rf"was ended by signal {int(number)} \({told}"):
                sampler.collect(zeros)


def test_restarts_end_at_their_limit(tmp_path):
    options = config(on_worker_failure="restart", max_worker_restarts=2)
    with ParallelSampler(partial(FaultyEnv, "kill", at_step=2), config=options) as sampler:
        with pytest.raises(WorkerError, match="max_worker_restarts=2 are used up"):
            for _ in range(10):
                sampler.collect(zeros)


@pytest.mark.parametrize("is_stuck", [False, True], ids=["waiting", "stuck in C"])
def test_killed_parent_leaves_no_worker(is_stuck, tmp_path):
    script = f"""
import sys, time, numpy as np
sys.path.insert(0, {str(Path(__file__).parents[1] / "helpers")!r})
from functools import partial
import psutil
from toy_envs import FaultyEnv
from accel_rl.samplers import ParallelSampler, SamplerConfig
options = SamplerConfig(num_envs=4, horizon=5, num_workers=2, step_timeout_seconds=60)
sampler = ParallelSampler(partial(FaultyEnv, "stuck" if {is_stuck} else "none"), config=options)
sampler.start()
print(*(p.pid for p in psutil.Process().children()), flush=True)
if {is_stuck}:
    sampler.collect(lambda step: np.zeros(len(step.observation), int))
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    time.sleep(0.5)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 2
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline, "workers outlive their parent"
        time.sleep(0.02)


def test_stopped_and_continued_sampler_goes_on():
    """Ctrl-Z for longer than the timeout is no hang."""
    script = f"""
import sys, time, numpy as np
sys.path.insert(0, {str(Path(__file__).parents[1] / "helpers")!r})
from functools import partial
from toy_envs import FaultyEnv
from accel_rl.samplers import ParallelSampler, SamplerConfig
options = SamplerConfig(num_envs=4, horizon=5, num_workers=2, step_timeout_seconds=1)
with ParallelSampler(partial(FaultyEnv, "slow"), config=options) as sampler:
    print("started", flush=True)
    for _ in range(8):
        sampler.collect(lambda step: np.zeros(len(step.observation), int))
print("done")
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGSTOP)
    time.sleep(2.5)
    os.killpg(process.pid, signal.SIGCONT)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 0 and output == "done\n"


@pytest.mark.parametrize("kind", [SerialSampler, ParallelSampler])
@pytest.mark.parametrize(
    "actions, message",
    [
        (lambda n: np.zeros(n + 1, int), r"actions of shape \(\d,\) for \d observations"),
        (lambda n: np.zeros((n, 1), int), r"actions of shape \(\d, 1\)"),
        (lambda n: np.zeros(n), "dtype float64; they must be integers"),
        (lambda n: np.full(n, 4), r"the action 4; actions must be in 0 .. 3"),
        (lambda n: np.full(n, -1), r"the action -1; actions must be in 0 .. 3"),
    ],
)
def test_wrong_actions_are_refused(kind, actions, message):
    with kind(ToyEnv, config=config()) as sampler:
        with pytest.raises(ValueError, match=message):
            sampler.collect(lambda step: actions(len(step.observation)))
    assert not worker_pids()


@pytest.mark.parametrize("kind", [SerialSampler, ParallelSampler])
def test_overflow_of_final_observations_names_the_option(kind):
    options = config(horizon=64, num_workers=1, final_observation_slots=1)
    with kind(ToyEnv, config=options) as sampler:
        with pytest.raises(SamplerError, match="final_observation_slots=1 times"):
            for _ in range(5):
                sampler.collect(zeros)


@pytest.mark.parametrize("kind", [SerialSampler, ParallelSampler])
def test_sampler_used_out_of_turn_is_an_error(kind):
    sampler = kind(ToyEnv, config=config())
    with pytest.raises(SamplerError, match="not running"):
        sampler.collect(zeros)
    sampler.start()
    with pytest.raises(SamplerError, match="started before"):
        sampler.start()
    sampler.close()
    sampler.close()
    for use in (lambda: sampler.collect(zeros), sampler.start):
        with pytest.raises(SamplerError, match="was closed; make another one"):
            use()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_envs": 9}, r"num_envs=9 does not divide into num_groups=2.*num_envs=8, num_envs=10"),
        ({"num_envs": 0}, "num_envs is 0; it must be at least 1"),
        ({"num_groups": 0}, "num_groups is 0"),
        ({"workers_per_core": 3}, r"workers_per_core is 3; it must be 1 .* or num_groups=2"),
        ({"cores_per_worker": 0}, "cores_per_worker is 0; it must be at least 1"),
        (
            {"cores_per_worker": 2, "workers_per_core": 2},
            "cores_per_worker is 2; with workers_per_core=2 it must be 1: leave one of them out",
        ),
        ({"step_timeout_seconds": 0}, "step_timeout_seconds is 0; it must be above 0"),
        ({"decorrelation_steps": -1}, "decorrelation_steps is -1; it must be at least 0"),
        ({"final_observation_slots": 0}, "final_observation_slots is 0; it must be at least 1, or"),
        ({"reset_policy": "later"}, "reset_policy is 'later'; it must be immediate or wait"),
        ({"affinity": "none"}, "affinity is 'none'; it must be auto or rotate or off"),
        ({"on_worker_failure": "ignore"}, "on_worker_failure is 'ignore'; it must be raise or res"),
    ],
)
def test_impossible_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        config(**options)


def test_more_workers_than_environments_of_a_group_are_refused():
    with pytest.raises(ValueError, match=r"num_workers is 5; with num_envs=8, .* at most 4"):
        ParallelSampler(ToyEnv, config=config(num_workers=5))


def test_cpus_that_cannot_be_had_are_refused():
    with pytest.raises(ValueError, match=r"cpus=\[4095\] names CPUs 4095, which are not available"):
        ParallelSampler(ToyEnv, config=config(), cpus=[4095])


def test_factory_that_cannot_be_pickled_is_refused():
    lock = __import__("threading").Lock()

    def factory():
        assert lock is not None
        return ToyEnv()

    with pytest.raises(ValueError, match="the environment factory cannot be sent to worker"):
        ParallelSampler(factory, config=config()).start()


def test_factory_from_the_main_script_needs_no_guard(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1] / "helpers")!r})
import numpy as np
from toy_envs import ToyEnv
from accel_rl.samplers import ParallelSampler, SamplerConfig
class Mine(ToyEnv):
    pass
with ParallelSampler(lambda: Mine(), num_envs=4, num_workers=2) as sampler:
    print(sampler.collect(lambda step: np.zeros(len(step.observation), int)).valid.sum())
"""
    )
    printed = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=60, check=True
    )
    assert printed.stdout.split() == ["20"]


class ModulesEnv(ToyEnv):
    """Observes whether torch is loaded, and the CPUs and threads it may use."""

    def reset(self, out) -> None:
        super().reset(out)
        out[:] = (
            "torch" in sys.modules,
            len(os.sched_getaffinity(0)),
            max(os.sched_getaffinity(0)),
        )


def test_worker_never_loads_torch_and_is_pinned():
    with ParallelSampler(ModulesEnv, config=config(final_observation_slots=T)) as sampler:
        first = sampler.collect(zeros).observation[0]
        assert not first[:, 0].any()
        for worker, cpus in enumerate(sampler.plan.worker_cpus):
            assert (first[[2 * worker, 4 + 2 * worker], 1] == len(cpus)).all()
            assert (first[[2 * worker, 4 + 2 * worker], 2] == max(cpus)).all()


def test_affinity_off_leaves_workers_alone():
    with ParallelSampler(ModulesEnv, config=config(affinity="off")) as sampler:
        first = sampler.collect(zeros).observation[0]
    env = VectorEnv(ModulesEnv, 2, num_workers=1, affinity="off")
    also = env.reset()[0]
    env.close()
    assert {*first[:, 1], *also[:, 1]} == {len(os.sched_getaffinity(0))}
