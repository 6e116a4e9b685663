"""Games of MinAtar; they need the extra ``minatar``, but for what is said without it."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from accel_rl.envs import make_env_factory
from accel_rl.envs.atari_config import AtariConfig
from accel_rl.envs.base import StepResult, is_resumable
from accel_rl.envs.minatar import GAMES, MinAtarEnv
from accel_rl.tools.play import make_shown_env

needs_minatar = pytest.mark.skipif(
    importlib.util.find_spec("minatar") is None,
    reason='needs MinAtar: pip install "accel_rl[minatar]"',
)


def test_missing_package_and_info_keys_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="has no info"):
        make_env_factory("minatar/breakout", info_keys=["lives"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"MinAtar.*accel_rl\[minatar\]"):
        make_env_factory("minatar/breakout")


@needs_minatar
@pytest.mark.parametrize("game", GAMES)
def test_steps_are_those_of_the_package(game: str) -> None:
    env = MinAtarEnv(game)
    env.seed(np.random.SeedSequence(5))
    theirs = pytest.importorskip("minatar").Environment(game)
    theirs.random = theirs.env.random = np.random.RandomState(
        np.random.MT19937(np.random.SeedSequence(5))
    )
    out = np.empty(env.spec.observation_shape, np.uint8)
    env.reset(out)
    theirs.reset()
    rng = np.random.default_rng(1)
    rewards = 0.0
    for _ in range(2_000):
        np.testing.assert_array_equal(out, 255 * theirs.state().transpose(2, 0, 1))
        action = int(rng.integers(6))
        result = env.step(action, out)
        reward, ended = theirs.act(action)
        assert result == StepResult(reward, reward, ended, False, ended)
        rewards += reward
        if ended:
            env.reset(out)
            theirs.reset()
    assert rewards > 0 or game == "freeway"


@needs_minatar
@pytest.mark.parametrize("game", GAMES)
def test_restored_game_goes_on_as_the_other(game: str) -> None:
    first, second = MinAtarEnv(game), MinAtarEnv(game)
    assert is_resumable(first)
    out, restored = np.empty((2, *first.spec.observation_shape), np.uint8)
    first.seed(np.random.SeedSequence(1))
    second.seed(np.random.SeedSequence(2))
    first.reset(out)
    rng = np.random.default_rng(0)
    for _ in range(30):
        if first.step(int(rng.integers(6)), out).episode_ended:
            first.reset(out)
    second.set_state(first.get_state())
    for _ in range(300):
        action = int(rng.integers(6))
        result = first.step(action, out)
        assert result == second.step(action, restored)
        np.testing.assert_array_equal(out, restored)
        if result.episode_ended:
            first.reset(out)
            second.reset(restored)


@needs_minatar
def test_film_shows_each_channel_in_its_colour() -> None:
    env, _, look = make_shown_env("minatar/breakout", AtariConfig())
    env.seed(np.random.SeedSequence(0))
    out = np.empty(env.spec.observation_shape, np.uint8)
    env.reset(out)
    pictures = look(out)
    env.step(0, out)
    pictures += look(out)
    assert [picture.shape for picture in pictures] == [(160, 160, 3)] * 2
    held = out.any(0)
    for row, column in np.ndindex(10, 10):
        cell = pictures[1][16 * row : 16 * row + 16, 16 * column : 16 * column + 16]
        assert (cell == cell[0, 0]).all()
        assert cell.any() == held[row, column]
    bricks, paddle = pictures[1][16], pictures[1][-1]
    assert not np.array_equal(np.unique(bricks.reshape(-1, 3), axis=0)[-1], paddle.max(0))
