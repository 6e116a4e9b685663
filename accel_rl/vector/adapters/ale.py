"""The emulator's own vector environment, `ale_py.vector_env.AtariVectorEnv`, as a batch."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import numpy as np

from accel_rl.envs.batched import Batched
from accel_rl.vector.adapters.gymnasium_vector import GymnasiumVector
from accel_rl.vector.adapters.spec import own_threads


def make_ale(
    game: str,
    *,
    autoreset: Literal["next_step", "same_step"] = "next_step",
    clips_rewards: bool = True,
    num_threads: int | None = None,
    **options: Any,
) -> Batched:
    """Return a factory of batches of an Atari game in ale-py's own threads.

    Args:
        game: as in `ale_py.roms`, such as ``breakout``.
        autoreset: how the next episode begins.
        clips_rewards: the learner sees rewards clipped to -1 to 1.
        num_threads: threads of each batch; None: one for each CPU that its worker may use.
        options: more arguments of `ale_py.vector_env.AtariVectorEnv`.

    Raises:
        ValueError: there is no such game, or an option is one that the arguments above replace.
    """
    from ale_py import roms

    if game not in roms.get_all_rom_ids():
        raise ValueError(f"game is {game!r}; it must be one that ale-py has, such as breakout")
    if autoreset not in ("next_step", "same_step"):
        raise ValueError(f"autoreset is {autoreset!r}; it must be next_step or same_step")
    for name in ("autoreset_mode", "reward_clipping", "batch_size"):
        if name in options:
            raise ValueError(
                f"{name} cannot be given to make_ale; autoreset and clips_rewards are its options"
            )
    make = partial(_make, game, autoreset, clips_rewards, num_threads, options)
    return Batched(make, name=f"ale:{game}")


def _make(
    game: str,
    autoreset: str,
    clips_rewards: bool,
    num_threads: int | None,
    options: dict[str, Any],
    n: int,
) -> _AleVector:
    from ale_py.vector_env import AtariVectorEnv

    env = AtariVectorEnv(
        game,
        n,
        autoreset_mode="NextStep" if autoreset == "next_step" else "SameStep",
        reward_clipping=False,
        num_threads=num_threads or own_threads(n),
        **options,
    )
    frame_skip = options.get("frameskip", 4)
    return _AleVector(env, n, f"ale:{game}", frame_skip=frame_skip, clips_rewards=clips_rewards)


class _AleVector(GymnasiumVector):
    """A vector environment that takes an array of seeds."""

    def _seed_argument(self, seeds: list[int | None]) -> Any:
        return np.array([-1 if seed is None else seed & 0x7FFFFFFF for seed in seeds])
