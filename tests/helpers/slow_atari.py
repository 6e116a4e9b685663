"""The Atari protocol once more, slowly: whole grey screens, NumPy loops, ordinary resets.

What `accel_rl.envs.atari` must agree with; written from the protocol, on nothing of its code.
"""

import functools
from typing import Any

import ale_py
import numpy as np
from ale_py import roms
from numpy.typing import NDArray

from accel_rl.envs import AtariConfig, StepResult

NOOP, FIRE, UP = 0, 1, 2


class SlowAtari:
    def __init__(self, game: str, config: AtariConfig, seed: np.random.SeedSequence) -> None:
        self.config = config
        self.rng = np.random.default_rng(seed)
        self.ale = ale_py.ALEInterface()
        self.ale.setInt("system_random_seed", int(seed.generate_state(1)[0]) // 2)
        self.ale.setFloat("repeat_action_probability", 0.0)
        self.ale.loadROM(roms.get_rom_path(game))
        minimal = [action.value for action in self.ale.getMinimalActionSet()]
        self.codes = list(range(18)) if config.full_action_set else minimal
        self.presses = [NOOP]
        if FIRE in minimal:
            self.presses.append(FIRE)
        if UP in minimal:
            self.presses.append(UP)
        if not config.press_fire:
            self.presses = []

    def reset(self) -> NDArray[np.uint8]:
        self.ale.reset_game()
        for code in self.presses:
            self.ale.act(code)
        for _ in range(self.rng.integers(0, self.config.max_noops, endpoint=True)):
            self.ale.act(NOOP)
        self.lives = self.ale.lives()
        self.num_steps = 0
        self.pressed = NOOP
        self.frames: list[NDArray[np.uint8]] = []
        return self.push(self.grey())

    def step(self, action: int) -> tuple[NDArray[np.uint8], StepResult]:
        config = self.config
        score = 0
        screens = []
        for _ in range(config.frame_skip):
            if not (config.sticky_actions and self.rng.random() < config.sticky_actions):
                self.pressed = self.codes[action]
            score += self.ale.act(self.pressed)
            screens.append(self.grey())
        lost_life = 0 < self.ale.lives() < self.lives
        if lost_life:
            for code in self.presses:
                self.ale.act(code)
            self.pressed = NOOP
        self.lives = self.ale.lives()
        self.num_steps += 1
        if lost_life and config.episodic_lives:
            self.frames = []
            observation = self.push(self.grey())
        else:
            observation = self.push(np.max(screens[-2:], axis=0))
        game_over = self.ale.game_over()
        at_limit = self.num_steps == config.max_episode_steps
        terminated = game_over or (lost_life and config.episodic_lives)
        return observation, StepResult(
            reward=float(np.sign(score)) if config.clip_reward else float(score),
            raw_reward=float(score),
            terminated=terminated,
            truncated=at_limit and not terminated,
            episode_ended=game_over or at_limit,
        )

    def grey(self) -> NDArray[np.uint8]:
        return self.ale.getScreenGrayscale()

    def push(self, screen: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Frames come as exact real numbers: [frame_stack, rows, columns] float64."""
        if self.config.observation_size == "84x84":
            frame = resample(screen, overlaps(84, len(screen)), overlaps(84, 160))
        elif len(screen) == 210:
            cropped = screen[:-2].astype(float)
            frame = np.zeros((104, 80))
            for dy in (0, 1):
                for dx in (0, 1):
                    frame += cropped[dy::2, dx::2] / 4
        else:
            frame = resample(screen[:-2], between(104, len(screen) - 2), between(80, 160))
        self.frames.append(frame)
        blank = [np.zeros_like(frame)] * self.config.frame_stack
        return np.stack((blank + self.frames)[-self.config.frame_stack :])


def resample(screen: Any, row_weights: Any, column_weights: Any) -> NDArray[np.float64]:
    """Each new row the weighted sum of old ones, then each new column."""
    for weights in (row_weights, column_weights):
        screen = np.stack([sum(w[i] * screen[i] for i in np.flatnonzero(w)) for w in weights]).T
    return screen


@functools.cache
def overlaps(num_new: int, num_old: int) -> NDArray[np.float64]:
    """[num_new, num_old]: which share of each new cell each old cell covers."""
    weights = np.zeros((num_new, num_old))
    scale = num_old / num_new
    for new in range(num_new):
        for old in range(num_old):
            shared = min((new + 1) * scale, old + 1) - max(new * scale, old)
            weights[new, old] = max(shared, 0) / scale
    return weights


@functools.cache
def between(num_new: int, num_old: int) -> NDArray[np.float64]:
    """[num_new, num_old]: linear interpolation at the centre of each new cell."""
    weights = np.zeros((num_new, num_old))
    for new in range(num_new):
        centre = (new + 0.5) * num_old / num_new - 0.5
        below = int(centre)
        weights[new, below] = 1 - (centre - below)
        weights[new, min(below + 1, num_old - 1)] += centre - below
    return weights
