"""Which Atari games there are, and an emulator with one of them loaded."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NamedTuple

import ale_py
import numpy as np
from ale_py import roms

from accel_rl.envs.atari_screen import shows_ntsc_colours
from accel_rl.envs.errors import close_names

SCOUTED_FRAMES = 60
NOOP, FIRE, UP = 0, 1, 2  # the emulator's own codes, in whatever action set


class GameFacts(NamedTuple):
    """Facts from a game's ROM. Action codes are the emulator's own."""

    minimal_actions: tuple[int, ...]
    legal_actions: tuple[int, ...]
    is_ntsc: bool  # the palette is `NTSC_GREY`


@functools.cache
def atari_games() -> tuple[str, ...]:
    """Names of the games that the installed ale-py ships and can play with one player, sorted."""
    is_supported = ale_py.ALEInterface.isSupportedROM
    return tuple(sorted(game for game in roms.get_all_rom_ids() if is_supported(_path(game))))


def check_game(game: str) -> None:
    """Raise a `ValueError` that offers close names unless ``game`` is one of `atari_games`."""
    if game not in atari_games():
        close = close_names(game, atari_games())
        offer = f"did you mean {close}?" if close else f"there are {', '.join(atari_games())}"
        raise ValueError(f"{game!r} is not an Atari game; {offer}")


def load_emulator(game: str, seed: int) -> ale_py.ALEInterface:
    """Return a silent emulator of ``game``, one frame an ``act``, without its sticky actions.

    ``seed``, 0 to 2**31 - 1, draws the first values of the console's memory and timer.
    """
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    emulator = ale_py.ALEInterface()
    # Both take effect when a ROM is loaded. The first alone seeds only the emulator's own sticky
    # actions.
    emulator.setInt("random_seed", seed)
    emulator.setInt("system_random_seed", seed)
    emulator.setInt("frame_skip", 1)
    emulator.setFloat("repeat_action_probability", 0.0)
    emulator.setBool("color_averaging", False)
    emulator.loadROM(_path(game))
    return emulator


@functools.cache
def game_facts(game: str) -> GameFacts:
    """Facts of ``game``. Loads its ROM and plays a second, once in a process: 80 ms."""
    emulator = load_emulator(game, seed=0)
    minimal_actions = tuple(action.value for action in emulator.getMinimalActionSet())
    is_ntsc = shows_ntsc_colours(emulator)
    for code in np.random.default_rng(0).choice(minimal_actions, SCOUTED_FRAMES).tolist():
        emulator.act(code)
        is_ntsc = is_ntsc and shows_ntsc_colours(emulator)
    return GameFacts(
        minimal_actions=minimal_actions,
        legal_actions=tuple(action.value for action in emulator.getLegalActionSet()),
        is_ntsc=is_ntsc,
    )


@functools.cache
def _path(game: str) -> Path:
    path = roms.get_rom_path(game)
    if path is None:
        raise ValueError(f"ale-py has no ROM for {game!r}; reinstall it: pip install ale-py")
    return path
