"""States of environments and samplers: who goes on from one does what the first would have done."""

import enum
import io
import os
import random
import signal
from collections import Counter, OrderedDict
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from sampler_cases import make
from toy_envs import Secretive, ToyEnv

from accel_rl.envs import (
    AtariConfig,
    Catch,
    CountingEnv,
    EnvFactory,
    Resumable,
    StepResult,
    make_env_factory,
)
from accel_rl.envs.atari import AtariEnv
from accel_rl.envs.gymnasium_env import GymnasiumEnv
from accel_rl.rollout import Rollout
from accel_rl.samplers import ParallelSampler, SamplerConfig, SamplerError, SamplerState
from accel_rl.samplers.base import PolicyInput
from accel_rl.samplers.sampler import RolloutSampler
from accel_rl.states import decode_state, encode_state

COUNTING = partial(CountingEnv, truncation=0.3, life_interval=3)
PONG = make_env_factory("pong", AtariConfig(sticky_actions=0.25))
QBERT = make_env_factory("qbert", AtariConfig(observation_size="84x84"))


class Toy(ToyEnv):
    """Cannot tell its state, unlike what it is made of."""


class Walk(gymnasium.Env[Any, Any]):
    """A Gymnasium environment that offers its state."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = self.np_random.normal(size=1)
        return self.place, {}

    def step(self, action: Any) -> Any:
        self.place = self.place + self.np_random.normal(size=1) + action
        return self.place, 1.0, bool(abs(self.place[0]) > 3), False, {}

    def get_state(self) -> dict[str, Any]:
        return {"rng": self.np_random.bit_generator.state, "place": self.place}

    def set_state(self, state: dict[str, Any]) -> None:
        self.np_random.bit_generator.state = state["rng"]
        self.place = state["place"]


def make_walk() -> GymnasiumEnv:
    return GymnasiumEnv(Walk, "walk")


def policy(num_actions: int, step: PolicyInput) -> Any:
    return (step.uniform * num_actions).astype(np.int64)


def copy(rollout: Rollout) -> dict[str, Any]:
    arrays = {name: array.copy() for name, array in vars(rollout).items()}
    unused = arrays["final_step"] < 0  # what lies there is left over
    arrays["final_observation"][unused] = 0
    return arrays


def collect(sampler: RolloutSampler, number: int) -> list[Any]:
    """Rollouts and episodes of ``number`` collects."""
    taken = []
    for _ in range(number):
        rollout = sampler.collect(partial(policy, sampler.env_spec.num_actions))
        taken.append((copy(rollout), sampler.take_episodes()))
    return taken


def assert_same(one: list[Any], other: list[Any]) -> None:
    assert len(one) == len(other)
    for (rollout, episodes), (other_rollout, other_episodes) in zip(one, other, strict=True):
        for name, array in rollout.items():
            np.testing.assert_array_equal(array, other_rollout[name], err_msg=name)
        assert episodes == other_episodes


def stop_and_go_on(
    factory: EnvFactory, before: str, after: str, reset_policy: str = "immediate", number: int = 5
) -> None:
    with make(factory, "serial", reset_policy) as sampler:
        expected = collect(sampler, 2 * number)
    with make(factory, before, reset_policy) as sampler:
        first = collect(sampler, number)
        state = decode_state(encode_state(sampler.get_state()._asdict()))
        # To ask for the state changes nothing.
        assert_same(collect(sampler, number), expected[number:])
    sampler = make(factory, after, reset_policy, seed=99)  # of which nothing must be left
    try:
        sampler.start(SamplerState(**state))
        assert_same(first + collect(sampler, number), expected)
    finally:
        sampler.close()


@pytest.mark.parametrize("reset_policy", ["immediate", "wait"])
@pytest.mark.parametrize(
    "before, after", [("serial", "serial"), ("1", "2"), ("2", "serial"), ("serial", "1")]
)
@pytest.mark.parametrize("factory", [COUNTING, Catch, make_walk], ids=["counting", "catch", "walk"])
def test_sampler_that_goes_on_from_a_state_gives_the_same_rollouts(
    factory: EnvFactory, before: str, after: str, reset_policy: str
) -> None:
    stop_and_go_on(factory, before, after, reset_policy)


@pytest.mark.parametrize("before, after", [("serial", "serial"), ("1", "2")])
@pytest.mark.parametrize("factory", [PONG, QBERT], ids=["pong", "qbert"])
def test_atari_sampler_that_goes_on_from_a_state_gives_the_same_rollouts(
    factory: EnvFactory, before: str, after: str
) -> None:
    stop_and_go_on(factory, before, after, number=12)


@pytest.mark.parametrize(
    "game, config",
    [
        ("breakout", AtariConfig()),
        ("breakout", AtariConfig(frame_skip=1, max_episode_steps=150)),
        ("space_invaders", AtariConfig(frame_skip=3, episodic_lives=False)),
        ("tetris", AtariConfig(sticky_actions=0.5, frame_stack=1)),  # other pixels without warm-up
        ("qbert", AtariConfig(observation_size="84x84", cached_starts="off")),  # likewise
        ("seaquest", AtariConfig(full_action_set=True)),
    ],
)
def test_atari_environment_goes_on_from_its_state_in_a_fresh_emulator(
    game: str, config: AtariConfig
) -> None:
    rng = np.random.default_rng(0)
    actions = rng.integers(4, size=1_200).tolist()

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
    play(env, actions[:400], out)
    state = decode_state(encode_state(env.get_state()))
    expected = play(env, actions[400:], out)

    fresh = AtariEnv(game, config)
    fresh.seed(np.random.SeedSequence(2))
    fresh.set_state(state)
    found = play(fresh, actions[400:], out)
    for (result, observation), (expected_result, expected_observation) in zip(
        found, expected, strict=True
    ):
        assert result == expected_result
        np.testing.assert_array_equal(observation, expected_observation)


@pytest.mark.parametrize("kind", ["serial", "2"])
def test_environments_without_a_state_start_new_episodes_with_new_random_numbers(kind: str) -> None:
    assert not isinstance(Toy(), Resumable)
    with make(Toy, kind) as sampler:
        first = collect(sampler, 3)
        state = sampler.get_state()
    assert state.environments == [None] * 4
    seen = [first[0][0]["observation"][..., 0]]
    for _ in range(2):
        sampler = make(Toy, kind)
        try:
            sampler.start(state)
            again = collect(sampler, 3)
            state = sampler.get_state()
        finally:
            sampler.close()
        assert all((again[0][0]["observation"][..., 0] != numbers).all() for numbers in seen)
        seen.append(again[0][0]["observation"][..., 0])
        counted = sum(len(episodes) for _, episodes in again)
        ended = sum(int(rollout["episode_ended"].sum()) for rollout, _ in again)
        assert 0 < counted == ended - 4  # each one's first is decorrelated anew, and not reported


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


@pytest.mark.parametrize("kind", ["serial", "2"])
def test_state_of_other_environments_is_refused(kind: str) -> None:
    with make(Catch, "serial") as sampler:
        state = sampler.get_state()
    other = make(COUNTING, kind)
    try:
        with pytest.raises(ValueError, match=r"float32 \[4, 10, 5\]; these have int64 \[4, 3\]"):
            other.start(state)
    finally:
        other.close()


@pytest.mark.parametrize("kind", ["serial", "2"])
def test_sampler_that_is_not_running_has_no_state(kind: str) -> None:
    sampler = make(Catch, kind)
    with pytest.raises(SamplerError, match="not running"):
        sampler.get_state()
    sampler.close()


@pytest.mark.parametrize("kind", ["serial", "2"])
def test_state_that_cannot_be_saved_names_the_environment_and_what_it_is(kind: str) -> None:
    with (
        make(Secretive, kind) as sampler,
        pytest.raises(
            SamplerError, match=r"environment [01] \(catch\) failed in get_state.*Generator"
        ),
    ):
        sampler.get_state()


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
        (1, (2, [3, (4,)])),
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
        {Direction.UP: 1},
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


def test_state_that_was_saved_before_there_were_tuples_can_be_read() -> None:
    text = b'{"rng": {"$array": 0}, "emulator": {"$bytes": 1}, "counts": [1, 2]}'
    buffer = io.BytesIO()
    arrays = {"0": np.arange(3), "1": np.frombuffer(b"xyz", np.uint8)}
    np.savez_compressed(buffer, text=np.frombuffer(text, np.uint8), **arrays)  # type: ignore[arg-type]
    found = decode_state(buffer.getvalue())
    assert found.pop("rng").tolist() == [0, 1, 2]
    assert found == {"emulator": b"xyz", "counts": [1, 2]}


class Collector(Catch):
    """Collects things of a random number; the reward is how many it has of the commonest."""

    def __init__(self) -> None:
        super().__init__()
        self.inventory: dict[int, int] = {}

    def step(self, action: int, out: Any) -> StepResult:
        result = super().step(action, out)
        item = int(self._rng.integers(3))
        self.inventory[item] = self.inventory.get(item, 0) + 1
        return result._replace(reward=float(max(self.inventory.values())))

    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), "inventory": dict(self.inventory)}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self.inventory = state["inventory"]


def test_environment_that_counts_things_by_number_goes_on_with_its_counts() -> None:
    stop_and_go_on(Collector, "serial", "1")


def test_encoded_state_is_decoded_to_the_same() -> None:
    state = {
        "none": None,
        "big": 2**127 + 1,
        "float": 0.1,
        "array": np.arange(6, dtype=np.uint16).reshape(2, 3),
        "nested": [{"bytes": b"\x00\xff"}, True, "text", np.float32(2)],
    }
    found = decode_state(encode_state(state))
    assert found.pop("array").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found == {
        "none": None,
        "big": 2**127 + 1,
        "float": 0.1,
        "nested": [{"bytes": b"\x00\xff"}, True, "text", 2.0],
    }


def test_broken_state_is_refused() -> None:
    with pytest.raises(ValueError, match="not a saved state"):
        decode_state(encode_state({"a": 1})[:-40])
    with pytest.raises(TypeError, match="a set cannot be saved"):
        encode_state({"a": {1, 2}})
