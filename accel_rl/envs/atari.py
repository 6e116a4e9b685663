"""Atari games on the emulator itself, by default in the first paper's protocol.

That protocol (Stooke and Abbeel 2018, arXiv 1803.02811, and their code): minimal action set, no
sticky actions, an action held for four frames, the maximum of the last two as grey levels, 104 x
80, a stack of four; a game starts with NOOP, FIRE and UP and 0 to 30 no-ops, one frame each; the
learner sees the sign of the reward, and a lost life as the end of an episode, although the game
goes on; 27,000 steps at most. `AtariConfig` has the other common protocols.

Decisions, where sources differ or are silent:

- FIRE and UP are pressed where the *minimal* action set has them, also when the full one is played.
- A lost life is one after which some are left, also if it was won on the way; in their code one
  that was won is not counted, and to lose it again ends nothing.
- The presses that follow, like those of a start, are no action of the agent: their reward is
  discarded, and they are neither repeated by sticky actions nor do they stick.
- Where lives are no episodes the presses after a lost life stay (as in the original), and the stack
  goes on.
- Game over is looked at once a step, after all its frames. The emulator ignores actions after the
  end.
- With a frame skip of 1 a frame is its screen alone; there is no second one in the step to take the
  maximum with.
- A step that loses a life at the time limit is `terminated`, not `truncated`: there is nothing to
  bootstrap from.
- Sticky actions are drawn frame by frame from the environment's own generator; the emulator's own
  are off, because a saved emulator state does not carry them.
"""

from __future__ import annotations

import ale_py
import numpy as np

from accel_rl.envs.atari_config import SIZES, AtariConfig
from accel_rl.envs.atari_games import FIRE, NOOP, UP, check_game, game_facts, load_emulator
from accel_rl.envs.atari_screen import Screen
from accel_rl.envs.atari_starts import SavedStart, save_starts, start_game, starts_are_identical
from accel_rl.envs.base import Array, EnvSpec, EnvState, StepResult
from accel_rl.spaces import Leaf, discrete

_NOTHING = StepResult(0.0, 0.0, False, False, False)  # most steps


class AtariEnv:
    """One Atari game. Observations: ``[frame_stack, rows, columns]`` uint8."""

    def __init__(self, game: str, config: AtariConfig) -> None:
        check_game(game)
        self._game, self._config = game, config
        facts = game_facts(game)
        self._is_ntsc = facts.is_ntsc
        self._codes = facts.legal_actions if config.full_action_set else facts.minimal_actions
        # What each action presses: in all frames of a step but the last, and in the last.
        self._presses = [((code,) * (config.frame_skip - 1), code) for code in self._codes]
        buttons = [code for code in (FIRE, UP) if code in facts.minimal_actions]
        self._start_presses = (NOOP, *buttons) if config.press_fire else ()
        self._spec = EnvSpec(
            name=game,
            observation=Leaf(
                (config.frame_stack, *SIZES[config.observation_size]), np.dtype(np.uint8)
            ),
            action=discrete(len(self._codes)),
            frame_skip=config.frame_skip,
            frame_stack=config.frame_stack,
        )
        self._is_sticky = config.sticky_actions > 0
        self._clips_reward = config.clip_reward
        self._max_steps = config.max_episode_steps

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    def seed(self, seed: np.random.SeedSequence) -> None:
        """Seed the environment's generator and the emulator, which loads its ROM again (70 ms)."""
        self._rng = np.random.default_rng(seed)
        self._load(int(seed.generate_state(1)[0]) >> 1)

    def _load(self, emulator_seed: int) -> None:
        config = self._config
        self._emulator_seed = emulator_seed
        self._emulator = load_emulator(self._game, emulator_seed)
        self._act = self._emulator.act
        self._get_lives = self._emulator.lives
        self._is_over = self._emulator.game_over
        self._screen = Screen(
            self._emulator, config.observation_size, config.frame_stack, self._is_ntsc
        )
        self._saved_starts: list[SavedStart] = []  # by number of no-ops; empty: none are used
        if starts_are_identical(self._game, self._start_presses):
            self._saved_starts = save_starts(
                self._emulator, self._screen, self._start_presses, config.max_noops
            )

    def reset(self, out: Array) -> None:
        num_noops = int(self._rng.integers(self._config.max_noops + 1))
        screen = self._screen
        screen.blank()
        if self._saved_starts:
            start = self._saved_starts[num_noops]
            self._emulator.restoreState(start.state)
            screen.push_frame(start.frame, out)
        else:
            start_game(self._emulator, self._start_presses, num_noops)
            screen.push_frame(screen.frame_alone(), out)
        self._lives = self._get_lives()
        self._num_steps = 0
        self._last_code = NOOP

    def step(self, action: int, out: Array) -> StepResult:
        screen, act = self._screen, self._act
        early, last = self._stick(action) if self._is_sticky else self._presses[action]
        score = 0
        if early:
            for code in early:
                score += act(code)
            screen.hold()
            score += act(last)
        else:
            score = act(last)
            screen.hold()
        screen.push(out)  # before other screens come
        lost_life = False
        if self._get_lives() != self._lives:
            lost_life = self._change_lives()
        self._num_steps += 1
        terminated = is_over = self._is_over()
        if lost_life and self._config.episodic_lives:
            terminated = True
            screen.blank()
            screen.push_frame(screen.frame_alone(), out)
        at_limit = self._num_steps >= self._max_steps
        if not (score or terminated or at_limit):
            return _NOTHING
        reward = float((score > 0) - (score < 0)) if self._clips_reward else float(score)
        return StepResult(
            reward, float(score), terminated, at_limit and not terminated, is_over or at_limit
        )

    def close(self) -> None:
        """Nothing to do: the emulator goes with the object."""

    def get_state(self) -> EnvState:
        """The emulator with its timer, the screens, the generator and the counts."""
        return {
            "emulator": self._emulator.cloneState(include_rng=True).serialize(),
            "emulator_seed": self._emulator_seed,
            "screen": self._screen.get_state(),
            "rng": self._rng.bit_generator.state,
            "counts": [self._lives, self._num_steps, self._last_code],
        }

    def set_state(self, state: EnvState) -> None:
        self._rng.bit_generator.state = state["rng"]
        if state["emulator_seed"] != self._emulator_seed:  # what resets give may depend on it
            self._load(state["emulator_seed"])
        # An emulator that never took a frame draws other pixels after it is restored, in two games.
        self._act(NOOP)
        self._emulator.restoreState(ale_py.ALEState(state["emulator"]))
        self._screen.set_state(state["screen"])
        self._lives, self._num_steps, self._last_code = state["counts"]

    def _change_lives(self) -> bool:
        """Press the buttons if a life was lost; return whether one was. Lives may also be won."""
        num_lives = self._get_lives()
        lost_life = 0 < num_lives < self._lives
        if lost_life:
            for code in self._start_presses:
                self._act(code)
            self._last_code = NOOP
            num_lives = self._get_lives()
        self._lives = num_lives
        return lost_life

    def _stick(self, action: int) -> tuple[list[int], int]:
        """Return the buttons of each frame: the action, or those of the frame before."""
        code, last_code = self._codes[action], self._last_code
        codes = []
        for draw in self._rng.random(self._config.frame_skip).tolist():
            if draw >= self._config.sticky_actions:
                last_code = code
            codes.append(last_code)
        self._last_code = last_code
        return codes[:-1], last_code
