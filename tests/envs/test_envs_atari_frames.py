"""The fast frame pipeline and protocol against `slow_atari`, on real games and for all options."""

import threading
from typing import Any

import cv2
import numpy as np
import pytest
from slow_atari import SlowAtari
from tiers import in_tiers

from accel_rl.envs import AtariConfig, atari
from accel_rl.envs.atari import AtariEnv
from accel_rl.envs.atari_games import atari_games, game_facts, load_emulator
from accel_rl.envs.atari_screen import NTSC_GREY, Screen, shows_ntsc_colours

SEED = 11
GAMES = ("space_invaders", "carnival", "king_kong")

# game, options, steps. Carnival is 214 rows high, journey_escape 230, pooyan 220; the others whose
# screens are not 210 high have 250 and another palette (PAL). The first is quick.
CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "flicker": ("space_invaders", {"sticky_actions": 0.25, "max_episode_steps": 20}, 45),
    "sticky": ("breakout", {"sticky_actions": 0.25}, 250),
    "default": ("breakout", {}, 400),
    "no-lives": ("pong", {}, 100),
    "up-to-start": ("ms_pacman", {}, 150),
    "starts-differ": ("seaquest", {"max_episode_steps": 20}, 150),
    "84x84": ("breakout", {"observation_size": "84x84"}, 250),
    "84x84-busy": ("atlantis", {"observation_size": "84x84"}, 100),
    "whole-games": ("breakout", {"episodic_lives": False}, 400),
    "own-reward": ("space_invaders", {"clip_reward": False}, 150),
    "full-actions": ("breakout", {"full_action_set": True}, 200),
    "sticky-one-frame": ("breakout", {"sticky_actions": 0.5, "frame_skip": 1}, 200),
    "no-noops": ("space_invaders", {"max_noops": 0, "max_episode_steps": 20}, 45),
    "no-fire": ("breakout", {"press_fire": False}, 150),
    "one-frame": ("space_invaders", {"frame_skip": 1}, 150),
    "two-frames": ("space_invaders", {"frame_skip": 2}, 150),
    "single": ("breakout", {"frame_stack": 1}, 150),
    "long-stack": ("breakout", {"frame_stack": 7}, 150),
    "214-rows": ("carnival", {}, 100),
    "220-rows": ("pooyan", {}, 100),
    "230-rows": ("journey_escape", {}, 100),
    "250-rows": ("air_raid", {}, 100),
    "250-rows-84x84": ("king_kong", {"observation_size": "84x84"}, 100),
}


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=[pytest.mark.slow] * (i > 0)) for i, name in enumerate(CASES)]
)
def test_atari_random_play_equals_slow_reference(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    game, options, num_steps = CASES[case]
    # Looked at in test_envs_atari_starts.py; it takes 0.6 s for a game.
    monkeypatch.setattr(atari, "starts_are_identical", lambda game, _: game not in _STARTS_DIFFER)
    config = AtariConfig(**options)
    env = AtariEnv(game, config)
    env.seed(np.random.SeedSequence(SEED))
    slow = SlowAtari(game, config, np.random.SeedSequence(SEED))
    exact = config.observation_size == "104x80" and slow.grey().shape == (210, 160)
    out = np.full(env.spec.observation_shape, 77, np.uint8)
    env.reset(out)
    assert_frames_equal(out, slow.reset(), exact)
    for action in np.random.default_rng(SEED).integers(env.spec.num_actions, size=num_steps):
        result = env.step(int(action), out)
        observation, expected = slow.step(int(action))
        assert result == expected
        assert_frames_equal(out, observation, exact)
        if result.episode_ended:
            env.reset(out)
            assert_frames_equal(out, slow.reset(), exact)


_STARTS_DIFFER = {"seaquest", "pooyan"}


def assert_frames_equal(found: Any, expected: Any, exact: bool) -> None:
    """The 2 x 2 mean is rounded half up; OpenCV's other reductions compute in fixed point."""
    assert found.shape == expected.shape
    if exact:
        np.testing.assert_array_equal(found, np.floor(expected + 0.5))
    else:
        assert np.abs(found - expected).max() <= 1.0
        assert np.abs(found - expected).mean() <= 0.3


@pytest.mark.parametrize("game", in_tiers(GAMES, "space_invaders", "carnival king_kong"))
@pytest.mark.parametrize("size", [pytest.param("104x80", marks=pytest.mark.slow), "84x84"])
def test_atari_frame_equals_reduction_of_whole_screen(game: str, size: str, monkeypatch) -> None:
    """Only rows that changed are reduced again: that must not be seen, to the last bit."""
    monkeypatch.setattr(atari, "starts_are_identical", lambda *_: False)
    config = AtariConfig(observation_size=size, frame_stack=1)  # type: ignore[arg-type]
    env = AtariEnv(game, config)
    env.seed(np.random.SeedSequence(SEED))
    slow = SlowAtari(game, config, np.random.SeedSequence(SEED))
    out = np.zeros(env.spec.observation_shape, np.uint8)
    env.reset(out)
    slow.reset()
    for action in np.random.default_rng(SEED).integers(env.spec.num_actions, size=60).tolist():
        env.step(action, out)
        for _ in range(3):
            slow.ale.act(slow.codes[action])
        third = slow.grey()
        slow.ale.act(slow.codes[action])
        pooled = np.maximum(third, slow.grey())
        if size == "84x84":
            frame = cv2.resize(pooled, (84, 84), interpolation=cv2.INTER_AREA)
        else:
            frame = cv2.resize(pooled[:-2], (80, 104), interpolation=cv2.INTER_LINEAR)
        if slow.ale.lives() != slow.lives:
            break
        np.testing.assert_array_equal(out[0], frame)


@pytest.mark.parametrize(
    "game", in_tiers(atari_games(), "pong", "breakout carnival king_kong pooyan seaquest")
)
def test_grey_levels_of_ntsc_games_are_the_emulators(game: str) -> None:
    """The palette table against the emulator; PAL games are those 250 rows high."""
    emulator = load_emulator(game, seed=0)
    is_ntsc = game_facts(game).is_ntsc
    assert is_ntsc == (emulator.getScreenDims()[0] != 250)
    actions = np.random.default_rng(SEED).choice(game_facts(game).minimal_actions, 200)
    for action in actions.tolist():
        emulator.act(action)
        if emulator.game_over():
            emulator.reset_game()
        assert shows_ntsc_colours(emulator) or not is_ntsc


def test_ntsc_table_has_a_level_for_every_colour() -> None:
    """From black to the brightest, white; an odd index is as the even one before it."""
    assert NTSC_GREY.shape == (256,)
    assert NTSC_GREY.min() == NTSC_GREY[0] == 0
    assert NTSC_GREY.max() == NTSC_GREY[14] == 236
    np.testing.assert_array_equal(NTSC_GREY[::2], NTSC_GREY[1::2])


def test_screens_of_two_threads_do_not_mix() -> None:
    """Held screens lie in buffers of the thread, not of the environment."""
    screens, outs = [], []
    for game in ("breakout", "space_invaders"):
        emulator = load_emulator(game, seed=0)
        emulator.act(0)
        screens.append(Screen(emulator, "104x80", 1, is_ntsc=True))
        outs.append(np.zeros((1, 104, 80), np.uint8))
    expected = [screen.frame_alone() for screen in screens]

    def push_other() -> None:
        screens[1].hold()
        screens[1].push(outs[1])

    screens[0].hold()
    thread = threading.Thread(target=push_other)
    thread.start()
    thread.join()
    screens[0].push(outs[0])
    for out, frame in zip(outs, expected, strict=True):
        np.testing.assert_array_equal(out[0], frame)
