"""Samplers that are closed twice, dropped, or never came to run leave nothing behind."""

import errno
import gc
import os
import signal
import subprocess
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from sampler_cases import worker_pids, zeros
from tiers import PROCESSES, slow
from toy_envs import CloseHangs, FaultyEnv, ToyEnv

from accel_rl.ga3c.queue import QueueClosed
from accel_rl.ga3c.sampler import Prediction, QueuedSampler
from accel_rl.samplers import (
    ParallelSampler,
    SamplerConfig,
    SamplerError,
    SerialSampler,
    pool,
    process,
)
from accel_rl.vector import VectorEnv

pytestmark = PROCESSES

CONFIG = SamplerConfig(num_envs=8, horizon=5, num_groups=2, num_workers=2)
ONE = replace(CONFIG, num_workers=1)


def start(config: SamplerConfig = ONE, factory=ToyEnv) -> ParallelSampler:
    sampler = ParallelSampler(factory, config=config)
    sampler.start()
    return sampler


def num_descriptors() -> int:
    gc.collect()  # of tests before
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.slow
def test_close_that_was_interrupted_can_be_called_again(monkeypatch):
    sampler = start(CONFIG)
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
    sizes = {"max_agents": 2, "max_prediction_batch": 8, "training_queue_size": 99}
    return QueuedSampler(ToyEnv, replace(CONFIG, num_workers=None), gamma=0.9, **sizes)


def predict(observation, noise) -> Prediction:
    return Prediction(np.zeros(len(noise), int), np.zeros(len(observation), np.float32), 0)


USES = {
    "collect": (
        lambda: ParallelSampler(ToyEnv, config=ONE),
        lambda it: it.collect(zeros).observation,
    ),
    "get_state": (
        lambda: ParallelSampler(ToyEnv, config=ONE),
        lambda it: it.get_state().observation,
    ),
    "serial": (lambda: SerialSampler(ToyEnv, config=ONE), lambda it: it.collect(zeros).observation),
    "step": (
        lambda: VectorEnv(ToyEnv, 8, seed=0, num_workers=1),
        lambda it: it.step(np.zeros(8, int))[0],
    ),
    "serve": (queued, lambda it: it.serve(predict)),
}


def hold_locks(sampler: object, held: threading.Event, may_go_on: threading.Event) -> None:
    with ExitStack() as stack:
        if isinstance(sampler, QueuedSampler):
            stack.enter_context(sampler._taking.urgently())
            stack.enter_context(sampler.training_queue._changed)
        held.set()
        may_go_on.wait(60)


@pytest.mark.parametrize("name", ["collect", *(slow(name) for name in USES if name != "collect")])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_fork_can_neither_use_nor_close_what_its_parent_goes_on_with(name):
    make, use = USES[name]
    samplers = make(), make()
    for sampler in samplers:
        sampler.reset() if name == "step" else sampler.start()
        use(sampler)
    rollout = (samplers[0]._pool.arrays if name == "step" else samplers[0]).rollout
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
            if isinstance(samplers[0], QueuedSampler):
                with pytest.raises(QueueClosed, match=rf"of process {os.getppid()}, .* is a fork"):
                    samplers[0].training_queue.take(1, 1)
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


@pytest.mark.slow
def test_dropped_sampler_ends_its_workers():
    before = num_descriptors()
    for num_collects in (0, 2):
        sampler = start()
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
    sampler = SerialSampler(ClosingEnv, config=CONFIG)
    with pytest.raises(SamplerError, match=r"environment 2 .*cannot reset"):
        sampler.start()
    assert ClosingEnv.closed == ClosingEnv.made == 9
    with pytest.raises(SamplerError, match="was closed; make another one"):
        sampler.collect(zeros)


@pytest.mark.slow
def test_close_from_another_thread_ends_a_rollout(tmp_path):
    config, marker = replace(ONE, on_worker_failure="restart"), tmp_path / "sleeps"
    sampler = start(config, partial(FaultyEnv, "sleep", marker=str(marker)))
    before = num_descriptors()

    def close() -> None:
        while not marker.exists():
            time.sleep(0.001)
        sampler.close()

    thread = threading.Thread(target=close)
    thread.start()
    with pytest.raises(SamplerError, match="this sampler was closed"):
        sampler.collect(zeros)
    thread.join()
    assert not worker_pids() and num_descriptors() < before
    with pytest.raises(SamplerError, match="this sampler was closed; make another one"):
        sampler.collect(zeros)


@pytest.mark.parametrize("place", [slow("monotonic"), "eventfd_read", slow("policy")])
def test_close_by_a_handler_leaves_pipes_opened_since_alone(place, monkeypatch):
    """In `send`, in `recv`, and by the policy: nothing is written to them or read from them."""
    sampler = start()
    sampler.collect(zeros)
    owner = os if place == "eventfd_read" else pool
    function, pipes = getattr(owner, place, zeros), []
    signals = iter([signal.SIGUSR1])

    def handled(*arguments):
        for _ in signals:
            sampler.close()
            pipes.extend(os.pipe2(os.O_NONBLOCK) for _ in range(30))
            for _, write in pipes:
                os.write(write, b"eight ch")
        return function(*arguments)

    if place != "policy":
        monkeypatch.setattr(owner, place, handled)
    with pytest.raises(SamplerError, match="this sampler was closed; make another one"):
        sampler.collect(handled if place == "policy" else zeros)
    assert len(pipes) == 30
    for read, write in pipes:
        assert os.read(read, 100) == b"eight ch"
        os.close(read)
        os.close(write)


def test_worker_that_does_not_end_when_killed_is_named_and_left(monkeypatch, caplog):
    """As one that waits for a device or a file system does."""
    sampler = start(factory=partial(CloseHangs, os.getpid()))
    processes = list(sampler._pool._workers.processes.values())
    with monkeypatch.context() as patch:
        patch.setattr(process, "KILL_SECONDS", 0.1)
        patch.setattr(process.WorkerProcess, "kill", lambda self: None)
        sampler._pool.close(0.1)
    for each in processes:
        assert each.describe() in caplog.text
        each._process.wait(60)  # its life pipe is closed


def interrupt(_: ParallelSampler) -> None:
    raise KeyboardInterrupt


def refuse(number: int, _: ParallelSampler) -> None:
    raise OSError(number, os.strerror(number))


def join_closing_thread(sampler: ParallelSampler) -> None:
    """As a signal handler that waits for a thread, which closes the sampler that is interrupted."""
    thread = threading.Thread(target=sampler.close, daemon=True)
    thread.start()
    thread.join(timeout=60)
    assert not thread.is_alive(), "the thread waits for the one that waits for it"


REMEDIES = "2 workers .*: {}; .*`ulimit -n`, `ulimit -u`.*num_workers.*num_workers=0"


@pytest.mark.slow
@pytest.mark.parametrize(
    "act, error, message",
    [
        (join_closing_thread, SamplerError, "this sampler was closed"),
        slow(ParallelSampler.close, SamplerError, "this sampler was closed"),
        slow(interrupt, KeyboardInterrupt, "^$"),
        slow(partial(refuse, errno.EAGAIN), SamplerError, REMEDIES.format("Resource temp.*")),
        slow(partial(refuse, errno.EMFILE), SamplerError, REMEDIES.format("Too many open files")),
    ],
)
def test_start_that_ends_with_its_second_worker_leaves_nothing(act, error, message, monkeypatch):
    """By a handler of a signal, or since no more can be started."""
    before = num_descriptors()
    samplers = [ParallelSampler(ToyEnv, config=CONFIG)]
    popen, started = subprocess.Popen, []

    def handled(*arguments, **options):
        if started and isinstance(act, partial):
            act(samplers[0])  # there is no second one
        started.append(popen(*arguments, **options))
        if len(started) == 2:
            act(samplers[0])
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", handled)
    with pytest.raises(error, match=message):
        samplers[0].start()
    assert [process.wait(60) is None for process in started] == [False] * len(started)
    assert not worker_pids()
    samplers.clear()
    assert num_descriptors() == before
