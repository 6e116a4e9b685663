"""The options of Atari games. Loads no emulator, so that configurations stay light."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from accel_rl.options import check_settings, option, require

SIZES = {"104x80": (104, 80), "84x84": (84, 84)}  # rows, columns


@dataclass(frozen=True, kw_only=True)
class AtariConfig:
    """The protocol of an Atari game. The defaults are those of Stooke and Abbeel (2018).

    Raises:
        ValueError: a value is out of range.
    """

    observation_size: Literal["104x80", "84x84"] = "104x80"
    """Rows x columns of a frame.
    104x80: two rows are cropped, then 2x2 means are taken. 84x84: area means of the whole
    screen."""
    frame_skip: int = option(4, common=True)
    """Emulator frames in one step, for which the action is held."""
    frame_stack: int = 4
    """Number of newest frames in an observation, the oldest first."""
    max_noops: int = 30
    """Maximum number of no-ops at the start of a game, one frame each, drawn uniformly."""
    press_fire: bool = True
    """Press NOOP, then FIRE and UP if the game has them, at each start and each lost life."""
    episodic_lives: bool = option(True, common=True)
    """Whether a lost life ends the episode for the learner. false: whole games."""
    clip_reward: bool = True
    """Whether the learner sees only the sign of the reward. false: the reward of the game."""
    full_action_set: bool = False
    """Whether all 18 actions are used in every game.
    false: only actions that have an effect in the game."""
    sticky_actions: float = 0.0
    """Probability that a frame repeats the action of the frame before.
    Machado et al. 2018 use 0.25."""
    max_episode_steps: int = 27_000
    """Steps after which a game is truncated.
    27,000 steps are 30 minutes of play at 4 frames a step."""

    def __post_init__(self) -> None:
        check_settings(self)
        counts = ("frame_skip", "frame_stack", "max_episode_steps")
        require(self, "at least 1", lambda value: value >= 1, *counts)
        require(self, "at least 0", lambda value: value >= 0, "max_noops")
        is_probability = "a probability below 1 (0: none)"
        require(self, is_probability, lambda value: 0 <= value < 1, "sticky_actions")
