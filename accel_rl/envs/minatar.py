"""The five games of MinAtar: Atari games on a grid of 10 x 10, which are learned in minutes.

Young and Tian 2019 (arXiv:1903.03176). The games are those of the package MinAtar; what is added
here is what its ``Environment`` adds to them.
"""

from __future__ import annotations

import colorsys
import copy
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accel_rl.envs.base import Array, EnvSpec, EnvState, StepResult
from accel_rl.envs.errors import close_names
from accel_rl.spaces import Leaf, discrete
from accel_rl.system.extras import how_to_install

PREFIX = "minatar/"
GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
STICKY_ACTION_PROBABILITY = 0.1
_NUM_ACTIONS = 6
_UNCHANGING = ("action_map", "channels", "ramping", "random")
"""attributes of a game that are no part of its state; its randomness is saved apart"""
_CELL = 16
"""rows and columns of a cell's picture"""


def check_game(env: str) -> str:
    """Return the game that ``env`` names, as in ``minatar/breakout``."""
    game = env.removeprefix(PREFIX)
    if game not in GAMES:
        close = close_names(game, list(GAMES))
        raise ValueError(
            f"env={env} is no game of MinAtar{close and f'; did you mean {close}?'}; they are "
            f"{', '.join(PREFIX + each for each in GAMES)}"
        )
    if importlib.util.find_spec("minatar") is None:
        raise ValueError(
            f"env={env} needs MinAtar, which is not installed: {how_to_install('minatar')}"
        )
    return game


class MinAtarEnv:
    """A game with sticky actions and a difficulty that rises, as its authors play it.

    Observations: ``[channels, 10, 10]`` uint8, 255 where a cell holds what the channel stands for,
    else 0. Actions: the same six in each game (nothing, left, up, right, down, fire); some do
    nothing. With a probability of 0.1 the action before is taken instead.
    """

    def __init__(self, game: str) -> None:
        self._game = _load(game).Env(ramping=True)
        rows, columns, channels = self._game.state_shape()
        self.spec = EnvSpec(
            name=PREFIX + game,
            observation=Leaf((channels, rows, columns), np.dtype(np.uint8), channels="first"),
            action=discrete(_NUM_ACTIONS),
        )
        self._last_action = 0

    def seed(self, seed: np.random.SeedSequence) -> None:
        self._rng = np.random.RandomState(np.random.MT19937(seed))
        self._game.random = self._rng

    def reset(self, out: Array) -> None:
        self._game.reset()
        self._observe(out)

    def step(self, action: int, out: Array) -> StepResult:
        if self._rng.rand() >= STICKY_ACTION_PROBABILITY:
            self._last_action = action
        reward, terminated = self._game.act(self._last_action)
        self._observe(out)
        return StepResult(float(reward), float(reward), terminated, False, terminated)

    def close(self) -> None:
        """Nothing to do."""

    def get_state(self) -> EnvState:
        game = {k: v for k, v in vars(self._game).items() if k not in _UNCHANGING}
        return {
            "rng": self._rng.get_state(legacy=False),
            "game": copy.deepcopy(game),
            "last_action": self._last_action,
        }

    def set_state(self, state: EnvState) -> None:
        self._rng.set_state(state["rng"])
        vars(self._game).update(copy.deepcopy(state["game"]))
        self._last_action = state["last_action"]

    def picture(self) -> NDArray[np.uint8]:
        """Return the grid for a film, ``[160, 160, 3]`` RGB: a colour for each channel."""
        cells = self._game.state()  # [10, 10, channels]
        channels = cells.shape[2]
        colours = np.zeros((channels + 1, 3))
        colours[1:] = [colorsys.hsv_to_rgb(each / channels, 0.6, 1) for each in range(channels)]
        number = (cells * np.arange(1, channels + 1)).max(2)  # the last channel of a cell is shown
        small: NDArray[np.uint8] = (colours[number] * 255).astype(np.uint8)
        return small.repeat(_CELL, 0).repeat(_CELL, 1)

    def _observe(self, out: Array) -> None:
        np.multiply(self._game.state().transpose(2, 0, 1), np.uint8(255), out=out)


def _load(game: str) -> Any:
    """The module of a game, without the package: that one imports pyplot and seaborn."""
    package = importlib.util.find_spec("minatar")
    assert package is not None and package.origin is not None, "check_game comes first"
    path = Path(package.origin).parent / "environments" / f"{game}.py"
    spec = importlib.util.spec_from_file_location(f"minatar_{game}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
