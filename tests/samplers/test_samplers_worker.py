"""What a worker process leaves alone: signals, what its environments start, odd search paths."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from sampler_cases import await_ends, zeros
from tiers import PROCESSES, SLOW, slow
from toy_envs import HelpedEnv, ToyEnv, start_fork, start_program, start_session

from accel_rl.samplers import (
    ParallelSampler,
    SamplerConfig,
    SamplerError,
    SerialSampler,
    WorkerError,
)

pytestmark = PROCESSES

CONFIG = SamplerConfig(num_envs=2, num_workers=1)


@pytest.mark.parametrize("start", [start_program, slow(start_fork)])
def test_environment_can_terminate_what_it_started_and_nobody_the_worker(start, tmp_path) -> None:
    with ParallelSampler(
        partial(HelpedEnv, str(tmp_path), os.getpid(), start), config=CONFIG
    ) as sampler:
        (worker,) = psutil.Process().children()
        for number in (signal.SIGTERM, signal.SIGINT):
            sampler.collect(zeros)
            time.sleep(0.05)  # so that it waits for orders
            worker.send_signal(number)
        sampler.collect(zeros)
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert len(pids) == 2 and not any(map(psutil.pid_exists, pids))


def test_signals_before_a_worker_has_loaded_python_do_not_end_it(monkeypatch) -> None:
    class Signalled(subprocess.Popen):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                self.send_signal(number)

    monkeypatch.setattr(subprocess, "Popen", Signalled)
    with ParallelSampler(ToyEnv, config=CONFIG) as sampler:
        sampler.collect(zeros)
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())


class SignalledEnv(ToyEnv):
    """Handles a signal that comes while its worker waits for orders."""

    def __init__(self, own: int) -> None:
        super().__init__()
        if os.getpid() != own:
            signal.signal(signal.SIGALRM, lambda *_: None)

    def step(self, action: int, out: Any) -> Any:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        return super().step(action, out)


def test_signal_that_an_environment_handles_is_no_failure() -> None:
    with ParallelSampler(partial(SignalledEnv, os.getpid()), config=CONFIG) as sampler:
        for _ in range(2):
            sampler.collect(zeros)
            time.sleep(0.2)


@pytest.mark.parametrize("executable", ["", None, "/bin/true"])
def test_program_without_a_python_of_its_own_is_one_error(executable: Any, monkeypatch) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    sampler = ParallelSampler(ToyEnv, config=CONFIG)
    with pytest.raises(SamplerError, match=rf"sys\.executable is {executable!r}, .*num_workers=0"):
        sampler.start()


def test_pid_of_a_worker_for_which_somebody_else_has_waited_is_left_alone(monkeypatch) -> None:
    with ParallelSampler(ToyEnv, config=CONFIG) as sampler:
        (worker,) = sampler._pool._workers.processes.values()
        os.kill(worker.pid, signal.SIGKILL)
        os.waitpid(worker.pid, 0)
        killed: list[int] = []
        for name in ("kill", "killpg"):
            monkeypatch.setattr(os, name, lambda pid, _: killed.append(pid))
        worker.kill()
        monkeypatch.undo()
    assert killed == []


class LostHelpedEnv(HelpedEnv):
    """Fails in its third step, is killed or hangs; then it cannot be closed."""

    num_steps = 0

    def __init__(self, fault: str, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.fault = fault

    def step(self, action: int, out: Any) -> Any:
        self.num_steps += 1
        if self.num_steps == 3:
            if self.fault == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault == "hangs":
                time.sleep(600)
            print("a last word")
            raise RuntimeError("the simulator broke")
        return super().step(action, out)

    def close(self) -> None:
        super().close()
        if self.num_steps:
            raise RuntimeError("and cannot be closed")


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault, start",
    [
        ("raises", start_program),
        ("killed", start_fork),
        slow("hangs", start_session),
        slow("hangs", start_fork),
        slow("killed", start_program),
    ],
)
def test_worker_that_fails_or_is_lost_leaves_no_program_and_loses_no_output(
    fault, start, tmp_path, capfd
) -> None:
    factory = partial(LostHelpedEnv, fault, str(tmp_path), os.getpid(), start)
    config = replace(CONFIG, step_timeout_seconds=0.5) if fault == "hangs" else CONFIG
    with ParallelSampler(factory, config=config) as sampler:
        with pytest.raises(WorkerError, match="broke" if fault == "raises" else None):
            sampler.collect(zeros)
    pids = [int(path.name) for path in tmp_path.iterdir()]
    assert len(pids) == 2
    await_ends(pids)
    assert fault != "raises" or "a last word" in capfd.readouterr().out


@pytest.mark.parametrize(
    "awake_seconds", [1_000.0, slow(0.0), slow(1e-4)], ids=["awake", "asleep", "both"]
)
def test_workers_that_look_for_orders_take_the_same_steps_and_need_no_signals(
    awake_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accel_rl.samplers.orders.AWAKE_SECONDS", awake_seconds)
    monkeypatch.setattr("accel_rl.samplers.workers.available_cpus", lambda: list(range(64)))
    config = SamplerConfig(num_envs=8, horizon=20, num_groups=2, num_workers=1)
    with (
        SerialSampler(ToyEnv, config=config) as serial,
        ParallelSampler(ToyEnv, config=config) as sampler,
    ):
        for _ in range(3):
            expected, rollout = serial.collect(zeros), sampler.collect(zeros)
            assert np.array_equal(expected.observation, rollout.observation)
        is_awake = sampler._pool._workers.arrays.is_awake
        while is_awake.sum() != (awake_seconds == 1_000):
            time.sleep(0.01)
        if awake_seconds == 1_000:
            monkeypatch.setattr(sampler._pool._workers, "_wake", None)
            sampler.collect(zeros)
            monkeypatch.undo()


class PathEnv(ToyEnv):
    """Its raw reward is how long PYTHONPATH is; nothing: there is none. It reads the arguments."""

    def step(self, action: int, out: Any) -> Any:
        assert sys.argv == ["program.py", "--level", "3"]
        length = len(os.environ.get("PYTHONPATH", ""))
        return super().step(action, out)._replace(raw_reward=float(length))


@pytest.mark.parametrize("path", [None, slow("/somewhere")])
def test_programs_started_by_environments_find_the_path_of_the_user(path, monkeypatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if path is not None:
        monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setattr(sys, "path", [*sys.path, Path("no string, and no obstacle")])
    monkeypatch.setattr(sys, "argv", ["program.py", "--level", "3"])
    with ParallelSampler(PathEnv, config=CONFIG) as sampler:
        raw_reward = sampler.collect(zeros).raw_reward
        assert (raw_reward == len(path or "")).all()


MAIN = """
import gymnasium
import numpy as np
from accel_rl.envs import make_env_factory
from accel_rl.samplers import ParallelSampler, SamplerConfig

class Own(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}
    def step(self, action):
        return np.zeros(2, np.float32), 3.0, False, False, {}

gymnasium.register("Own-v0", entry_point="__main__:Own")
for env in ("Own-v0", "__main__:Own", make_env_factory(lambda: Own())):
    with ParallelSampler(env, num_envs=2) as sampler:
        print(sampler.collect(lambda step: np.zeros(len(step.observation), np.int64)).raw_reward[0])
"""


@SLOW
def test_environment_of_the_main_script_goes_to_workers_without_a_guard(tmp_path) -> None:
    (tmp_path / "main.py").write_text(MAIN)
    done = subprocess.run(
        [sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "[3. 3.]\n" * 3, done.stderr
