"""One game of a saved run as a film, with its score.

A picture is ``[height, width, 3]`` uint8, RGB: the emulator's screen at each of its frames, the
picture that a Gymnasium environment renders, or that the method ``picture`` of another environment
returns, or else the observation.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import gymnasium
import numpy as np
from rich.console import Console

from accel_rl.config import TrainConfig
from accel_rl.envs.atari import AtariEnv
from accel_rl.envs.atari_config import AtariConfig
from accel_rl.envs.base import Array, Environment
from accel_rl.envs.batched import Batched
from accel_rl.envs.errors import EnvError, naming
from accel_rl.envs.gymnasium_env import GymnasiumEnv
from accel_rl.envs.make import ADAPTED, is_atari_game, make_env_factory
from accel_rl.runs.directory import plain_options
from accel_rl.runs.saved import find_policy, read_trusted_config
from accel_rl.samplers import PolicyInput
from accel_rl.samplers.base import noise_shape
from accel_rl.samplers.generators import seed_generators
from accel_rl.spaces import Leaf, Space, write_values, zeros
from accel_rl.system.console import complain
from accel_rl.system.lasting_console import LastingConsole
from accel_rl.system.process_settings import directory, taking_back
from accel_rl.tools.movie import SUFFIXES, Picture, film
from accel_rl.tools.output import check_output, show_progress
from accel_rl.tools.policy import ActingOptions, SavedPolicy, load_agent
from accel_rl.trackers import Trackers
from accel_rl.training.devices import pick_device
from accel_rl.training.evaluation import longest_game
from accel_rl.training.torch_setup import sampling_threads

_SIDE = 420  # pixels that the longer side of small pictures is enlarged to, about
_CAPTION = 28  # rows
_STEPS_PER_SECOND = 5.0  # slow enough to follow a small task


@dataclass(frozen=True, kw_only=True)
class PlayOptions(ActingOptions):
    """Options of `play` and of ``accel_rl play``.

    Raises:
        ValueError: a count is out of range.
    """

    max_steps: int | None = None
    """Steps after which the film ends, even if the game is not over.
    none: 27,000 in Atari games, 100,000 in others."""
    out: str | None = None
    """File to write: .mp4, or .gif of the first minute. none: game.mp4 in the run directory."""


class Game(NamedTuple):
    """One game and its film.

    Attributes:
        path: file of the film.
        score: score of the game.
        num_steps: length in steps.
        is_over: whether the game ended by itself.
        is_truncated: whether the environment cut it off. If neither is true, the film ended first.
        num_frames: frames of the film.
        frames_per_second: speed of the film.
    """

    path: Path
    score: float
    num_steps: int
    is_over: bool
    is_truncated: bool
    num_frames: int
    frames_per_second: float


def play(run_dir: str | Path, options: PlayOptions, console: Console | None = None) -> Game:
    """Play one game with the policy of a saved run, and film it.

    Args:
        run_dir: directory of the run.
        options: the options.
        console: where to show progress; None: the terminal.

    Returns:
        The game.

    Raises:
        ValueError: the run cannot be read, its environment shows nothing, or ``out`` exists.
        OSError: ``out`` could not be written.
    """
    run_dir = Path(run_dir)
    config = read_trusted_config(run_dir, trust=options.trust)
    checkpoint = find_policy(run_dir, options.checkpoint)
    out = Path(options.out) if options.out else run_dir / "game.mp4"
    check_output(out, SUFFIXES, overwrite=options.overwrite)
    game = film_game(config, checkpoint, out, options, console)
    with closing(Trackers(config.tracker, run_dir, plain_options(config), complain)) as trackers:
        trackers.send_files([out])
    return game


@taking_back([directory()])
def film_game(
    config: TrainConfig,
    checkpoint: Path,
    out: Path,
    options: PlayOptions,
    console: Console | None = None,
) -> Game:
    """Play one game with the policy in ``checkpoint``, and film it to ``out``; see `play`."""
    env_seed, action_seed = np.random.SeedSequence([config.seed, 3, options.seed]).spawn(2)
    seed_generators(env_seed)
    saved, file = checkpoint.absolute(), out.absolute()  # the environment may go elsewhere
    most_steps = options.max_steps or longest_game(config.env)
    # No limit but the film's own.
    atari = dataclasses.replace(config.atari, max_episode_steps=most_steps + 1)
    env, frames_per_second, look = make_shown_env(config.env, atari)
    spec, rng = env.spec, np.random.default_rng(action_seed)
    observation = zeros(spec.observation, 1)
    is_first, reward = np.ones(1, np.bool_), np.zeros(1, np.float32)
    score, num_steps, num_frames, has_ended, is_truncated = 0.0, 0, 0, False, False
    shape: tuple[int, ...] = ()
    with (
        closing(env),
        sampling_threads(),
        film(file, frames_per_second) as movie,
        show_progress(console or LastingConsole(), "steps", most_steps) as show,
    ):
        device = pick_device(options.device)
        agent, _ = load_agent(saved, config, spec, device, greedy=options.greedy, env_index=1)
        policy = SavedPolicy(agent, spec, device, rng)
        with naming(spec.name, "seed or reset"):
            env.seed(env_seed)
            env.reset(observation[0, ...])
        while True:
            with naming(spec.name, "its pictures"):
                pictures = look(observation[0, ...])
            for picture in pictures:
                shape = shape or picture.shape
                if picture.shape != shape:
                    one = f"gave a picture of shape {picture.shape} after one of {shape}"
                    raise EnvError(f"{spec.name} {one}; a film needs pictures of one size")
                movie.add(_with_caption(picture, f"score {score:g}  step {num_steps}"))
            num_frames += len(pictures)
            if has_ended or num_steps == most_steps:
                break
            noise = rng.random(noise_shape((1,), policy.num_noise))
            step = PolicyInput(observation, noise, 0, slice(0, 1), is_first, reward)
            action = _one_action(spec.action, policy(step))
            with naming(spec.name, "step"):
                result = env.step(action, observation[0, ...])
            is_first[0], reward[0] = result.terminated or result.truncated, result.reward
            score, num_steps = score + result.raw_reward, num_steps + 1
            has_ended = result.episode_ended
            is_truncated = result.truncated and not result.terminated
            show(num_steps)
    is_over = has_ended and not is_truncated
    return Game(out, score, num_steps, is_over, is_truncated, num_frames, frames_per_second)


def _one_action(space: Space, actions: Any) -> Any:
    """Return the first of ``actions``, as `Environment.step` takes it."""
    if isinstance(space, Leaf):
        return actions[0] if space.shape else actions[0].item()
    action = zeros(space, 1)
    write_values(space, actions, action)
    return action[0]


def _with_caption(picture: Picture, text: str) -> Picture:
    """Return the picture, enlarged by a whole factor, under a line of text; sides are even."""
    height, width, _ = picture.shape
    factor = max(1, round(_SIDE / max(height, width)))
    height, width = height * factor, width * factor
    whole = np.zeros((_CAPTION + height + height % 2, width + width % 2, 3), np.uint8)
    whole[_CAPTION : _CAPTION + height, :width] = cv2.resize(
        picture, (width, height), interpolation=cv2.INTER_NEAREST
    )
    cv2.putText(whole, text, (6, 19), cv2.FONT_HERSHEY_SIMPLEX, 0.45, (255, 255, 255), 1)
    return whole


# ---- environments that show their pictures -------------------------------------------------------


class ShownEnv(NamedTuple):
    """An environment, how many of its pictures make a second, and a function that gives them.

    ``look`` takes the observation after each reset and step, and returns the new pictures.
    """

    env: Environment
    frames_per_second: float
    look: Callable[[Array], list[Picture]]


def make_shown_env(name: str, atari: AtariConfig) -> ShownEnv:
    """Return the environment that ``name`` stands for; see `make_env_factory`.

    A Gymnasium environment from a function of the user's is rendered if it was made with
    ``render_mode="rgb_array"``; otherwise its observation must be a picture.
    """
    if is_atari_game(name):
        game = _FilmedAtari(name, atari)
        return ShownEnv(game, 60.0, lambda _: game.take_pictures())
    env: Any = None
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame draws without a screen
    if name.partition(":")[0] not in ADAPTED:
        with naming(name, "its constructor"):
            if name in gymnasium.registry or re.search(r"-v\d+$", name):
                make = partial(gymnasium.make, name, disable_env_checker=True)
                env = GymnasiumEnv(lambda: make(render_mode="rgb_array"), name)
            else:
                env = make_env_factory(name)()
    if env is None or isinstance(env, Batched):
        raise EnvError(
            f"environment {name} is a batch of environments, and only a single environment can be "
            "filmed; evaluate the run for its scores"
        )
    if isinstance(env, GymnasiumEnv) and env.env.render_mode == "rgb_array":
        rate = env.env.metadata.get("render_fps") or 0.0
        rate = rate if rate > 0 else _STEPS_PER_SECOND
        return ShownEnv(env, rate, lambda _: [_rendered(env.env.render())])
    if hasattr(env, "picture"):
        return ShownEnv(env, _STEPS_PER_SECOND, lambda _: [env.picture()])
    _picture(zeros(env.spec.observation, 1)[0, ...], name)
    return ShownEnv(env, _STEPS_PER_SECOND, lambda observation: [_picture(observation, name)])


class _FilmedAtari(AtariEnv):
    """Keeps the screen at each frame of the emulator, also at those within a step."""

    def __init__(self, game: str, config: AtariConfig) -> None:
        super().__init__(game, config)
        self._pictures: list[Picture] = []

    def seed(self, seed: np.random.SeedSequence) -> None:
        super().seed(seed)
        act, emulator = self._act, self._emulator

        def act_and_look(code: int) -> int:
            reward = act(code)
            self._pictures.append(emulator.getScreenRGB())
            return reward

        self._act = act_and_look  # type: ignore[assignment]  # the emulator's is overloaded

    def take_pictures(self) -> list[Picture]:
        pictures, self._pictures = self._pictures, []
        return pictures


def _rendered(picture: Any) -> Picture:
    if not isinstance(picture, np.ndarray) or picture.ndim != 3 or picture.shape[2] == 2:
        raise EnvError(f"rendering gave no picture but a {type(picture).__name__}")
    shown = picture.astype(np.uint8, copy=False)[:, :, :3]
    return np.broadcast_to(shown, (*shown.shape[:2], 3))  # of grey ones, too


def _picture(observation: Array, name: str) -> Picture:
    """Return the picture ``[H, W]`` or ``[H, W, 3]``, or the last one of a stack."""
    levels = observation
    if np.issubdtype(levels.dtype, np.floating):  # 0 to 1
        levels = (levels.clip(0, 1) * 255).astype(np.uint8)
    if levels.dtype != np.uint8 or levels.ndim not in (2, 3):
        advice = f'; let {name} make a gymnasium.Env with render_mode="rgb_array"'
        raise EnvError(
            f"environment {name} cannot be shown: its observations, {observation.dtype} of shape "
            f"{list(observation.shape)}, are no pictures{advice if ':' in name else ''}"
        )
    if levels.ndim == 2 or levels.shape[2] != 3:
        if levels.ndim == 3:
            is_last = levels.shape[2] < min(levels.shape[:2])
            levels = levels[:, :, -1] if is_last else levels[-1]
        levels = np.repeat(levels[:, :, None], 3, axis=2)
    return np.ascontiguousarray(levels)
