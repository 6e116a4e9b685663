"""Ctrl-C, lost workers and other threads at awkward moments: no step is lost, wrong or waited for.

Games have three steps, so that an observation tells how many steps its environment has taken.
"""

import contextlib
import errno
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from interrupts import codes, interrupted
from sampler_cases import await_ends, zeros
from tiers import PROCESSES, slow
from toy_envs import FaultyEnv, ScriptedEnv, ToyEnv

from accel_rl.envs.base import StepResult
from accel_rl.samplers import (
    ParallelSampler,
    PolicyInput,
    SamplerConfig,
    SamplerError,
    SerialSampler,
    WorkerError,
    WorkerPool,
)
from accel_rl.samplers.boundary import Boundary, EpisodeTracker
from accel_rl.samplers.layout import assign_columns
from accel_rl.samplers.orders import Orders
from accel_rl.samplers.process import WorkerProcess
from accel_rl.samplers.sampler import RolloutSampler
from accel_rl.samplers.workers import Workers
from accel_rl.vector import VectorEnv

pytestmark = PROCESSES

T, B = 4, 4
GAMES = partial(ScriptedEnv, "..t")


def num_taken(observation: np.ndarray) -> np.ndarray:
    """How many steps environments with these observations have taken, of `GAMES`."""
    taken: np.ndarray = 3 * (observation[..., 0] - 1) + observation[..., 2]
    return taken


class Play:
    """A sampler whose rollouts and episodes are checked, and another where it was closed."""

    def __init__(self, reset_policy: str, kind: Any = ParallelSampler) -> None:
        self.is_waiting = reset_policy == "wait"
        self.make = partial(kind, GAMES, num_envs=B, horizon=T, reset_policy=reset_policy)
        self.num_closed = -1
        self.begin()

    def begin(self) -> None:
        self.num_closed += 1
        self.sampler = self.make(num_workers=2)
        self.sampler.start()
        self.ended = np.zeros(B, np.int64)  # steps of episodes that ended
        self.check()

    def counted(self) -> np.ndarray:
        for episode in self.sampler.take_episodes():
            assert (episode.episode_length, episode.episode_return) == (3, 300)
            self.ended[episode.env_index] += 3
        counted: np.ndarray = self.ended + self.sampler._tracker.sums[2]
        return counted

    def check(self) -> None:
        """Collect a rollout, which goes on where the steps that were counted end."""

        def policy(step: PolicyInput) -> np.ndarray:
            assert step.t or step.is_first.tolist() == (step.observation[:, 2] == 0).tolist()
            return zeros(step)

        before = self.counted()
        rollout = self.sampler.collect(policy)
        first = rollout.observation[0]
        n = np.minimum(T, 3 - first[:, 2]) if self.is_waiting else np.full(B, T)
        assert num_taken(first).tolist() == before.tolist()
        for b in range(B):
            expected = before[b] + np.arange(n[b])
            assert num_taken(rollout.observation[: n[b], b]).tolist() == expected.tolist()
        assert rollout.valid.tolist() == (np.arange(T)[:, None] < n).tolist()
        assert self.counted().tolist() == (before + n).tolist()

    def check_on(self) -> None:
        """Check the sampler, or that it says that it is closed, and has left nothing behind."""
        try:
            self.check()
        except SamplerError as error:
            assert "was closed by an error in an earlier collect (KeyboardInterrupt)" in str(error)
            assert self.sampler._pool.is_closed and not psutil.Process().children()
            self.begin()


SEND = (WorkerPool.send, Orders.release, Orders.number_order, Orders.wake)
RECV = (WorkerPool.recv, WorkerPool._wait, WorkerPool._poll, WorkerPool._note)
MOMENTS: dict[str, tuple[Any, ...]] = {
    "_collect": (range(5, 95, 6), RolloutSampler._collect, RolloutSampler._finish),
    "send": (range(36), *SEND),
    "recv": (range(60, 90), *RECV, Workers.poll, WorkerPool._take_ready),
    "begin": (range(4), Boundary.begin_row_zero),
    "finish": (range(0, 40, 9), Boundary.finish, EpisodeTracker.update, EpisodeTracker._keep),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "reset_policy"),
    [
        ("send", "immediate"),
        slow("_collect", "wait"),
        slow("recv", "wait"),
        slow("begin", "immediate"),
        slow("finish", "wait"),
    ],
)
def test_ctrl_c_within_a_rollout_loses_no_step_or_closes(place: str, reset_policy: str) -> None:
    moments, *functions = MOMENTS[place]
    play = Play(reset_policy)
    num_interrupts = 0
    for moment in moments:
        try:
            with interrupted(codes(*functions), moment):
                play.sampler.collect(zeros)
        except KeyboardInterrupt:
            num_interrupts += 1
        play.check_on()
    play.sampler.close()
    assert num_interrupts > 0.8 * len(moments)
    assert place == "_collect" or (play.num_closed > 0) == (place == "finish")


def hit(sampler: RolloutSampler, name: str, moment: int, *functions: Callable[..., Any]) -> None:
    """Let Ctrl-C come within the next call of a method."""
    method = getattr(sampler, name)

    def interrupted_method(*arguments: Any, **options: Any) -> Any:
        setattr(sampler, name, method)
        with interrupted(codes(*functions), moment):
            return method(*arguments, **options)

    setattr(sampler, name, interrupted_method)


@pytest.mark.slow
def test_ctrl_c_within_the_order_to_reset_leaves_no_environment_waiting() -> None:
    play = Play("wait")
    for moment in range(0, 32, 2):
        hit(play.sampler, "_reset_waiting", moment, RolloutSampler._reset_waiting, *SEND)
        with pytest.raises(KeyboardInterrupt):
            play.sampler.collect(zeros)
        play.check()
    play.sampler.close()


@pytest.mark.parametrize("kind", [SerialSampler, slow(ParallelSampler)])
def test_second_ctrl_c_closes_or_is_too_late(kind: Any) -> None:
    def raising(step: PolicyInput) -> np.ndarray:
        if step.t == 2:
            raise KeyboardInterrupt
        return zeros(step)

    play = Play("wait", kind)
    ends = (RolloutSampler._settle, RolloutSampler._end_early, Boundary.cut, *SEND, *RECV)
    for moment in range(1, 60, 6):
        hit(play.sampler, "_settle", moment, *ends)
        with pytest.raises(KeyboardInterrupt):
            play.sampler.collect(raising)
        play.check_on()
    play.sampler.close()
    assert play.num_closed > 3


def test_ctrl_c_that_cuts_even_the_closing_short_leaves_a_sampler_that_says_so(monkeypatch) -> None:
    def raising(*_: Any) -> np.ndarray:
        raise KeyboardInterrupt

    sampler = Play("immediate").sampler
    monkeypatch.setattr(sampler, "_settle", raising)
    with pytest.raises(KeyboardInterrupt):
        sampler.collect(raising)
    for use in (lambda: sampler.collect(zeros), sampler.get_state):
        with pytest.raises(SamplerError, match=r"closed by an error .*KeyboardInterrupt|not runn"):
            use()
        assert not psutil.Process().children()


# ---- workers that are lost -----------------------------------------------------------------------


class Fragile(FaultyEnv):
    """Games of a thousand steps; kills its worker in step ``at``, once, in environment ``mine``.

    Not before there is a file ``go``, so that what the worker did before has been received.
    """

    def __init__(self, folder: Path, mine: int, at: int, env_index: int = 0) -> None:
        fault, marker = ("kill", str(folder / "failed")) if env_index == mine else ("none", None)
        super().__init__(fault, at, marker)
        self.go = folder / "go"

    def step(self, action: int, out: Any) -> StepResult:
        if self.fault == "kill" and self.num_steps + 1 == self.at_step:
            while not self.go.exists():
                time.sleep(0.001)
        return super().step(action, out)


def fragile(folder: Path, mine: int, at: int, is_gated: bool = True) -> Callable[[int], Fragile]:
    if not is_gated:
        (folder / "go").touch()
    return lambda env_index: Fragile(folder, mine, at, env_index)


def await_end(pool: WorkerPool, folder: Path) -> None:
    """Let a `Fragile` kill the first worker."""
    (folder / "go").touch()
    await_ends([pool._workers.processes[0].pid])


def config(num_groups: int, **options: Any) -> SamplerConfig:
    settings = {"horizon": T, "num_workers": 1, "on_worker_failure": "restart", **options}
    return SamplerConfig(num_envs=2 * num_groups, num_groups=num_groups, **settings)


@pytest.fixture
def make_pool() -> Iterator[Callable[..., WorkerPool]]:
    with contextlib.ExitStack() as stack:

        def make(factory: Any, num_groups: int, **options: Any) -> WorkerPool:
            given = config(num_groups, **options)
            spec = given.rollout_spec(ToyEnv.spec)
            pool = WorkerPool(factory, spec, given, 0, [()], assign_columns(given, 1))
            stack.callback(pool.close)
            pool.start(range(num_groups), row=T)
            pool.await_start()
            assert sorted(pool.recv(limit=num_groups)) == list(range(num_groups))
            pool.arrays.rollout.action[0] = 0
            return pool

        yield make


@pytest.mark.slow
def test_groups_are_cut_when_all_have_been_received(tmp_path: Path) -> None:
    """The worker dies in the step of group 1, and has done that of group 0."""

    def policy(step: PolicyInput) -> np.ndarray:
        if step.t == 2 and step.env_slice.start == 2:
            while sampler._pool._orders.owes(0, 2):  # it is to have nothing to do for group 2
                time.sleep(0.001)
        if step.t == 2 and step.env_slice.start == 4:
            await_end(sampler._pool, tmp_path)
            raise ZeroDivisionError
        return zeros(step)

    with ParallelSampler(fragile(tmp_path, mine=2, at=3), config=config(3)) as sampler:
        with pytest.raises(ZeroDivisionError):
            sampler.collect(policy)
        rollout = sampler.collect(zeros)
        assert sampler.generation == 1
        assert rollout.observation[0, :, 2].tolist() == [0] * 6
        assert rollout.observation[T, :, 2].tolist() == [T] * 6
        lengths = {(e.env_index, e.episode_length, e.is_lost) for e in sampler.take_episodes()}
    assert lengths == {(b, 2 if b in (2, 3) else 3, True) for b in range(4)} | {
        (b, 2, True) for b in (4, 5)
    }


@pytest.mark.slow
@pytest.mark.parametrize("failure", [OSError(errno.EAGAIN, "no more"), KeyboardInterrupt()])
def test_replacement_that_cannot_be_made_closes_the_pool(make_pool, failure, tmp_path, monkeypatch):
    def failing(*_: Any, **__: Any) -> None:
        raise failure

    pool = make_pool(fragile(tmp_path, mine=2, at=1, is_gated=False), num_groups=2)
    pool.send((0, 1), (0, 0))
    monkeypatch.setattr(subprocess, "Popen", failing)
    with pytest.raises((SamplerError, KeyboardInterrupt), match=r"cannot be started|^$"):
        while True:
            pool.recv()
    assert pool.is_closed and not psutil.Process().children()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name"), [(WorkerProcess, "failure"), slow(WorkerPool, "_note_started")]
)
def test_ctrl_c_while_a_death_or_a_start_is_noted_forgets_neither(
    owner: type, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, interrupts = getattr(owner, name), [KeyboardInterrupt()]

    def interrupted_method(self: Any) -> Any:
        if interrupts and (
            name == "failure" or (self._starting and self._shared.has_started.all())
        ):
            raise interrupts.pop()
        return method(self)

    factory = fragile(tmp_path, mine=2, at=2, is_gated=False)
    with ParallelSampler(factory, config=config(2, step_timeout_seconds=100)) as sampler:
        monkeypatch.setattr(owner, name, interrupted_method)
        with pytest.raises(KeyboardInterrupt):
            sampler.collect(zeros)
        assert sampler.collect(zeros).valid.all() and sampler.generation == 1


def test_worker_that_is_lost_when_ctrl_c_cuts_its_order_short_ends_the_sampler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows any more for which row its last order was."""

    def raising(group: int) -> None:
        raise KeyboardInterrupt

    def policy(step: PolicyInput) -> np.ndarray:
        if step.t == 2:
            await_end(sampler._pool, tmp_path)
            monkeypatch.setattr(sampler._pool._orders, "number_order", raising)
        return zeros(step)

    with ParallelSampler(fragile(tmp_path, mine=2, at=2), config=config(2)) as sampler:
        with pytest.raises(KeyboardInterrupt):
            sampler.collect(policy)
        assert not psutil.Process().children()
        with pytest.raises(SamplerError, match="closed by an error in an earlier collect"):
            sampler.collect(zeros)


# ---- other threads, and time ---------------------------------------------------------------------


def test_group_that_is_being_sent_is_not_taken_for_done(make_pool, monkeypatch) -> None:
    """By a thread that receives meanwhile, and that an old signal has woken."""
    pool = make_pool(ToyEnv, num_groups=2)
    release, found = pool._orders.release, []

    def release_slowly(group: int, *order: int) -> None:
        os.eventfd_write(pool._workers.ready[group], 1)
        thread = threading.Thread(target=lambda: found.append(pool.recv((group,), timeout=0)))
        thread.start()
        thread.join()
        release(group, *order)

    monkeypatch.setattr(pool._orders, "release", release_slowly)
    for t in range(T):
        pool.arrays.rollout.action[t] = 0
        pool.send((1,), (t,))
        assert pool.recv((1,)) == [1]
        assert pool.arrays.rollout.valid[t, 2:].all()
    assert found == [[]] * T


def test_time_is_counted_as_it_should_be(make_pool, monkeypatch) -> None:
    pool = make_pool(ToyEnv, num_groups=1, on_worker_failure="raise")
    now = [time.monotonic()]

    def poll(waited: float) -> list[int]:
        now[0] += waited
        return []

    with monkeypatch.context() as patch:
        patch.setattr(pool._workers, "poll", poll)
        patch.setattr("accel_rl.samplers.pool.monotonic", lambda: now[0])
        patch.setattr(pool._orders, "is_done", lambda group: False)
        patch.setattr(pool._orders, "owes", lambda *_: True)
        pool.send((0,), (0,))
        for seconds in (0.0, 0.1, 0.25, 0.4, 1.1):
            began = now[0]
            assert pool.recv(timeout=seconds) == []
            assert now[0] - began == pytest.approx(seconds)
        now[0] += 1_000  # Ctrl-Z for longer than the step's timeout is no hang
        assert pool.recv(timeout=2.0) == []
        with pytest.raises(WorkerError, match="step_timeout_seconds=60"):
            pool.recv(timeout=100.0)


def test_vector_env_that_ctrl_c_hits_in_send_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(*_: Any) -> None:
        raise KeyboardInterrupt

    env = VectorEnv(ToyEnv, 4, num_workers=1, num_groups=2)
    env.reset()
    with monkeypatch.context() as patch:
        patch.setattr(env._pool, "send", raising)
        with pytest.raises(KeyboardInterrupt):
            env.send(np.zeros(2, int))
    with pytest.raises(SamplerError, match="closed"):
        env.send(np.zeros(2, int))
    assert not psutil.Process().children()


def test_worker_takes_orders_only_when_it_has_read_their_signals(make_pool, monkeypatch) -> None:
    """Without them, a processor that reorders stores, as ARM, may show it the orders, and their
    rows and actions later; and it forgets signals of no order.
    """
    monkeypatch.setattr("accel_rl.samplers.orders.ORDERS_STORES", False)
    pool = make_pool(ToyEnv, num_groups=2)
    arrays, wake = pool._workers.arrays, pool._workers._wake[0]
    os.eventfd_write(wake, 3)
    time.sleep(0.1)
    arrays.command[:], arrays.row[:] = 1, 0
    arrays.sequence[:] += 1  # of both groups
    for _ in range(2):
        time.sleep(0.1)
        assert (arrays.done != arrays.sequence).all()
        os.eventfd_write(wake, 1)
    while (arrays.done != arrays.sequence).any():
        time.sleep(0.01)


def test_options_reach_environments_where_a_worker_has_died_between_two_rollouts() -> None:
    options = {"num_envs": 4, "horizon": 60, "num_groups": 1, "num_workers": 2}
    with ParallelSampler("CartPole-v1", **options, on_worker_failure="restart") as sampler:
        sampler.collect(zeros)
        psutil.Process(sampler._pool._workers.processes[1].pid).kill()
        sampler.env_options = {"low": 0.19, "high": 0.2}
        rollout = sampler.collect(zeros)
        for _ in range(2):
            first = rollout.observation[1:][rollout.episode_ended]
            assert len(first) and (first >= np.float32(0.19)).all()
            psutil.Process(sampler._pool._workers.processes[0].pid).kill()
            sampler.collect(zeros)  # where it is replaced
            rollout = sampler.collect(zeros)
