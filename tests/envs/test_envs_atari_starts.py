"""Every game builds and steps, and where starts are saved, they are those that resets give."""

from typing import Any

import numpy as np
import pytest

from accel_rl.envs import AtariConfig, atari
from accel_rl.envs.atari import AtariEnv
from accel_rl.envs.atari_games import atari_games, game_facts
from accel_rl.envs.atari_starts import starts_are_identical

# Games whose starts differ, found in 120 starts of each of the 104, in 6 emulators. Berzerk's
# differ only in memory, elevator_action's after some frames, haunted_house's with some seeds,
# tic_tac_toe_3d's after hundreds of frames.
DIFFERENT = (
    "assault backgammon beam_rider berzerk boxing chopper_command demon_attack elevator_action "
    "fishing_derby freeway frostbite hangman haunted_house hero ice_hockey kaboom krull "
    "kung_fu_master miniature_golf pitfall2 pooyan private_eye seaquest sir_lancelot solaris "
    "space_war surround tennis tic_tac_toe_3d time_pilot yars_revenge"
).split()
IDENTICAL = [game for game in atari_games() if game not in DIFFERENT]


def start_presses(game: str) -> tuple[int, ...]:
    """NOOP, FIRE, UP as far as the game has them."""
    return tuple(code for code in (0, 1, 2) if code in game_facts(game).minimal_actions)


def random_play(game: str, cached_starts: str, num_steps: int, **options: Any) -> list[Any]:
    """All that an observer sees: observations and results, resets included."""
    config = AtariConfig(cached_starts=cached_starts, **options)  # type: ignore[arg-type]
    env = AtariEnv(game, config)
    env.seed(np.random.SeedSequence(1))
    out = np.zeros(env.spec.observation_shape, np.uint8)
    env.reset(out)
    seen: list[Any] = [out.tobytes()]
    for action in np.random.default_rng(2).integers(env.spec.num_actions, size=num_steps):
        result = env.step(int(action), out)
        seen += [result, out.tobytes()]
        if result.episode_ended:
            env.reset(out)
            seen.append(out.tobytes())
    return seen


@pytest.mark.parametrize("game", IDENTICAL)
def test_play_with_saved_starts_equals_play_with_resets(
    game: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few kinds of start and short games, so that saved ones come up often."""
    monkeypatch.setattr(atari, "starts_are_identical", lambda game, presses: True)  # saves 0.6 s
    options = {"max_noops": 2, "max_episode_steps": 10}
    assert random_play(game, "auto", 120, **options) == random_play(game, "off", 120, **options)


@pytest.mark.parametrize("game", DIFFERENT)
def test_starts_that_differ_are_found_out_and_the_game_steps(game: str) -> None:
    assert not starts_are_identical(game, start_presses(game))
    random_play(game, "auto", 5)


def test_starts_of_time_pilot_differ_without_presses_too() -> None:
    assert not starts_are_identical("time_pilot", ())


@pytest.mark.parametrize("game", ["breakout", "pong", "space_invaders", "ms_pacman"])
def test_starts_that_are_identical_are_recognised(game: str) -> None:
    assert starts_are_identical(game, start_presses(game))


@pytest.mark.parametrize("options", [{"sticky_actions": 0.25}, {"observation_size": "84x84"}])
def test_saved_starts_equal_resets_for_other_protocols(options: dict[str, Any]) -> None:
    options |= {"max_noops": 1, "max_episode_steps": 8}
    assert random_play("breakout", "auto", 60, **options) == random_play(
        "breakout", "off", 60, **options
    )


def test_whole_game_from_a_saved_start_equals_one_from_a_reset() -> None:
    options = {"max_noops": 0}
    assert random_play("breakout", "auto", 900, **options) == random_play(
        "breakout", "off", 900, **options
    )


def test_one_start_is_saved_for_each_number_of_noops() -> None:
    env = AtariEnv("breakout", AtariConfig(max_noops=5))
    env.seed(np.random.SeedSequence(0))
    frames = [start.state.getEpisodeFrameNumber() for start in env._saved_starts]
    assert np.diff(frames).tolist() == [1] * 5


def test_no_start_is_saved_where_starts_differ_or_saving_is_off() -> None:
    for game, cached_starts in (("seaquest", "auto"), ("breakout", "off")):
        env = AtariEnv(game, AtariConfig(cached_starts=cached_starts))  # type: ignore[arg-type]
        env.seed(np.random.SeedSequence(0))
        assert not env._saved_starts
