"""States of environments and samplers: who goes on from one does what the first would have done."""

import enum
import os
import random
import re
import signal
from collections import Counter, OrderedDict, deque
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from batches import Walks
from counting_env import CountingEnv
from sampler_cases import assert_same_rollouts, make
from space_envs import SpaceEnv
from tiers import processes, slow, slow_processes
from toy_envs import ToyEnv

from accel_rl.envs import (
    AtariConfig,
    Batched,
    Catch,
    EnvFactory,
    make_env_factory,
)
from accel_rl.envs.atari import AtariEnv
from accel_rl.envs.base import is_resumable
from accel_rl.samplers import ParallelSampler, SamplerConfig, SamplerError, SamplerState
from accel_rl.samplers.base import PolicyInput
from accel_rl.samplers.sampler import RolloutSampler
from accel_rl.system.states import decode_state, encode_state

COUNTING = partial(CountingEnv, truncation=0.3, life_interval=3)
PONG = make_env_factory("pong", AtariConfig(sticky_actions=0.25))
QBERT = make_env_factory("qbert", AtariConfig(observation_size="84x84"))

SPACE = make_env_factory(partial(SpaceEnv, "discrete"))

WALKS = Batched(Walks)


class Toy(ToyEnv):
    """Cannot tell its state, unlike what it is made of."""


def policy(num_actions: int, step: PolicyInput) -> Any:
    return (step.noise * num_actions).astype(np.int64)


def collect(sampler: RolloutSampler, number: int) -> list[Any]:
    """Rollouts and episodes of ``number`` collects."""
    taken = []
    for _ in range(number):
        rollout = sampler.collect(partial(policy, sampler.env_spec.num_actions))
        taken.append((rollout.copy(), sampler.take_episodes()))
    return taken


def assert_same(one: list[Any], other: list[Any]) -> None:
    for (rollout, episodes), (other_rollout, other_episodes) in zip(one, other, strict=True):
        assert_same_rollouts(rollout, other_rollout)
        assert episodes == other_episodes


SLOW, PROCESSES = pytest.mark.slow, pytest.mark.processes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factory", "before", "after", "reset_policy"),
    [
        (COUNTING, "serial", "serial", "wait"),
        (Catch, "serial", "serial", "immediate"),
        (SPACE, "serial", "serial", "immediate"),
        slow_processes(COUNTING, "1", "2", "immediate"),
        processes(SPACE, "1", "serial", "wait"),
        slow_processes(Catch, "serial", "2", "wait"),
        processes(WALKS, "serial", "1", "wait"),
        slow_processes(WALKS, "1", "2", "immediate"),
        slow(PONG, "serial", "serial", "immediate"),
        slow_processes(QBERT, "1", "2", "wait"),
    ],
)
def test_sampler_that_goes_on_from_a_state_gives_the_same_rollouts(
    factory: EnvFactory, before: str, after: str, reset_policy: str
) -> None:
    with make(factory, "serial", reset_policy) as sampler:
        expected = collect(sampler, 10)
    with make(factory, before, reset_policy) as sampler:
        first = collect(sampler, 5)
        state = decode_state(encode_state(sampler.get_state()._asdict()))
        # To ask for the state changes nothing.
        assert_same(collect(sampler, 5), expected[5:])
    sampler = make(factory, after, reset_policy, seed=99)  # of which nothing must be left
    try:
        sampler.start(SamplerState(**state))
        assert_same(first + collect(sampler, 5), expected)
    finally:
        sampler.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "game, config",
    [
        ("breakout", AtariConfig(frame_skip=1, max_episode_steps=150)),
        slow("breakout", AtariConfig()),
        slow("space_invaders", AtariConfig(frame_skip=3, episodic_lives=False)),
        # Other pixels without warm-up; so in the next.
        slow("tetris", AtariConfig(sticky_actions=0.5, frame_stack=1)),
        slow("qbert", AtariConfig(observation_size="84x84")),
        slow("seaquest", AtariConfig(full_action_set=True)),
    ],
)
def test_atari_environment_goes_on_from_its_state_in_a_fresh_emulator(game, config) -> None:
    rng = np.random.default_rng(0)
    actions = rng.integers(4, size=700).tolist()

    def play(env: AtariEnv, actions: list[int], out: Any) -> list[Any]:
        seen = []
        for action in actions:
            result = env.step(action, out)
            if result.episode_ended:
                env.reset(out)
            seen.append((result, out.copy()))
        return seen

    env = AtariEnv(game, config)
    env.seed(np.random.SeedSequence(1))
    out = np.zeros(env.spec.observation_shape, np.uint8)
    env.reset(out)
    play(env, actions[:250], out)
    state = decode_state(encode_state(env.get_state()))
    expected = play(env, actions[250:], out)

    fresh = AtariEnv(game, config)
    fresh.seed(np.random.SeedSequence(2))
    fresh.set_state(state)
    found = play(fresh, actions[250:], out)
    for (result, observation), (expected_result, expected_observation) in zip(
        found, expected, strict=True
    ):
        assert result == expected_result
        np.testing.assert_array_equal(observation, expected_observation)


@pytest.mark.parametrize("kind", ["serial", slow_processes("2")])
def test_environments_without_a_state_start_new_episodes_with_new_random_numbers(kind: str) -> None:
    assert not is_resumable(Toy())
    with make(Toy, kind) as sampler:
        first = collect(sampler, 3)
        state = sampler.get_state()
    assert state.environments == [None] * 4
    seen = [first[0][0].observation[..., 0]]
    for _ in range(2):
        sampler = make(Toy, kind)
        try:
            sampler.start(state)
            again = collect(sampler, 3)
            state = sampler.get_state()
        finally:
            sampler.close()
        assert all((again[0][0].observation[..., 0] != numbers).all() for numbers in seen)
        seen.append(again[0][0].observation[..., 0])
        counted = sum(len(episodes) for _, episodes in again)
        ended = sum(int(rollout.episode_ended.sum()) for rollout, _ in again)
        assert 0 < counted == ended - 4  # each one's first is decorrelated anew, and not reported


@SLOW
@PROCESSES
def test_worker_that_dies_while_asked_is_replaced_and_its_environments_have_no_state() -> None:
    config = SamplerConfig(
        num_envs=4, horizon=5, num_workers=2, on_worker_failure="restart", affinity="off"
    )
    sampler = ParallelSampler(CountingEnv, config=config, seed=0)
    with sampler:
        collect(sampler, 1)
        lost = sampler._pool._workers.processes[1]
        os.kill(lost.pid, signal.SIGKILL)
        state = sampler.get_state()
        assert [each is None for each in state.environments] == [False, True, False, True]
        assert state.generation == 1
        truncated = [e.env_index for e in sampler.take_episodes() if e.truncated]
        assert truncated == [1, 3]
        collect(sampler, 2)


@pytest.mark.parametrize("kind", ["serial", processes("1")])
def test_state_that_cannot_be_had_or_taken_is_refused(kind: str) -> None:
    with make(Catch, "serial") as sampler:
        state = sampler.get_state()
    other = make(COUNTING, kind)
    with pytest.raises(SamplerError, match="not running"):
        other.get_state()
    with pytest.raises(ValueError, match=r"float32 \[4, 10, 5\].*int64 \[4, 3\]"):
        other.start(state)
    other.close()


class Odd(ToyEnv):
    """Has two methods of its own that happen to be called get_state and set_state."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.get_state, self.set_state = METHODS[name]


class OddSpace(SpaceEnv):
    def set_state(self, place: Any, speed: Any) -> None:  # type: ignore[override]
        raise AssertionError


class OddWalks(Walks):
    def get_state(self, i: int) -> Any:
        raise RuntimeError("ask all at once")


def refuse(state: Any) -> None:
    raise ValueError("no such place")


METHODS: dict[str, Any] = {
    "of parts": (lambda: np.zeros(2), lambda position, velocity: None),
    "no plain values": (lambda: deque([1.0]), refuse),
    "not taken": (lambda: {"place": 3}, refuse),
}
WHY = {
    "of parts": "set_state does not take what get_state returns: .*argument: 'velocity'",
    "no plain values": "TypeError: a deque cannot be saved",
    "not taken": r"environment 0 \(toy\) failed in set_state: ValueError: no such place",
    "Gymnasium's": "set_state does not take what get_state returns: .*argument: 'speed'",
    "of a batch": r"environments 0 to 3 \(walk\), a batch: .*RuntimeError: ask all at once",
}
FACTORIES: dict[str, Any] = {
    "Gymnasium's": make_env_factory(partial(OddSpace, "discrete")),
    "of a batch": lambda: Batched(OddWalks),
}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("serial", name) for name in WHY),
        slow_processes("2", "of parts"),
        slow_processes("2", "not taken"),
    ],
)
def test_methods_that_are_others_than_ours_only_warn_and_episodes_begin_anew(
    kind: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    factory = FACTORIES.get(name) or partial(Odd, name)
    with make(factory, kind) as sampler:
        collect(sampler, 2)
        state = sampler.get_state()
        assert (state.environments == [None] * 4) == (name != "not taken")
        sampler.get_state()
    is_first = []

    def look(step: PolicyInput) -> Any:
        is_first.append(step.is_first.all())
        return policy(2, step)

    with closing(make(factory, kind)) as sampler:
        sampler.start(state)
        ended = sampler.collect(look).episode_ended
        # Each one's first is decorrelated anew, and not reported.
        assert len(sampler.take_episodes()) == ended.sum() - ended.any(0).sum()
    assert is_first[0] and not all(is_first)
    (warning,) = caplog.messages
    assert re.match(rf"4 of 4 environments .* new episodes.*{WHY[name]}", warning)


class Direction(enum.IntEnum):
    UP = 1


class Point(NamedTuple):
    x: int


@pytest.mark.parametrize(
    "value",
    [
        {0: 3, 7: 5},
        {None: 3, True: 4, False: 5, 1.5: 6},
        {(1, "a"): [1], b"key": 2, np.int64(4): 5},
        {"$array": 3},
        {"$dict": [], "$tuple": 0},
        {"$bytes": {"$scalar": (0,)}},
        (1, (2, [3, (4, None, True, "text", 2**127 + 1, 0.1)])),
        random.Random(0).getstate(),
        np.random.RandomState(0).get_state(),
        np.float32(0.1),
        np.float64(0.1),
        np.str_("text"),
        np.datetime64("2026-01-01"),
        np.array(3),
        np.array([(1, 2.0)], np.dtype([("a", "i2"), ("b", "f8")])),
        np.zeros((0, 3), ">u2"),
        float("inf"),
        -0.0,
        b"",
        "\ud800",
    ],
    ids=repr,
)
def test_state_of_each_type_comes_back_as_it_was(value: Any) -> None:
    found = decode_state(encode_state({"value": value}))["value"]
    assert_identical(found, value)


def assert_identical(found: Any, expected: Any) -> None:
    """Equal, and of the same types at all levels."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert_identical(list(found.items()), list(expected.items()))
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_identical(one, other)
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype and found.shape == expected.shape
        np.testing.assert_array_equal(found, expected)
    else:
        assert repr(found) == repr(expected)


@pytest.mark.parametrize(
    "value",
    [
        Direction.UP,
        Point(1),
        Counter("ab"),
        OrderedDict(a=1),
        np.ma.array([1, 2], mask=[True, False]),
        np.array([None]),
        bytearray(b"a"),
        {1, 2},
        1j,
        object(),
    ],
    ids=lambda value: repr(value).partition(" at ")[0],  # addresses differ from process to process
)
def test_state_of_another_type_is_refused_when_it_is_saved(value: Any) -> None:
    with pytest.raises(TypeError, match="a state is made of"):
        encode_state({"value": [value]})


def test_broken_state_is_refused() -> None:
    with pytest.raises(ValueError, match="not a saved state"):
        decode_state(encode_state({"a": 1})[:-40])
