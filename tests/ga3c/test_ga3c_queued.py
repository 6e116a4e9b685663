"""The queued sampler: every step in one segment, whoever serves whom and whoever comes and goes."""

import time
from collections import defaultdict
from contextlib import suppress
from functools import cache, partial
from itertools import count

import numpy as np
import psutil
import pytest
from counting_env import CountingEnv
from queued_play import (
    Step,
    expected_segments,
    make_sampler,
    policy,
    predictors,
    serve_until,
    tabular_action,
    take_all,
    value_of,
)
from tiers import PROCESSES, SLOW, slow
from toy_envs import ScriptedEnv, ToyEnv

from accel_rl.ga3c.queue import QueueClosed
from accel_rl.ga3c.sampler import QueuedSampler, check_queued
from accel_rl.samplers.base import SamplerConfig, SamplerError
from accel_rl.samplers.block import environment_seed

pytestmark = PROCESSES
SEED, T = 3, 5
COUNTING = partial(CountingEnv, truncation=0.4, life_interval=4)


@cache
def trajectory(b: int, generation: int, num_steps: int = 4000) -> list[Step]:
    """Steps of environment ``b`` in a plain loop."""
    env = COUNTING()
    env.seed(environment_seed(SEED, b, generation).spawn(1)[0])
    rng = np.random.default_rng(np.random.SeedSequence(SEED, spawn_key=(1, b, generation)))
    observation = np.zeros(3, np.int64)
    env.reset(observation)
    steps = []
    for noise in rng.random(num_steps):
        before = observation.copy()
        action = int(tabular_action(before, noise))
        result = env.step(action, observation)
        if result.episode_ended and not result.truncated:
            env.reset(observation)
        value = float(value_of(observation))
        if result.episode_ended and result.truncated:
            env.reset(observation)
        end = "t" if result.terminated else "c" if result.truncated else "."
        steps.append(Step(before.tolist(), action, result.reward, 7, end, value))
    return steps


def by_environment(segments) -> dict[int, list[list[tuple]]]:
    """Segments of each environment in the order of their steps, by the number that it tells."""
    found = defaultdict(list)
    for segment in segments:
        fields = (segment.observation, segment.action, segment.return_, segment.version)
        steps = list(zip(*(field.tolist() for field in fields), strict=True))
        found[steps[0][0][0]].append(steps)
    for own in found.values():
        own.sort(key=lambda steps: steps[0][0])
    return found


def assert_all_as_alone(segments, num_envs: int, most_generations: int, gamma: float) -> int:
    """Each environment's segments are the first of a plain loop's; how many there were."""
    alone = {
        trajectory(b, generation)[0][0][0]: trajectory(b, generation)
        for b in range(num_envs)
        for generation in range(most_generations)
    }
    found = by_environment(segments)
    for identity, own in found.items():
        *before, last = alone[identity][: sum(map(len, own))]
        last = last._replace(end=last.end.replace(".", "c"))  # of one that left
        assert own == expected_segments([*before, last], T, gamma, limit_ends=False)
    return len(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    "num_agents, envs_per_agent, gamma", [(2, 1, 1.0), slow(2, 3, 0.0), slow(3, 3, 1.0)]
)
def test_every_step_is_in_one_segment_as_in_a_plain_loop(num_agents, envs_per_agent, gamma):
    num_envs, segments = num_agents * envs_per_agent, []
    with make_sampler(COUNTING, num_agents, envs_per_agent, seed=SEED, gamma=gamma) as sampler:
        with predictors(sampler) as errors:
            while not errors and (sampler.steps < 800 or len(by_environment(segments)) < num_envs):
                time.sleep(0.01)
                segments += take_all(sampler)
        assert not errors
        segments, steps = segments + take_all(sampler), sampler.steps
    assert assert_all_as_alone(segments, num_envs, 1, gamma) == num_envs
    assert 0 <= steps - sum(map(len, segments)) <= num_envs * (T - 1)


@pytest.mark.parametrize(
    "numbers, envs_per_agent",
    [
        slow((3, 1, 3, 1), 1),
        slow((3, 1, 3, 1), 3),
        pytest.param((4, 1, 3, 2, 1, 4, 2, 3, 1) * 2, 3, marks=pytest.mark.nightly),
    ],
)
def test_every_step_is_in_one_segment_while_agents_come_and_go(numbers, envs_per_agent):
    options = {"seed": SEED, "max_agents": 4}
    with make_sampler(COUNTING, 2, envs_per_agent, **options) as sampler:
        with predictors(sampler) as errors:
            for number in numbers:
                sampler.set_num_agents(number)
                until = sampler.steps + 50
                while not errors and (sampler.steps < until or sampler.num_agents != number):
                    time.sleep(0.01)
        assert not errors and sampler.num_agents == 1
        segments, steps, generations = take_all(sampler), sampler.steps, sampler.generation + 1
    assert generations >= 2  # of four places two were left, and one was new
    num_found = assert_all_as_alone(segments, 4 * envs_per_agent, generations, gamma=1.0)
    assert num_found > max(numbers) * envs_per_agent  # other environments in the same places
    # Those that went left nothing out.
    assert 0 <= steps - sum(map(len, segments)) <= envs_per_agent * (T - 1)


def test_agents_on_their_way_out_are_not_counted_again():
    with make_sampler(COUNTING, 2) as sampler:
        serve_until(sampler, 50)
        sampler.set_num_agents(1)

        def asking(observation, noise):
            sampler.set_num_agents(1)  # while the one that goes is with this predictor
            return policy(observation, noise)

        while not sampler.serve(asking):
            pass
        for _ in range(100):
            sampler.serve(policy)
        assert sampler.num_agents == 1
        while len(psutil.Process().children()) != 1:
            sampler.serve(policy)


@pytest.mark.slow
def test_nothing_is_released_within_a_pause():
    with make_sampler(COUNTING, 2) as sampler, predictors(sampler) as errors:
        for _ in range(20):
            time.sleep(0.01)
            with sampler.paused():
                orders = sampler._pool._shared.sequence.copy()
                time.sleep(0.005)
                assert np.array_equal(sampler._pool._shared.sequence, orders)
        assert not errors


@pytest.mark.slow
def test_episodes_are_counted_once_with_their_returns_and_lengths():
    with make_sampler(COUNTING, 2, 2, seed=SEED) as sampler:
        episodes = []
        with predictors(sampler) as errors:
            while sampler.steps < 1000 and not errors:
                episodes += sampler.take_episodes()
        assert not errors
        episodes += sampler.take_episodes()
        taken = sampler.steps
    for b in range(4):
        own = [e for e in episodes if e.env_index == b]
        lengths = [step[0][2] + 1 for step in trajectory(b, 0)]
        numbers = [step[0][1] for step in trajectory(b, 0)]
        whole = [
            max(x for x, n in zip(lengths, numbers, strict=True) if n == k)
            for k in range(1, len(own) + 1)
        ]
        assert [e.episode_length for e in own] == whole
        assert [e.episode_return for e in own] == [n * (n + 1) / 2 for n in whole]
        assert [e.clipped_return for e in own] == [e.episode_return for e in own]
    assert 0 <= taken - sum(e.episode_length for e in episodes) < 4 * 8
    assert any(e.truncated for e in episodes) and not all(e.truncated for e in episodes)


@SLOW
def test_unfinished_episodes_of_those_that_go_are_not_reported():
    """Games of 50 steps; agents live for less, but for one."""
    with make_sampler(partial(ScriptedEnv, "." * 49 + "t"), 1, max_agents=3) as sampler:
        for _ in range(2):
            sampler.set_num_agents(3)
            while sampler.num_agents < 3 or sampler.num_starting:
                serve_until(sampler, sampler.steps + 1)
            serve_until(sampler, sampler.steps + 40)
            sampler.set_num_agents(1)
            serve_until(sampler, sampler.steps + 60)
        episodes = sampler.take_episodes()
    assert episodes and all(e.episode_length == 50 and not e.truncated for e in episodes)


def test_times_count_each_prediction_once_and_add_up_to_its_latency(monkeypatch):
    """By a clock that advances by a second each time it is looked at."""
    clock, sizes = count(1), []
    monkeypatch.setattr("accel_rl.ga3c.sampler.perf_counter", lambda: float(next(clock)))

    def noting(observation, noise):
        sizes.append(len(noise))
        return policy(observation, noise)

    with make_sampler(COUNTING, 2, 2, seed=SEED, max_prediction_batch=4) as sampler:
        pool = sampler._pool
        # Two seconds before it is looked at.
        monkeypatch.setattr(pool, "done_at", lambda agents: np.full(len(agents), next(clock) - 1.0))
        for _ in range(100):
            sampler.serve(noting)
        times, steps = sampler.queue_times, sampler.steps
    n, batches = times.predictions, times.batches
    assert n == sum(sizes) == steps + 4  # each environment's first has no step before it
    assert batches == len(sizes) and max(sizes) <= 4
    # A batch: begins, ready (above), looked at, is taken, released, and queued if segments end.
    assert times.latency == n * (2 + 1) and times.predictor_busy == batches
    assert 0 < times.predictor_blocked < batches
    assert 0 <= times.queued <= batches


def test_full_training_queue_holds_the_agents_back():
    with make_sampler(COUNTING, 2, training_queue_size=3) as sampler:
        with predictors(sampler, number=2) as errors:
            while len(sampler.training_queue) < 3:
                time.sleep(0.01)
            for _ in range(20):
                time.sleep(0.01)
                assert len(sampler.training_queue) <= 3
            most = T * (3 + 2 * 2 + 2)  # queued, of predictors that wait, and of running segments
            assert sampler.steps <= most
            while sampler.steps <= most and not errors:
                sampler.training_queue.take(5, 60)
            assert not errors
            sampler.close()


WRONG = {
    "shape": ({"action": lambda n, m: np.zeros(n + 1, int)}, r"actions of shape \(\d,\)"),
    "float": ({"action": lambda n, m: np.zeros(n)}, "float64; .*integers"),
    "four": ({"action": lambda n, m: np.full(n, 4)}, r"action 4; .*0 \.\. 3"),
    "values": ({"value": lambda n, m: np.zeros(n + m + 1)}, r"values of shape \(\d,\)"),
    "square": ({"value": lambda n, m: np.zeros((n + m, 1))}, r"values of shape \(\d, 1\)"),
    "nan": ({"value": lambda n, m: np.full(n + m, np.nan)}, "values .*not finite"),
    "mu": ({"behaviour_probability": lambda n, m: np.ones(n + 1)}, r"probabilities of shape"),
}


@pytest.mark.parametrize("name", ["shape", *map(slow, [name for name in WRONG if name != "shape"])])
def test_wrong_prediction_is_one_message_and_the_end(name):
    change, message = WRONG[name]

    def wrong(observation, noise):
        n, m = len(noise), len(observation) - len(noise)
        return policy(observation, noise)._replace(**{k: f(n, m) for k, f in change.items()})

    with make_sampler(COUNTING, 1) as sampler:
        with pytest.raises(ValueError, match=message):
            sampler.serve(wrong)
        assert not sampler.is_running
        for use in (lambda: sampler.serve(policy), lambda: sampler.training_queue.take(1, 5)):
            with pytest.raises(QueueClosed, match=rf"an error \(ValueError: .*{message}"):
                use()


def test_sampler_used_out_of_turn_is_an_error():
    sampler = make_sampler(COUNTING, 1)
    with pytest.raises(QueueClosed, match="was not started"):
        sampler.serve(policy)
    sampler.start()
    with pytest.raises(SamplerError, match="started before"):
        sampler.start()
    assert sampler.serve(policy) == 1
    sampler.close()
    sampler.close()
    sampler.set_num_agents(1)
    with pytest.raises(QueueClosed):
        sampler.serve(policy)
    with pytest.raises(SamplerError, match="was closed; make another one"):
        sampler.start()


def test_close_ends_predictors_that_are_at_work():
    sampler = make_sampler(COUNTING, 2)
    sampler.start()
    with predictors(sampler, number=4) as errors:
        for _ in count():
            if sampler.steps > 100 or errors:
                break
        sampler.close()
    assert not errors


def test_agents_of_a_closed_sampler_are_not_released():
    """Their descriptors may be those of other files by then."""

    def closing(observation, noise):
        sampler.close()
        return policy(observation, noise)

    with make_sampler(COUNTING, 1) as sampler, suppress(QueueClosed):
        sampler.serve(closing)
    assert not sampler.is_running


@pytest.mark.parametrize(
    "options, message",
    [
        ({"reset_policy": "wait"}, "reset_policy is wait; .*immediate"),
        ({"num_workers": 3}, "num_workers is 3; .*none or 4"),
        ({"affinity": "rotate"}, "affinity is rotate; .*auto or off"),
        ({"max_agents": 3}, "max_agents is 3; .*num_groups=4"),
        ({"max_prediction_batch": 0}, "max_prediction_batch is 0; .*at least 1"),
        ({"training_queue_size": 0}, "training_queue_size is 0; .*at least 1"),
        ({"gamma": 1.5}, r"gamma is 1.5; .*0 \.\. 1"),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
def test_options_without_use_are_refused(options, message):
    queues = {"max_prediction_batch": 4, "training_queue_size": 4, "gamma": 0.9, "max_agents": 8}
    own = {name: options.pop(name, value) for name, value in queues.items()}
    config = SamplerConfig(num_envs=8, num_groups=4, **options)
    with pytest.raises(ValueError, match=message):
        QueuedSampler(COUNTING, config, **own)


def test_what_cannot_be_asked_for_is_refused() -> None:
    check_queued(SamplerConfig(num_envs=8, num_groups=4, num_workers=4), 0.9, 4, 1, 1)  # this can
    sampler = make_sampler(ToyEnv)
    with pytest.raises(ValueError, match=r"num_agents is 9; .*max_agents=3"):
        sampler.set_num_agents(9)
    with pytest.raises(ValueError, match="state was given"):
        sampler.start(object())
    sampler.close()
