"""`SB3VecEnv` against Stable-Baselines3's own vector environment, and under its wrappers."""

import sys
import threading
from functools import partial
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from echo_env import FIRST, EchoEnv
from space_envs import Pictures
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecFrameStack,
    VecTransposeImage,
)
from tiers import PROCESSES
from toy_envs import ScriptedEnv

import accel_rl.vector
from accel_rl.vector import SB3VecEnv, VectorEnv
from accel_rl.vector.adapters.gymnasium_vector import make_gymnasium_vector

B = 4


def make(env: Any, num_envs: int = B, **options: Any) -> SB3VecEnv:
    options = {"num_workers": 0, "autoreset_mode": "SameStep", **options}
    return SB3VecEnv(VectorEnv(env, num_envs, **options))


@PROCESSES
def test_cart_pole_is_the_same_as_in_their_own_with_the_same_seed() -> None:
    factory = partial(gymnasium.make, "CartPole-v1", max_episode_steps=15)
    ours, theirs = make(factory, num_workers=1), DummyVecEnv([factory] * B)
    rng = np.random.default_rng(0)
    num_truncated = 0
    for seed in (3, None):
        if seed is not None:
            assert ours.seed(seed) == theirs.seed(seed)
        assert np.array_equal(ours.reset(), theirs.reset())
        for _ in range(50):
            actions = rng.integers(2, size=B)
            *got, infos = ours.step(actions)
            *expected, their_infos = theirs.step(actions)
            for a, b in zip(got, expected, strict=True):
                assert np.array_equal(a, b) and a.dtype == b.dtype
            for info, their_info, done in zip(infos, their_infos, got[2], strict=True):
                assert ("terminal_observation" in info) == done
                if done:
                    truncated = info["TimeLimit.truncated"]
                    assert truncated is their_info["TimeLimit.truncated"]
                    num_truncated += truncated
                    a, b = info["terminal_observation"], their_info["terminal_observation"]
                    assert np.array_equal(a, b)
    assert num_truncated > 5


def test_ends_of_each_kind_are_told_as_documented() -> None:
    env = make(partial(ScriptedEnv, ".lt", "c", "b", "."), 1)
    env.reset()
    for expected in (
        ((1, 0, 1), False, False, None, None),
        ((1, 1, 0), True, False, (1, 1, 0), False),  # lost life: the game goes on
        ((2, 0, 0), True, True, (1, 1, 1), False),
        ((3, 0, 0), True, True, (2, 0, 1), True),
        ((4, 0, 0), True, True, (3, 0, 1), False),  # over and cut off at once is no time limit
    ):
        (observation,), (reward,), (done,), (info,) = env.step(np.array([2]))
        assert (reward, info["raw_reward"]) == (2, 102)
        final = info.get("terminal_observation")
        last = None if final is None else tuple(final), info.get("TimeLimit.truncated")
        assert (tuple(observation), bool(done), info["episode_ended"], *last) == expected


def test_their_wrappers_work_over_it() -> None:
    env = VecFrameStack(VecTransposeImage(make(Pictures)), 2)
    assert env.observation_space.shape == (6, 40, 36)
    assert env.reset().shape == (B, 6, 40, 36)
    for _ in range(3):
        observation, _, done, infos = env.step(np.zeros(B, int))
    assert done.all() and not observation[:, :3].any()  # stacks begin anew
    assert all(info["episode"]["r"] == info["episode"]["l"] == 3 for info in infos)
    assert all(info["terminal_observation"].shape == (6, 40, 36) for info in infos)


def test_episode_is_told_at_the_end_of_a_game_with_all_its_lives() -> None:
    """Raw rewards of `ScriptedEnv` are 100 more than the action."""
    games = (["..l.t", "......t"], [".c", "......t", ".c"])
    env = make(lambda env_index: ScriptedEnv(*games[env_index]), 2)
    env.reset()
    told = [env.step(np.array([1, 2]))[3] for _ in range(7)]
    episodes = [(t, each["episode"]) for t in range(7) for each in told[t] if "episode" in each]
    ends = [(t, each["r"], each["l"]) for t, each in episodes]
    assert ends == [(1, 204.0, 2), (4, 505.0, 5)]
    assert "terminal_observation" in told[2][0] and episodes[0][1]["t"] > 0
    env.reset()  # forgets what the episodes had that it cuts off
    *_, infos = [env.step(np.zeros(2, int)) for _ in range(2)][-1]
    assert infos[1]["episode"]["r"] == 200.0
    env.close()


class Masked(gymnasium.Env[Any, Any]):
    """Cannot be pickled; renders; acts by switches; tells a goal."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}
    render_mode = "rgb_array"
    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.MultiBinary(3)

    def __init__(self) -> None:
        self.lock, self.goal = threading.Lock(), 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.goal += 1
        return np.zeros(1, np.float32), {"goal": self.goal}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), float(action.sum()), True, False, {"goal": -self.goal}

    def render(self) -> Any:
        return np.full((4, 4, 3), 7, np.uint8)


def test_what_their_callbacks_and_policies_ask_for_is_there() -> None:
    env = make(Masked, 2, info_keys=["goal"])
    env.reset()
    assert env.reset_infos == [{"goal": 1.0}] * 2
    assert env.has_attr("lock") and not env.has_attr("other")
    assert len(env.get_images()) == 2 and env.render().shape == (8, 4, 3)
    _, reward, _, infos = env.step(np.array([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]], np.float32))
    assert reward.tolist() == [2, 1] and [each["goal"] for each in infos] == [-1, -1]
    assert env.reset_infos == [{"goal": 2.0}] * 2
    with pytest.raises(ValueError, match=r"actions of dtype float64; they must be .* integers"):
        env.step(np.array([[0.9, 0.0, 1.0], [0.0, 0.0, 1.0]]))
    env.close()


def test_batch_counts_as_monitored() -> None:
    env = make(make_gymnasium_vector("CartPole-v1", vectorization_mode="sync"))
    assert env.env_is_wrapped(Monitor) == [True] * B
    env.close()


def test_environments_are_reached_in_their_workers() -> None:
    cart_poles = make("CartPole-v1")
    assert cart_poles.get_attr("spec", indices=[1, 2])[0].id == "CartPole-v1"
    assert cart_poles.get_attr("action_space", 0) == [cart_poles.action_space]
    assert cart_poles.env_is_wrapped(gymnasium.wrappers.TimeLimit, [1]) == [True]
    assert cart_poles.has_attr("gravity") and not cart_poles.has_attr("levity")
    cart_poles.set_attr("gravity", 1.5, indices=[0, 2])
    gravity = cart_poles.get_attr("gravity")
    assert gravity[0] == gravity[2] == 1.5 and gravity[1] == 9.8
    assert cart_poles.get_attr("gravity", indices=-2) == [1.5]
    assert cart_poles.env_method("has_wrapper_attr", "gravity", indices=1) == [True]
    with pytest.raises(AttributeError, match=r"environment 0 .*levity"):
        cart_poles.get_attr("levity")
    limits = [0.01 * (i + 1) for i in range(B)]
    cart_poles.set_options([{"low": each, "high": each} for each in limits])
    assert np.allclose(cart_poles.reset(), np.array(limits)[:, None])
    assert not np.allclose(cart_poles.reset(), 0.01)


@pytest.mark.parametrize(
    ("use", "tokens"),
    [
        ({"autoreset_mode": "NextStep"}, "autoreset_mode.*NEXT_STEP.*SAME_STEP"),
        ({"autoreset_mode": "SameStep", "num_groups": 2}, "num_groups=2"),
        ({"autoreset_mode": "SameStep", "copy": False}, "copy=False"),
        (None, "env is None; .*VectorEnv"),
    ],
)
def test_vector_environment_that_does_not_fit_is_refused(use: Any, tokens: str) -> None:
    env: Any = None if use is None else VectorEnv("catch", B, num_workers=0, **use)
    with pytest.raises(ValueError, match=tokens):
        SB3VecEnv(env)


def test_missing_package_is_named(monkeypatch) -> None:
    for each in [each for each in sys.modules if each.partition(".")[0] == "stable_baselines3"]:
        monkeypatch.setitem(sys.modules, each, None)
    monkeypatch.delitem(sys.modules, "accel_rl.vector.sb3_vec_env")
    message = r'SB3VecEnv needs stable_baselines3.*"accel_rl\[sb3\]"'
    with pytest.raises(ImportError, match=message):
        _ = accel_rl.vector.SB3VecEnv


def test_actions_count_from_0_wherever_the_space_starts() -> None:
    """What their policies give."""
    env = make(EchoEnv, 3)
    assert env.action_space == gymnasium.spaces.Discrete(3)
    env.reset()
    assert env.step(np.arange(3))[1].tolist() == [FIRST, FIRST + 1, FIRST + 2]
    with pytest.raises(ValueError, match=r"got the action 3; actions must be in 0 \.\. 2"):
        env.step(np.arange(1, 4))
