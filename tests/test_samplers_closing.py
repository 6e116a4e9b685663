"""Samplers that are closed twice, dropped, or never came to run leave nothing behind."""

import gc
import os
import subprocess
import threading
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import numpy as np
import psutil
import pytest
from toy_envs import FaultyEnv, ToyEnv

from accel_rl.samplers import (
    ParallelSampler,
    Prediction,
    QueuedSampler,
    SamplerConfig,
    SamplerError,
    SerialSampler,
    VectorEnv,
)

CONFIG = SamplerConfig(num_envs=8, horizon=5, num_groups=2, num_workers=2)


def zeros(step) -> np.ndarray:
    return np.zeros(len(step.observation), np.int64)


def worker_pids() -> list[int]:
    return sorted(process.pid for process in psutil.Process().children())


def num_descriptors() -> int:
    gc.collect()  # of tests before
    return len(os.listdir("/proc/self/fd"))


def test_close_that_was_interrupted_can_be_called_again(monkeypatch):
    sampler = ParallelSampler(ToyEnv, CONFIG)
    sampler.start()
    before = num_descriptors()
    process = list(sampler._pool._workers.processes.values())[1]
    wait, interrupts = process._process.wait, iter([KeyboardInterrupt()])

    def interrupted_wait(timeout: float | None = None) -> int:
        for interrupt in interrupts:
            raise interrupt
        return wait(timeout)

    monkeypatch.setattr(process._process, "wait", interrupted_wait)
    with pytest.raises(KeyboardInterrupt):
        sampler.close()
    sampler.close()
    assert not worker_pids()
    assert num_descriptors() < before


def queued() -> QueuedSampler:
    sizes = {"most_agents": 2, "max_prediction_batch": 8, "training_queue_size": 99}
    return QueuedSampler(ToyEnv, replace(CONFIG, num_workers=None), gamma=0.9, **sizes)


def predict(observation, uniform) -> Prediction:
    return Prediction(np.zeros(len(uniform), int), np.zeros(len(observation), np.float32), 0)


USES = {
    "collect": (lambda: ParallelSampler(ToyEnv, CONFIG), lambda it: it.collect(zeros).observation),
    "step": (lambda: VectorEnv(ToyEnv, 8, seed=0), lambda it: it.step(np.zeros(8, int))[0]),
    "serve": (queued, lambda it: it.serve(predict)),
}


def hold_locks(sampler: object, held: threading.Event, may_go_on: threading.Event) -> None:
    with ExitStack() as stack:
        if isinstance(sampler, QueuedSampler):
            stack.enter_context(sampler._taking.urgently())
            stack.enter_context(sampler.training_queue._changed)
        held.set()
        may_go_on.wait(60)


@pytest.mark.parametrize("name", USES)
@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_fork_can_neither_use_nor_close_what_its_parent_goes_on_with(name):
    make, use = USES[name]
    samplers = make(), make()
    for sampler in samplers:
        sampler.reset() if name == "step" else sampler.start()
        use(sampler)
    rollout = (samplers[0]._pool if name == "step" else samplers[0]).rollout
    before = rollout.copy()
    held, may_go_on = threading.Event(), threading.Event()
    # In the fork its locks are held by a thread that is not there.
    thread = threading.Thread(target=hold_locks, args=(samplers[0], held, may_go_on), daemon=True)
    thread.start()
    assert held.wait(60)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with pytest.raises(SamplerError, match=rf"of process {os.getppid()}, .* is a fork; ma"):
                use(samplers[0])
            samplers[0].close()
            code = 0
        finally:
            os._exit(code)
    code = os.waitpid(pid, 0)[1]
    may_go_on.set()
    thread.join()
    assert code == 0
    np.testing.assert_array_equal(rollout.action, before.action)
    np.testing.assert_array_equal(rollout.observation, before.observation)
    found = [use(sampler) for sampler in samplers for _ in range(3)]
    if name != "serve":
        np.testing.assert_array_equal(found[2], found[5])
    for sampler in samplers:
        sampler.close()
    assert not worker_pids()


@pytest.mark.parametrize("num_collects", [0, 2])
def test_dropped_sampler_ends_its_workers(num_collects):
    before = num_descriptors()
    sampler = ParallelSampler(ToyEnv, CONFIG)
    sampler.start()
    for _ in range(num_collects):
        sampler.collect(zeros)
    assert worker_pids()
    del sampler
    assert not worker_pids()
    assert len(os.listdir("/proc/self/fd")) <= before


class ClosingEnv(FaultyEnv):
    """Fails in the reset of the third of these; counts who was closed."""

    made = closed = 0

    def __init__(self) -> None:
        type(self).made += 1
        super().__init__("reset" if self.made == 4 else "none")  # the first is the probe

    def close(self) -> None:
        type(self).closed += 1


def test_serial_sampler_that_cannot_start_closes_its_environments():
    sampler = SerialSampler(ClosingEnv, CONFIG)
    with pytest.raises(SamplerError, match=r"environment 2 .*cannot reset"):
        sampler.start()
    assert ClosingEnv.closed == ClosingEnv.made == 9
    with pytest.raises(SamplerError, match="not running"):
        sampler.collect(zeros)


def test_close_within_close_leaves_files_opened_since_alone(monkeypatch, tmp_path):
    """As by a signal handler that closes and then opens files of its own."""
    sampler = ParallelSampler(ToyEnv, CONFIG)
    sampler.start()
    process = next(iter(sampler._pool._workers.processes.values()))
    wait, files = process._process.wait, []

    def handled_wait(timeout: float | None = None) -> int:
        sampler.close()
        files.extend((tmp_path / str(i)).open("w") for i in range(30 - len(files)))
        return wait(timeout)

    monkeypatch.setattr(process._process, "wait", handled_wait)
    sampler.close()
    assert not worker_pids() and len(files) == 30
    for file in files:
        file.write("whole")
        file.close()


def test_policy_that_closes_its_sampler_gets_one_error_and_no_other_file_is_written(tmp_path):
    files = []

    def closing(step) -> np.ndarray:
        if not files:
            sampler.close()
            files.extend((tmp_path / str(i)).open("w") for i in range(30))
        return zeros(step)

    sampler = ParallelSampler(ToyEnv, CONFIG)
    sampler.start()
    with pytest.raises(SamplerError, match="this sampler was closed; make another one"):
        sampler.collect(closing)
    for file in files:
        file.close()
    assert all(path.stat().st_size == 0 for path in tmp_path.iterdir())


def test_close_from_another_thread_ends_a_rollout():
    config = replace(CONFIG, on_worker_failure="restart")
    sampler = ParallelSampler(partial(FaultyEnv, "sleep"), config)
    sampler.start()
    timer = threading.Timer(0.5, sampler.close)

    def beginning(step) -> np.ndarray:
        if timer.ident is None:
            timer.start()
        return zeros(step)

    with pytest.raises(SamplerError, match="this sampler was closed"):
        sampler.collect(beginning)
    timer.join()
    assert not worker_pids()


def test_interrupt_while_a_worker_is_started_leaves_nothing(monkeypatch):
    before = num_descriptors()
    popen, started = subprocess.Popen, []

    def interrupted(*arguments, **options):
        started.append(popen(*arguments, **options))
        if len(started) == 2:
            raise KeyboardInterrupt
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    sampler = ParallelSampler(ToyEnv, CONFIG)
    with pytest.raises(KeyboardInterrupt):
        sampler.start()
    assert started[1].wait(timeout=5) != 0
    assert not worker_pids()
    del sampler
    assert num_descriptors() == before


def test_close_by_a_handler_while_a_worker_is_started_leaves_nothing(monkeypatch):
    before = num_descriptors()
    samplers = [ParallelSampler(ToyEnv, CONFIG)]
    popen, started = subprocess.Popen, []

    def handled(*arguments, **options):
        started.append(popen(*arguments, **options))
        if len(started) == 2:
            samplers[0].close()
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", handled)
    with pytest.raises(SamplerError, match="this sampler was closed"):
        samplers[0].start()
    assert not worker_pids()
    samplers.clear()
    assert num_descriptors() == before
