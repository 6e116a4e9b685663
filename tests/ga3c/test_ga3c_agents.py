"""Agents that die, hang, raise or do not go; and the pool's order and limits."""

import os
import resource
import signal
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import psutil
import pytest
from queued_play import make_sampler, policy, predictors, serve_until, take_all
from sampler_cases import StandingClock, await_ends
from tiers import PROCESSES, SLOW, slow
from toy_envs import CloseHangs, FaultyEnv, ScriptedEnv, ToyEnv

from accel_rl.ga3c.queue import QueueClosed
from accel_rl.ga3c.sampler import QueuedSampler
from accel_rl.samplers.base import WorkerError
from accel_rl.samplers.pool import _Start

pytestmark = PROCESSES

LONG = partial(ScriptedEnv, "." * 99_999 + "t")  # games that do not end here


def pid_of(sampler: QueuedSampler, agent: int) -> int:
    return sampler._pool._workers.processes[agent].pid


def num_children() -> int:
    return len(psutil.Process().children())


def await_true(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.005)


def serve_on(sampler: QueuedSampler) -> None:
    while True:
        sampler.serve(policy)


def await_steps(sampler: QueuedSampler) -> None:
    """Wait until all agents have taken their steps, while nobody serves them."""
    pool = sampler._pool
    await_true(lambda: all(pool._orders.is_done(agent) for agent in pool.running))


def kill(sampler: QueuedSampler, agent: int = 0) -> int:
    pid = pid_of(sampler, agent)
    os.kill(pid, signal.SIGKILL)
    await_ends([pid])
    return pid


def test_failing_agent_is_named_and_ends_the_sampler():
    """Under ``restart``, too."""
    message = r"worker \d .*environment \d \(toy\) failed in step: RuntimeError: the simul"
    factory = partial(FaultyEnv, "raise", at_step=8)
    with make_sampler(factory, 1, 2, on_worker_failure="restart") as sampler:
        with pytest.raises(WorkerError, match=message) as caught:
            serve_on(sampler)
        assert "toy_envs.py" in caught.value.worker_traceback
        assert not num_children() and not sampler.is_running
        sampler.training_queue.take(1, 5)  # what was put is still there
        with pytest.raises(QueueClosed):
            while True:
                sampler.training_queue.take(1, 5)


def test_all_predictors_end_when_one_finds_a_failure():
    with make_sampler(partial(FaultyEnv, "kill", at_step=50), 2) as sampler:
        with predictors(sampler, number=4) as errors:
            await_true(lambda: not sampler.is_running)
        assert [type(error) for error in errors] == [WorkerError]


def lose_while_stepping(sampler: QueuedSampler) -> None:
    """A step that never ends, for the agent was stopped before it was sent."""
    os.kill(pid_of(sampler, 0), signal.SIGSTOP)
    await_true(lambda: psutil.Process(pid_of(sampler, 0)).status() == psutil.STATUS_STOPPED)
    until = sampler.steps + 30
    while sampler.steps < until:
        sampler.serve(policy)
    os.kill(pid_of(sampler, 0), signal.SIGKILL)


def lose_while_ready(sampler: QueuedSampler) -> None:
    await_steps(sampler)
    kill(sampler)


def lose_while_taken(sampler: QueuedSampler) -> None:
    def killing(observation, noise):
        if (observation[:, 1] == 0).any() and not is_killed:
            is_killed.append(kill(sampler))
        return policy(observation, noise)

    is_killed: list[int] = []
    await_steps(sampler)  # so that all are taken
    sampler.serve(killing)


@SLOW
@pytest.mark.parametrize("lose", [lose_while_stepping, lose_while_ready, lose_while_taken])
def test_killed_agent_is_replaced_and_its_lost_step_is_not_counted(lose):
    """Of game 1 of each environment of agent 0, all steps come, and the last bootstraps."""
    options = {"on_worker_failure": "restart", "gamma": 0.0}
    with make_sampler(LONG, 2, 2, **options) as sampler:
        segments = serve_until(sampler, 50)
        while (sampler._tracker.sums[2] < 5).any():  # one agent may have taken all steps
            segments += serve_until(sampler, sampler.steps + 10)
        pid, generation = pid_of(sampler, 0), sampler.generation
        lose(sampler)
        await_true(lambda: sampler.serve(policy) >= 0 and pid_of(sampler, 0) != pid)
        await_true(lambda: sampler.serve(policy) >= 0 and len(sampler._tracker._ended) == 2)
        episodes = sampler.take_episodes()
        while len([s for s in segments if s.observation[0, 2] == 0]) < 4 + 2:
            assert sampler.steps < 20_000
            segments += serve_until(sampler, sampler.steps + 10)
        steps = sampler.steps
        assert sampler.generation == generation + 1 and sampler.num_agents == 2
        running = sampler._segments._length.sum()
    assert sorted(e.env_index for e in episodes) == [0, 1]
    assert all(e.truncated and e.is_lost for e in episodes)
    assert steps - sum(map(len, segments)) == running
    # Agent 0's first lives: whole segments of five steps, then what was left when it was lost.
    for episode in episodes:
        end = episode.episode_length - 1
        shorter = [s for s in segments if len(s) < 5 and s.observation[-1, 2] == end]
        assert len(shorter) >= 1 or episode.episode_length % 5 == 0
    firsts = [s for s in segments if s.observation[0, 2] == 0]
    assert len(firsts) == 4 + 2


@pytest.mark.parametrize("game", ["......c", slow("." * 999 + "t")])
def test_last_segment_of_a_lost_agent_bootstraps_from_its_last_observation(game):
    """Though a final observation was kept in the same round of rows."""
    options = {"on_worker_failure": "restart", "gamma": 1.0}
    with make_sampler(partial(ScriptedEnv, game), 1, **options) as sampler:
        rollout, length = sampler.rollout, sampler._segments._length
        while length[0] != 2 or (rollout.final_step[0, 0] >= 0) != game.endswith("c"):
            sampler.serve(policy)
        await_steps(sampler)  # the third step is taken, too
        kill(sampler)
        take_all(sampler)
        asked = []

        def noting(observation, noise):
            asked.append(observation.copy())
            return policy(observation, noise)._replace(
                value=np.array([0.0] * len(noise) + [100.0] * (len(observation) - len(noise)))
            )

        while not any(len(each) == 2 for each in asked):
            sampler.serve(noting)
        segments = take_all(sampler)
    last = segments[-1]
    assert len(last) == 3 and last.return_[-1] == last.action[-1] + 100
    first_of_new, final = asked[-1]
    assert first_of_new.tolist() == [1, 0, 0]
    assert final.tolist() == [last.observation[0, 0], 0, last.observation[-1, 2] + 1]


def test_all_final_observations_of_a_round_of_rows_are_kept():
    with make_sampler(partial(ScriptedEnv, "c"), 1) as sampler:
        segments = serve_until(sampler, 20)
    assert {len(segment) for segment in segments} == {1}


def test_first_episode_of_a_replacement_is_not_reported_when_decorrelated():
    options = {"on_worker_failure": "restart", "decorrelation_steps": 30}
    with make_sampler(partial(ScriptedEnv, "." * 39 + "t"), 1, **options) as sampler:
        serve_until(sampler, 130)
        kill(sampler)
        serve_until(sampler, sampler.steps + 130)
        episodes = sampler.take_episodes()
    assert sum(e.is_lost for e in episodes) == 1
    assert all(e.episode_length == 40 for e in episodes if not e.is_lost)


@SLOW
def test_agent_killed_while_it_starts_is_replaced():
    with make_sampler(ToyEnv, 1, max_agents=2, on_worker_failure="restart") as sampler:
        sampler.set_num_agents(2)
        os.kill(pid_of(sampler, 1), signal.SIGKILL)  # an added one
        await_true(lambda: sampler.serve(policy) >= 0 and sampler.num_starting == 0)
        first = pid_of(sampler, 0)
        os.kill(first, signal.SIGKILL)
        await_true(lambda: sampler.serve(policy) >= 0 and pid_of(sampler, 0) != first)
        os.kill(pid_of(sampler, 0), signal.SIGKILL)  # the replacement of one that ran
        await_true(lambda: sampler.serve(policy) >= 0 and sampler.num_starting == 0)
        serve_until(sampler, sampler.steps + 50)  # the last segments of the lost ones, too
        seen: set[int] = set()
        while len(seen) < 2:  # one agent may have taken all steps
            segments = serve_until(sampler, sampler.steps + 10)
            seen |= {int(segment.observation[0, 0]) for segment in segments}
        assert sampler.num_agents == 2 and num_children() == 2
    assert len(seen) == 2


@pytest.mark.parametrize("number", [1, slow(3)])
def test_hanging_agent_is_found_though_others_keep_the_pool_busy(number, monkeypatch):
    stopped: list[int] = []
    clock = StandingClock(lambda: bool(stopped) and sampler._pool._orders.owes(1, 1))
    monkeypatch.setattr("accel_rl.samplers.pool.monotonic", clock)
    with make_sampler(LONG, 2, step_timeout_seconds=10) as sampler:
        clock.sampler = sampler
        with predictors(sampler, number) as errors:
            await_true(lambda: sampler.steps > 30)
            os.kill(pid_of(sampler, 1), signal.SIGSTOP)
            stopped.append(1)
            await_true(lambda: bool(errors))
    (error,) = errors
    assert "worker 1" in str(error) and "within step_timeout_seconds=10" in str(error)


@SLOW
def test_agent_that_does_not_go_is_killed():
    with make_sampler(partial(CloseHangs, os.getpid()), 2, step_timeout_seconds=100) as sampler:
        serve_until(sampler, 20)
        sampler.set_num_agents(1)
        while sampler._num_surplus:
            sampler.serve(policy)
        assert sampler.num_agents == 1 and num_children() == 2
        sampler._pool._leaving = dict.fromkeys(sampler._pool._leaving, 0.0)  # its time is over
        sampler.set_num_agents(2)  # as soon as its place is free
        await_true(lambda: sampler.serve(policy) >= 0 and sampler.num_agents == 2)
        serve_until(sampler, sampler.steps + 50)
        sampler._pool.close(0.1)


def test_agent_that_dies_on_its_way_out_is_no_failure():
    with make_sampler(LONG, 2) as sampler:
        serve_until(sampler, 20)
        sampler.set_num_agents(1)
        take = sampler._pool.recv

        def killing(limit: int, timeout: float) -> list[int]:
            agents = take(limit=limit, timeout=timeout)
            if agents and sampler._num_surplus:
                os.kill(pid_of(sampler, agents[0]), signal.SIGKILL)
            return agents

        sampler._pool.recv = killing
        await_true(lambda: sampler.serve(policy) >= 0 and num_children() == 1)
        serve_until(sampler, sampler.steps + 50)
        assert sampler.num_agents == 1
        del sampler._pool.recv


def test_agent_that_cannot_start_is_one_error():
    with pytest.raises(ValueError, match="no simulator here"):
        make_sampler(partial(FaultyEnv, "init"), 1)
    sampler = make_sampler(partial(FaultyEnv, "reset"), 1)
    with pytest.raises(WorkerError, match="cannot reset"):
        sampler.start()
    assert not num_children()


def test_agents_beyond_the_memory_are_refused(monkeypatch):
    make_sampler(LONG, 1, max_agents=4).close()
    monkeypatch.setattr("accel_rl.samplers.base.free_memory", lambda: 100_000)
    with pytest.raises(
        ValueError, match=r"of 400 environments .* GB are free; .*fewer environments"
    ):
        make_sampler(LONG, 1, max_agents=400)


def test_time_in_which_the_process_was_stopped_is_not_that_of_a_start():
    with make_sampler(LONG, 1, max_agents=2) as sampler:
        pool = sampler._pool
        pool._starting[0] = _Start(pool._now() + 20, False)
        pool._shared.has_started[0] = False
        pool._looked_at -= 100  # by Ctrl-Z, say
        pool._look()
        assert 0 in pool._starting
        pool._watched += 20
        with pytest.raises(WorkerError, match="has not started its environments within"):
            pool._look()


def test_open_files_of_an_agent_are_as_many_as_allowed_for():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = len(os.listdir("/proc/self/fd"))
    with make_sampler(LONG, 2):
        assert (len(os.listdir("/proc/self/fd")) - before) <= 2 * 8 + 10
    assert len(os.listdir("/proc/self/fd")) == before
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)
