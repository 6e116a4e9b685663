"""The start of an Atari game, and saved start states of games that always start the same.

A start is: emulator reset; then NOOP, FIRE and UP, one frame each, where the game's minimal action
set has them; then a number of no-ops, one frame each. The reset alone takes some 3.7 ms, as long as
sixteen steps and a tenth of all time under random play; to restore a saved state of the emulator
takes 20 us. It stands for a start exactly where a game always starts in the same way. About a fifth
of the games do not: the console's timer comes up with a random value, and they seed themselves from
it or are a frame late; or they keep something of the game before. Some show it in one start of
twelve only, or after a longer game. So `starts_are_identical` compares many starts before any is
saved.

The first paper hid the time of resets in a third way beside its two reset policies: a spare
instance for each worker, reset in the background and swapped in. Saved starts replace it: a swap
would still have paid for each reset with another core's time, and here there is none left to pay
for.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import ale_py
import numpy as np
from numpy.typing import NDArray

from accel_rl.envs.atari_games import NOOP, game_facts, load_emulator
from accel_rl.envs.atari_screen import Screen

PROBED_SEEDS = 3  # console seeds: what memory comes up with decides in some games
PROBED_STARTS = 20  # with each seed; the rarest known difference is in one start of twenty
DIFFER_LATE = {"tic_tac_toe_3d", "time_pilot"}  # after hundreds of frames, of this game or before
PLAYED_FRAMES = 30  # of random play after each start, for differences that take time to show
LONG_GAME_FRAMES = 400  # of random play before the last start; some games keep memory of it


class SavedStart(NamedTuple):
    """One start: the emulator's state, and the frame ``[rows, columns]`` of its screen.

    The frame is kept because a restored emulator draws its screen only at the next ``act``.
    """

    state: ale_py.ALEState
    frame: NDArray[np.uint8]


def start_game(emulator: ale_py.ALEInterface, presses: tuple[int, ...], num_noops: int) -> None:
    """Resets, presses each of ``presses`` for one frame, then nothing for ``num_noops`` frames."""
    emulator.reset_game()
    for code in presses:
        emulator.act(code)
    for _ in range(num_noops):
        emulator.act(NOOP)


def save_starts(
    emulator: ale_py.ALEInterface, screen: Screen, presses: tuple[int, ...], max_noops: int
) -> list[SavedStart]:
    """Return the starts with 0 to ``max_noops`` no-ops, all from one reset (some 6 ms)."""
    start_game(emulator, presses, 0)
    starts = [SavedStart(emulator.cloneState(), screen.frame_alone())]
    for _ in range(max_noops):
        emulator.act(NOOP)
        starts.append(SavedStart(emulator.cloneState(), screen.frame_alone()))
    return starts


@functools.cache
def starts_are_identical(game: str, presses: tuple[int, ...]) -> bool:
    """Return whether ``game`` always starts alike: memory at once, memory and screen later.

    Runs in emulators of its own with fixed seeds, so that every process comes to the same answer
    and no environment's randomness is touched. Takes up to 0.7 s, once in a process.
    """
    return game not in DIFFER_LATE and all(
        _one_emulator_starts_alike(game, presses, seed) for seed in range(PROBED_SEEDS)
    )


def _one_emulator_starts_alike(game: str, presses: tuple[int, ...], seed: int) -> bool:
    emulator = load_emulator(game, seed)
    actions = game_facts(game).minimal_actions
    play = np.random.default_rng(0).choice(actions, LONG_GAME_FRAMES).tolist()

    def probe() -> tuple[bytes, ...]:
        start_game(emulator, presses, 0)
        memory = emulator.getRAM().tobytes()
        for code in play[:PLAYED_FRAMES]:
            emulator.act(code)
        return memory, emulator.getRAM().tobytes(), emulator.getScreen().tobytes()

    first = probe()
    if any(probe() != first for _ in range(PROBED_STARTS - 1)):
        return False
    for code in play:
        emulator.act(code)
    return probe() == first
