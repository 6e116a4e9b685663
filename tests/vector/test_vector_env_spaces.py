"""Every space through vector environments, as in Gymnasium's own; calls of single environments."""

import threading
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from space_envs import PAIRS, MaskedEnv, Odd, SpaceEnv
from telling_envs import KEYS, TellingEnv
from tiers import PROCESSES, processes, slow, slow_processes
from toy_envs import ToyEnv
from vector_play import assert_same, play_both

from accel_rl.samplers import SamplerError
from accel_rl.vector import VectorEnv

B = 5
NEXT, SAME, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
SPACES = {name: partial(SpaceEnv, name) for name in PAIRS}
WORKERS = pytest.mark.parametrize("num_workers", [0, processes(1)])

CART = partial(gymnasium.make, "CartPole-v1", max_episode_steps=25)
CLIFF = partial(gymnasium.make, "CliffWalking-v1", max_episode_steps=25)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "mode", "num_workers", "keys"),
    [
        *((make, [*AutoresetMode][i % 3], 0, ()) for i, make in enumerate(SPACES.values())),
        slow(SPACES["dict"], NEXT, 0, ()),
        slow(SPACES["dict"], SAME, 0, ()),
        (CART, NEXT, 0, ()),
        (CART, DISABLED, 0, ()),
        (CLIFF, SAME, 0, ()),
        (TellingEnv, NEXT, 0, KEYS),
        (TellingEnv, DISABLED, 0, KEYS),
        processes(TellingEnv, SAME, 1, KEYS),
        slow_processes(SPACES["dict"], SAME, 1, ()),
        slow_processes(SPACES["dict"], DISABLED, 2, ()),
        slow_processes(CART, SAME, 1, ()),
        slow_processes(CLIFF, NEXT, 2, ()),
        slow_processes(CLIFF, DISABLED, 2, ()),
    ],
)
def test_play_is_that_of_gymnasium(make, mode, num_workers, keys) -> None:
    ours = VectorEnv(make, B, num_workers=num_workers, autoreset_mode=mode, info_keys=keys)
    theirs = SyncVectorEnv([make] * B, autoreset_mode=mode)
    for name in ("action_space", "observation_space"):
        assert getattr(ours, name) == getattr(theirs, name)
        assert getattr(ours, f"single_{name}") == getattr(theirs, f"single_{name}")
    assert ours.metadata == theirs.metadata and ours.info_keys == keys
    theirs.action_space.seed(1)
    num_steps, names = 60 if make in (CART, CLIFF) else 12, set()
    actions = [theirs.action_space.sample() for _ in range(num_steps)]
    for seed in (3, [7, None, 0, 2, None], None):
        names |= play_both(ours, theirs, actions, seed, keys)
    assert ("never" in names, "place" in names, "even" in names) == (False, bool(keys), bool(keys))


@pytest.mark.parametrize(("in_info", "num_workers"), [(False, 0), (True, 0), processes(True, 1)])
def test_masks_are_in_observations(in_info: bool, num_workers: int) -> None:
    keys = ["action_mask"] if in_info else []
    make = partial(MaskedEnv, "multi-discrete", in_info)
    env = VectorEnv(make, B, num_workers=num_workers, info_keys=keys)
    assert isinstance(env.single_observation_space, spaces.Dict)
    observation, _ = env.reset(seed=0)
    assert observation["action_mask"].shape == (B, 12) and observation["action_mask"].any(1).all()
    assert env.observation_space.contains(observation)


# ---- single environments -------------------------------------------------------------------------


@WORKERS
def test_attributes_and_methods_of_environments_are_reached(num_workers: int) -> None:
    env = VectorEnv("CartPole-v1", B, num_workers=num_workers, num_groups=1)
    assert env.get_attr("gravity") == (9.8,) * B  # before the first reset
    with pytest.raises(SamplerError, match=r"call reset\(\) first"):
        env.step(np.zeros(B, int))
    env.reset(seed=0)
    env.set_attr("gravity", [1.0, 2.0, 3.0, 4.0, 5.0])
    assert env.get_attr("gravity") == (1.0, 2.0, 3.0, 4.0, 5.0)
    env.set_attr("gravity", 9.0)
    assert env.call("has_wrapper_attr", "gravity") == (True,) * B
    assert env.call("gravity") == (9.0,) * B
    with pytest.raises(AttributeError, match=r"environment 0 .*levity"):
        env.get_attr("levity")
    with pytest.raises(ValueError, match=r"values has 2 entries for num_envs=5"):
        env.set_attr("gravity", [1.0, 2.0])
    env.step(np.zeros(B, int))  # it goes on


class Echo(gymnasium.Env[np.ndarray, np.ndarray]):
    """Returns each action as the next observation."""

    observation_space = spaces.Box(-9, 9, (2,))
    action_space = spaces.Box(-1, 1, (2,))

    def reset(self, **_: Any) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return action, 0.0, False, False, {}


def test_floats_beyond_their_bounds_reach_environments_as_they_are() -> None:
    ours, theirs = VectorEnv(Echo, 2, num_workers=0), SyncVectorEnv([Echo] * 2)
    actions = np.array([[2.5, -1.5], [0.5, 1.0000001]], np.float32)
    ours.reset()
    theirs.reset()
    assert np.array_equal(ours.step(actions)[0], theirs.step(actions)[0])
    ours.send(actions + 1)
    assert np.array_equal(ours.recv()[0], actions + 1)


@PROCESSES
def test_what_fails_in_an_environment_or_cannot_be_sent_is_one_error() -> None:
    env = VectorEnv(partial(Odd, "box"), 2, num_workers=1)
    env.reset(seed=0)
    with pytest.raises(RuntimeError, match=r"environment 0 .*OSError: broken pipe"):
        env.call("fail")
    with pytest.raises(TypeError, match=r"environment 0 .*cannot be sent to another process"):
        env.call("give_lock")
    with pytest.raises(TypeError, match="an argument cannot be sent to another process"):
        env.call("fail", threading.Lock())
    env.step(env.action_space.sample())


@WORKERS
def test_render_returns_pictures_of_all(num_workers: int) -> None:
    make = partial(gymnasium.make, "FrozenLake-v1", render_mode="ansi")
    env = VectorEnv(make, 2, num_workers=num_workers)
    env.reset(seed=0)
    assert env.render_mode == "ansi" and len(env.render()) == 2
    assert all(isinstance(text, str) and text for text in env.render())


@WORKERS
def test_reset_options_go_to_the_environments_that_are_reset(num_workers: int) -> None:
    make = partial(SpaceEnv, "box")
    ours = VectorEnv(make, B, num_workers=num_workers, autoreset_mode=DISABLED)
    theirs = SyncVectorEnv([make] * B, autoreset_mode=DISABLED)
    expected = theirs.reset(seed=1, options={"history": 17})[0]
    assert_same(ours.reset(seed=1, options={"history": 17})[0], expected)
    mask = np.array([True, False, True, False, False])
    options = {"history": 3, "reset_mask": mask}
    assert_same(ours.reset(options=options)[0], theirs.reset(options=dict(options))[0])


@pytest.mark.parametrize(
    ("num_workers", "other_workers", "mode"),
    [(0, 0, NEXT), (0, 0, DISABLED), processes(0, 1, SAME), slow_processes(2, 1, DISABLED)],
)
def test_state_is_restored_here_and_in_another(num_workers, other_workers, mode) -> None:
    make = partial(SpaceEnv, "dict")
    env = VectorEnv(make, B, num_workers=num_workers, autoreset_mode=mode)
    env.action_space.seed(1)
    observation, _ = env.reset(seed=7)

    def play(env: VectorEnv, actions: list[Any]) -> list[Any]:
        results = []
        for action in actions:
            *values, _ = env.step(action)
            results.append(values)
            done = values[2] | values[3]
            if mode is DISABLED and done.any():
                results.append(env.reset(options={"reset_mask": done})[0])
        return results

    actions = [env.action_space.sample() for _ in range(16)]
    play(env, actions[:8])
    state = env.get_state()
    expected = play(env, actions[8:])
    observation = env.set_state(state)
    assert_same(play(env, actions[8:]), expected)
    env.close()
    other = VectorEnv(make, B, num_workers=other_workers, autoreset_mode=mode)
    assert_same(other.set_state(state), observation)
    assert_same(play(other, actions[8:]), expected)


def test_state_of_environments_that_have_none_is_one_error() -> None:
    env = VectorEnv(ToyEnv, 2, num_workers=0)
    with pytest.raises(SamplerError, match=r"call reset\(\) first"):
        env.get_state()
    env.reset()
    with pytest.raises(TypeError, match="environment toy has no get_state and set_state"):
        env.get_state()
    env.close()
    other = VectorEnv(partial(SpaceEnv, "box"), 3, num_workers=0)
    other.reset(seed=0)
    state = other.get_state()
    other.close()
    env = VectorEnv(partial(SpaceEnv, "box"), 2, num_workers=0)
    with pytest.raises(ValueError, match=r"float32 \[3, 3\]; here they are float32 \[2, 3\]"):
        env.set_state(state)


@pytest.mark.parametrize(("mode", "other"), [(NEXT, SAME), (NEXT, DISABLED), (DISABLED, NEXT)])
def test_state_with_ended_episodes_is_for_the_same_autoreset_mode(mode, other) -> None:
    """Elsewhere these environments would never step again."""
    make = partial(VectorEnv, "catch", 2, num_workers=0)
    env = make(autoreset_mode=mode)
    env.reset(seed=0)
    while not env.step(np.ones(2, np.int64))[2].any():
        pass
    with pytest.raises(ValueError, match=f"another autoreset_mode than {other.value}"):
        make(autoreset_mode=other).set_state(env.get_state())


# ---- other libraries -----------------------------------------------------------------------------
