"""Environments that show their pictures while they are played, for making films of games.

A picture is ``[height, width, 3]`` uint8, RGB: for Atari the emulator's own screen at each of its
frames, for Gymnasium environments what they render, for others what their method ``picture``
returns, or their observation where they have none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from accel_rl.envs.atari import AtariEnv
from accel_rl.envs.atari_config import AtariConfig
from accel_rl.envs.base import Array, Environment, EnvSpec, StepResult
from accel_rl.envs.batched import Batched
from accel_rl.envs.errors import EnvError, naming
from accel_rl.envs.gymnasium_env import GymnasiumEnv
from accel_rl.envs.make import ADAPTED, is_atari_game, make_env_factory
from accel_rl.spaces import zeros
from accel_rl.tools.movie import Picture

Show = Callable[[Picture], None]

ATARI_FRAMES_PER_SECOND = 60.0
STEPS_PER_SECOND = 5.0
"""where nothing else is known: slow enough to follow a small task"""


class ShownEnv(NamedTuple):
    """An environment that shows its pictures, and how many of them make a second."""

    env: Environment
    frames_per_second: float


def make_shown_env(name: str, atari: AtariConfig, show: Show) -> ShownEnv:
    """The environment that ``name`` stands for, see `make_env_factory`; it calls ``show`` itself.

    A Gymnasium environment from a function of one's own is rendered if it was made with
    ``render_mode="rgb_array"``; otherwise its observation must be a picture.

    Raises:
        ValueError: there is no such environment, it is a batch, or nothing of it can be shown.
    """
    if name.partition(":")[0] in ADAPTED:
        raise _is_batch(name)
    if is_atari_game(name):
        return ShownEnv(_ShownAtari(name, atari, show), ATARI_FRAMES_PER_SECOND)
    env: Any
    with naming(name, "its constructor"):
        if name in gymnasium.registry or re.search(r"-v\d+$", name):
            make = partial(gymnasium.make, name, disable_env_checker=True)
            env = GymnasiumEnv(lambda: make(render_mode="rgb_array"), name)
        else:
            env = make_env_factory(name)()
    if isinstance(env, Batched):
        raise _is_batch(name)
    if isinstance(env, GymnasiumEnv) and env.env.render_mode == "rgb_array":
        rate = env.env.metadata.get("render_fps") or 0.0
        return ShownEnv(
            _Shown(env, show, _Rendered(env.env)), rate if rate > 0 else STEPS_PER_SECOND
        )
    if hasattr(env, "picture"):
        return ShownEnv(_Shown(env, show, lambda out: env.picture()), STEPS_PER_SECOND)
    _picture(zeros(env.spec.observation, 1)[0, ...], name)
    return ShownEnv(_Shown(env, show, lambda out: _picture(out, name)), STEPS_PER_SECOND)


class _ShownAtari(AtariEnv):
    """Shows the screen after each frame of the emulator, those within a step too."""

    def __init__(self, game: str, config: AtariConfig, show: Show) -> None:
        super().__init__(game, config)
        self._show = show

    def seed(self, seed: np.random.SeedSequence) -> None:
        super().seed(seed)
        act, emulator = self._act, self._emulator

        def act_and_show(code: int) -> int:
            reward = act(code)
            self._show(emulator.getScreenRGB())
            return reward

        self._act = act_and_show  # type: ignore[assignment]  # the emulator's is overloaded


class _Shown:
    """Shows ``picture`` of the observation after each reset and step; failures are named."""

    def __init__(self, env: Environment, show: Show, picture: Callable[[Array], Picture]) -> None:
        self._env, self._show, self._picture = env, show, picture

    @property
    def spec(self) -> EnvSpec:
        return self._env.spec

    def seed(self, seed: np.random.SeedSequence) -> None:
        with naming(self.spec.name, "seed"):
            self._env.seed(seed)

    def reset(self, out: Array) -> None:
        with naming(self.spec.name, "reset"):
            self._env.reset(out)
            self._show(self._picture(out))

    def step(self, action: Any, out: Array) -> StepResult:
        with naming(self.spec.name, "step"):
            result = self._env.step(action, out)
            self._show(self._picture(out))
        return result

    def close(self) -> None:
        with naming(self.spec.name, "close"):
            self._env.close()


class _Rendered:
    """What an environment of Gymnasium's renders."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self._env = env
        self._size: tuple[int, ...] | None = None

    def __call__(self, _: Array) -> Picture:
        picture: Any = self._env.render()
        if not isinstance(picture, np.ndarray) or picture.ndim != 3:
            raise EnvError(f"rendering gave no picture but a {type(picture).__name__}")
        self._size = self._size or picture.shape
        if picture.shape != self._size:
            raise EnvError(
                f"rendering gave a picture of shape {picture.shape} after one of {self._size}; a "
                "film needs pictures of one size"
            )
        return picture.astype(np.uint8, copy=False)[:, :, :3]


def _is_batch(name: str) -> EnvError:
    return EnvError(
        f"environment {name} is a batch of environments, and only a single environment can be "
        f"filmed; evaluate the run for its scores, or let load_policy play an environment of yours"
    )


def _picture(observation: Array, name: str) -> Picture:
    """Observations that are pictures: ``[H, W]``, ``[H, W, 3]``, or the last of ``[C, H, W]``.

    Or of ``[H, W, C]``, which they are taken for where the last axis is shorter than both others.
    """
    levels = observation
    if np.issubdtype(levels.dtype, np.floating):  # 0 to 1
        levels = (levels.clip(0, 1) * 255).astype(np.uint8)
    is_colour = levels.ndim == 3 and levels.shape[2] == 3
    if levels.dtype != np.uint8 or not (is_colour or levels.ndim in (2, 3)):
        advice = f'; let {name} make a gymnasium.Env with render_mode="rgb_array"'
        raise EnvError(
            f"environment {name} cannot be shown: its observations, {observation.dtype} of shape "
            f"{list(observation.shape)}, are no pictures{advice if ':' in name else ''}"
        )
    if not is_colour:
        if levels.ndim == 3:
            is_last = levels.shape[2] < min(levels.shape[:2])
            levels = levels[:, :, -1] if is_last else levels[-1]
        levels = np.repeat(levels[:, :, None], 3, axis=2)
    return np.ascontiguousarray(levels)
