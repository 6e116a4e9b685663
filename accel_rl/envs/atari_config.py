"""How Atari games are played. Loads no emulator, so that configurations stay light."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from accel_rl.settings import check_settings, option

_MOST_FRAMES = 1_000  # of one step, stack or start; far beyond what any paper does
SIZES = {"104x80": (104, 80), "84x84": (84, 84)}  # rows, columns


@dataclass(frozen=True, kw_only=True)
class AtariConfig:
    """The protocol in which an Atari game is played; the default is the first paper's.

    Raises:
        ValueError: a value is out of range.
    """

    observation_size: Literal["104x80", "84x84"] = "104x80"
    """rows x columns; 104x80: two rows cropped, then 2x2 means; 84x84: area means of the whole
    screen"""
    frame_skip: int = option(4, common=True)
    """emulator frames for which an action is held, one step"""
    frame_stack: int = 4
    """newest frames in an observation, oldest first"""
    max_noops: int = 30
    """a game starts with 0 to so many no-ops, one frame each, uniformly drawn"""
    press_fire: bool = True
    """press NOOP, then FIRE and UP if the game has them, at a start and after a lost life"""
    episodic_lives: bool = option(True, common=True)
    """a lost life is the end of an episode for the learner; false: whole games"""
    clip_reward: bool = True
    """the learner sees the sign of the reward; false: the game's own"""
    full_action_set: bool = False
    """all 18 actions in every game; false: those that do something in it"""
    sticky_actions: float = 0.0
    """probability that a frame repeats the frame before's action; 0.25 in Machado et al. 2018"""
    max_episode_steps: int = 27_000
    """steps after which a game is truncated; 27,000 are 30 minutes of play at 4 frames a step"""
    cached_starts: Literal["auto", "off"] = option("auto", "engine")
    """auto: where a game's starts are all alike, restore saved ones, which is faster and the
    same"""

    def __post_init__(self) -> None:
        check_settings(self)
        for name in ("frame_skip", "frame_stack", "max_episode_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.max_noops < 0:
            raise ValueError(f"max_noops is {self.max_noops}; it must be at least 0")
        for name in ("frame_skip", "frame_stack", "max_noops"):
            if getattr(self, name) > _MOST_FRAMES:
                raise ValueError(
                    f"{name} is {getattr(self, name)}; it must be at most {_MOST_FRAMES} frames"
                )
        if not 0 <= self.sticky_actions < 1:
            raise ValueError(
                f"sticky_actions is {self.sticky_actions}; it must be a probability below 1 "
                f"(0: none)"
            )
