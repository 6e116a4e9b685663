"""Every game builds and steps, and where starts are saved, they are those that resets give."""

from typing import Any

import numpy as np
import pytest
from tiers import in_tiers

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


def random_play(game: str, num_steps: int, *, is_saved: bool, **options: Any) -> list[Any]:
    """All that an observer sees: observations and results, resets included."""
    env = AtariEnv(game, AtariConfig(**options))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(atari, "starts_are_identical", lambda *_: is_saved)
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


@pytest.mark.parametrize(
    "game", in_tiers(IDENTICAL, "breakout", "pong ms_pacman space_invaders skiing")
)
def test_play_with_saved_starts_equals_play_with_resets(game: str) -> None:
    """Few kinds of start and short games, so that saved ones come up often."""
    options = {"max_noops": 2, "max_episode_steps": 10}
    plays = [random_play(game, 80, is_saved=each, **options) for each in (True, False)]
    assert plays[0] == plays[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_steps", "options"),
    [
        (60, {"sticky_actions": 0.25, "max_noops": 1, "max_episode_steps": 8}),
        (60, {"observation_size": "84x84", "max_noops": 1, "max_episode_steps": 8}),
        (900, {"max_noops": 0}),
    ],
    ids=["sticky", "84x84", "whole games"],
)
def test_saved_starts_equal_resets_for_other_protocols(
    num_steps: int, options: dict[str, Any]
) -> None:
    plays = [random_play("breakout", num_steps, is_saved=each, **options) for each in (True, False)]
    assert plays[0] == plays[1]


@pytest.mark.parametrize(
    "game", in_tiers(DIFFERENT, "seaquest", "berzerk elevator_action haunted_house tic_tac_toe_3d")
)
def test_starts_that_differ_are_found_out_and_the_game_steps(game: str) -> None:
    assert not starts_are_identical(game, start_presses(game))
    assert game != "time_pilot" or not starts_are_identical(game, ())
    random_play(game, 5, is_saved=False)


@pytest.mark.slow
@pytest.mark.parametrize("game", ["breakout", "pong", "space_invaders", "ms_pacman"])
def test_starts_that_are_identical_are_recognised(game: str) -> None:
    assert starts_are_identical(game, start_presses(game))


@pytest.mark.parametrize(
    ("game", "num_saved"),
    [("breakout", 6), ("seaquest", 0)],
)
def test_one_start_is_saved_for_each_number_of_noops_where_all_are_identical(
    game: str, num_saved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atari, "starts_are_identical", lambda game, _: game not in DIFFERENT)
    env = AtariEnv(game, AtariConfig(max_noops=5))
    env.seed(np.random.SeedSequence(0))
    frames = [start.state.getEpisodeFrameNumber() for start in env._saved_starts]
    assert np.diff(frames).tolist() == [1] * (num_saved - 1)
