"""Gymnasium environments behind our contract: spaces, calls, seeds, and what is refused."""

import ctypes
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from refusals import words

from accel_rl.envs import EnvError
from accel_rl.envs.base import is_environment
from accel_rl.envs.gymnasium_env import GymnasiumEnv
from accel_rl.vector.adapters.gymnasium_vector import GymnasiumVector


class Scripted(gymnasium.Env[Any, Any]):
    """Gives what it is told to, and remembers what it was asked."""

    def __init__(
        self,
        observation_space: spaces.Space[Any] = spaces.Box(-9, 9, (2, 3)),  # noqa: B008
        action_space: spaces.Space[Any] = spaces.Discrete(3),  # noqa: B008
        observation: Any = None,
        step: Callable[[], Any] = lambda: (1.0, False, False),
        reset: Callable[[], Any] = lambda: None,
    ) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.observation = observation
        self.on_step, self.on_reset = step, reset
        self.seeds: list[int | None] = []
        self.actions: list[Any] = []
        self.is_closed = False

    def observe(self) -> Any:
        return self.observation_space.sample() if self.observation is None else self.observation

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seeds.append(seed)
        self.on_reset()
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        return (self.observe(), *self.on_step(), {})

    def close(self) -> None:
        self.is_closed = True


def wrap(env: gymnasium.Env[Any, Any]) -> tuple[GymnasiumEnv, Any]:
    ours = GymnasiumEnv(lambda: env, "scripted")
    ours.seed(np.random.SeedSequence(0))
    return ours, np.zeros(ours.spec.observation_shape, ours.spec.observation_dtype)


@pytest.mark.parametrize(
    ("space", "shape", "dtype"),
    [
        (spaces.Box(0, 255, (5, 4, 3), np.uint8), (5, 4, 3), np.uint8),
        (spaces.Box(-1, 1, (), np.float64), (), np.float64),
        (spaces.Box(-1, 1, (7,), np.float16), (7,), np.float16),
        (spaces.Discrete(6, start=2), (), np.int64),
        (spaces.MultiBinary([2, 2]), (2, 2), np.int8),
        (spaces.MultiDiscrete([3, 4]), (2,), np.int64),
    ],
    ids=["image", "scalar", "vector", "discrete", "multi-binary", "multi-discrete"],
)
def test_observation_of_any_array_space_is_written_as_it_is(
    space: spaces.Space[Any], shape: tuple[int, ...], dtype: Any
) -> None:
    observation = space.sample()
    env, out = wrap(Scripted(space, observation=observation))
    assert is_environment(env)
    assert env.spec.observation_shape == shape
    assert env.spec.observation_dtype == dtype
    env.reset(out)
    np.testing.assert_array_equal(out, observation)
    out[...] = 0
    env.step(0, out)
    np.testing.assert_array_equal(out, observation)


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.uint16])
def test_actions_count_from_zero_and_reach_the_environment_in_its_space(dtype: Any) -> None:
    start = -1 if np.dtype(dtype).kind == "i" else 1
    space = spaces.Discrete(3, start=start, dtype=dtype)
    scripted = Scripted(action_space=space)
    env, out = wrap(scripted)
    env.reset(out)
    for action in range(env.spec.num_actions):
        env.step(action, out)
    assert scripted.actions == [start, start + 1, start + 2]
    assert {type(action) for action in scripted.actions} == {dtype} == {type(space.sample())}


@pytest.mark.parametrize("terminated", [False, True])
@pytest.mark.parametrize("truncated", [False, True])
def test_ends_are_those_of_gymnasium(terminated: bool, truncated: bool) -> None:
    env, out = wrap(Scripted(step=lambda: (np.float32(-2.5), terminated, truncated)))
    env.reset(out)
    result = env.step(0, out)
    assert result == (-2.5, -2.5, terminated, truncated, terminated or truncated, ())


@pytest.mark.parametrize("kind", [np.bool_, int, float, np.float32, lambda flag: np.array([flag])])
def test_flags_may_be_numbers_or_arrays_of_one(kind: Callable[[bool], Any]) -> None:
    env, out = wrap(Scripted(step=lambda: (1.0, kind(True), kind(False))))
    env.reset(out)
    assert env.step(0, out)[2:5] == (True, False, True)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.float64])
def test_large_numbers_are_rounded_in_a_space_of_floats(dtype: Any) -> None:
    given = np.full((2, 3), 123_456_789, dtype)  # as `SyncVectorEnv` does
    env, out = wrap(Scripted(spaces.Box(0, np.inf, (2, 3)), observation=given))
    env.reset(out)
    assert (out == np.float32(123_456_792)).all()


@pytest.mark.parametrize("number", [300, -300])
def test_integers_that_the_space_does_not_hold_are_refused_and_no_others(number: int) -> None:
    space = spaces.Box(-128, 127, (2,), np.int8)
    env, out = wrap(Scripted(space, observation=np.array([7, -128])))  # int64
    env.reset(out)
    assert out.tolist() == [7, -128]
    env, out = wrap(Scripted(space, observation=np.array([0, number])))
    words = r"from reset; its observation space, of dtype int8, does not hold int64 from "
    with pytest.raises(EnvError, match=words + f"{min(0, number)} to {max(0, number)}"):
        env.reset(out)


def test_info_that_is_no_dict_is_told_where_keys_are_wanted(monkeypatch) -> None:
    scripted = Scripted()
    env = GymnasiumEnv(lambda: scripted, "scripted", ("is_success",))
    out = np.zeros((2, 3), np.float32)
    monkeypatch.setattr(scripted, "step", lambda action: (out, 1.0, False, False, None))
    with pytest.raises(EnvError, match="an info of type NoneType from step; with info_keys it mus"):
        env.step(0, out)


def test_only_the_first_reset_is_seeded() -> None:
    seeds = []
    for seed in (1, 1, 2):
        scripted = Scripted()
        env, out = wrap(scripted)
        env.seed(np.random.SeedSequence(seed))
        env.reset(out)
        env.reset(out)
        assert scripted.seeds[1] is None
        seeds.append(scripted.seeds[0])
    assert seeds[0] == seeds[1] != seeds[2]


class InC(Scripted):
    """Its seed is a signed integer of 32 bits."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None and ctypes.c_int32(seed).value != seed:
            raise OverflowError
        return self.observe(), {}


def test_seed_is_shortened_where_a_simulator_does_not_take_it() -> None:
    seed = 0x9234_5678
    envs = [InC(), InC()]
    simulators = SyncVectorEnv([lambda: envs[0], lambda: envs[1]], autoreset_mode="Disabled")
    batch = GymnasiumVector(simulators, 2, "batch")
    batch.seed([np.random.SeedSequence(3), np.random.SeedSequence(seed)])
    batch.reset(np.ones(2, bool), np.zeros((2, 2, 3), np.float32))
    assert [env.seeds[-1] for env in envs] == [3, seed & 0x7FFF_FFFF]
    for kind, seeds in ((Scripted, [seed]), (InC, [seed, seed & 0x7FFF_FFFF])):
        scripted = kind()
        env, out = wrap(scripted)
        env.seed(np.random.SeedSequence(seed))
        env.reset(out)
        assert scripted.seeds == seeds
    env.seed(np.random.SeedSequence(2**40))  # nobody draws such a seed: it was given
    with pytest.raises(OverflowError):
        env.reset(out)


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (lambda: (1.0, False), "scripted: step observation, reward, terminated, truncated, info 4"),
        (lambda: (1.0, {}, False), "terminated dict step {} bool"),
        (lambda: (1.0, None, False), "terminated NoneType step None bool"),
        (lambda: (1.0, False, "no"), "truncated str step 'no' bool"),
        (lambda: (1.0, 2, False), "terminated int step 2 bool"),
        (lambda: (1.0, np.ones(2), False), "terminated ndarray (float64 of shape (2,)"),
    ],
    ids="few swapped none text int flags".split(),
)
def test_bad_step_is_refused(step: Callable[[], Any], said: str) -> None:
    env, out = wrap(Scripted(step=step))
    env.reset(out)
    with pytest.raises(EnvError, match=words(said)):
        env.step(0, out)


@pytest.mark.parametrize("call", ["reset", "step"])
@pytest.mark.parametrize(
    ("returned", "found"),
    [
        (np.zeros((3, 3), np.float32), "ndarray (float32 of shape (3, 3))"),
        (None, "NoneType"),
        ((0, 0, 0), "3 values"),
    ],
    ids=["observation-alone", "nothing", "three"],
)
def test_what_is_returned_is_told_where_it_is_something_else(
    call: str, returned: Any, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted = Scripted()
    env, out = wrap(scripted)
    monkeypatch.setattr(scripted, call, lambda *args, **options: returned)
    with pytest.raises(EnvError, match=words(f"{call} must return observation, returned {found}")):
        env.reset(out) if call == "reset" else env.step(0, out)


@pytest.mark.parametrize(
    ("observation", "said"),
    [
        (np.zeros((3, 2), np.float32), "shape (3, 2) reset (2, 3)"),
        (np.zeros(3, np.float32), "shape (3,) reset (2, 3)"),  # would broadcast
        (np.zeros((2, 3), np.complex64), "dtype complex64 reset float32"),
    ],
    ids=["transposed", "would-broadcast", "complex"],
)
def test_observation_that_breaks_its_space_is_refused(observation: Any, said: str) -> None:
    env, out = wrap(Scripted(observation=observation))
    with pytest.raises(EnvError, match=words(f"scripted observation {said}")):
        env.reset(out)


@pytest.mark.parametrize("where", ["action_space", "observation_space"])
@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(4),
        spaces.Sequence(spaces.Discrete(2)),
        spaces.Graph(spaces.Discrete(2), None),
        spaces.Dict({"a": spaces.Tuple([spaces.Text(4)])}),
        spaces.Box(0, 1, (2,), np.longdouble),
    ],
    ids=["text", "sequence", "graph", "nested", "long"],
)
def test_space_that_is_not_supported_is_refused(where: str, space: spaces.Space[Any]) -> None:
    words = where.replace("_", " ")
    with pytest.raises(EnvError, match=f"scripted has the {words} .*(not supported|it must be)"):
        wrap(Scripted(**{where: space}))


@pytest.mark.parametrize("space", ["action_space", "observation_space"])
def test_environment_without_a_space_is_told_which(space: str) -> None:
    scripted = Scripted()
    delattr(scripted, space)
    with pytest.raises(EnvError, match=f"scripted has no {space}"):
        wrap(scripted)
