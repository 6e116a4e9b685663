"""One game of a saved run as a film, with its score."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from accel_rl.config import TrainConfig
from accel_rl.runs.directory import plain_options
from accel_rl.runs.saved import find_policy, read_trusted_config
from accel_rl.samplers import PolicyInput
from accel_rl.samplers.generators import seed_generators
from accel_rl.spaces import Leaf, Space, write_values, zeros
from accel_rl.system.console import complain
from accel_rl.system.lasting_console import LastingConsole
from accel_rl.system.process_settings import directory, taking_back
from accel_rl.tools.movie import SUFFIXES, film
from accel_rl.tools.output import check_output, show_progress
from accel_rl.tools.policy import RunOptions, SavedPolicy, load_agent
from accel_rl.tools.shown import make_shown_env
from accel_rl.trackers import Trackers
from accel_rl.training.devices import pick_device
from accel_rl.training.evaluation import longest_game
from accel_rl.training.torch_setup import sampling_threads

_SIDE = 420  # pixels that the longer side of small pictures is enlarged to, about
_CAPTION = 28  # rows


@dataclass(frozen=True, kw_only=True)
class PlayOptions(RunOptions):
    """Options of `play` and of ``accel_rl play``.

    Raises:
        ValueError: a count is out of range.
    """

    max_steps: int | None = None
    """Steps after which the film ends, even if the game is not over.
    none: 27,000 in Atari games, 100,000 in others."""
    seed: int = 0
    """Seed of game and actions, combined with the run's seed. Another seed plays another game."""
    greedy: bool = False
    """Take the most probable action, or in Q-learning the action of the largest value.
    false: draw actions as in training; in Q-learning with epsilon_evaluation."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the network. auto: the GPU if there is one."""
    out: str | None = None
    """File to write: .mp4, or .gif of the first minute. none: game.mp4 in the run directory."""
    overwrite: bool = False
    """Replace the file if it exists."""


@dataclass(frozen=True, kw_only=True)
class Game:
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
    pictures: list[NDArray[np.uint8]] = []
    env_seed, action_seed = np.random.SeedSequence([config.seed, 3, options.seed]).spawn(2)
    seed_generators(env_seed)
    saved, file = checkpoint.absolute(), out.absolute()  # the environment may go elsewhere
    most_steps = options.max_steps or longest_game(config.env)
    # No limit but the film's own.
    atari = dataclasses.replace(config.atari, max_episode_steps=most_steps + 1)
    env, frames_per_second = make_shown_env(config.env, atari, pictures.append)
    spec = env.spec
    score, num_steps, num_frames, has_ended, is_truncated = 0.0, 0, 0, False, False
    rng = np.random.default_rng(action_seed)
    observation = zeros(spec.observation, 1)
    is_first, reward = np.ones(1, np.bool_), np.zeros(1, np.float32)
    with (
        closing(env),
        sampling_threads(),
        film(file, frames_per_second) as movie,
        show_progress(console or LastingConsole(), "steps", most_steps) as show,
    ):
        device = pick_device(options.device)
        agent, _ = load_agent(saved, config, spec, device, greedy=options.greedy, env_index=1)
        policy = SavedPolicy(agent, spec, device, rng)
        env.seed(env_seed)
        env.reset(observation[0, ...])
        while True:
            for picture in pictures:
                movie.add(_with_caption(picture, f"score {score:g}  step {num_steps}"))
            num_frames += len(pictures)
            pictures.clear()
            if has_ended or num_steps == most_steps:
                break
            step = PolicyInput(observation, rng.random(1), 0, slice(0, 1), is_first, reward)
            result = env.step(_one_action(spec.action, policy(step)), observation[0, ...])
            is_first[0] = result.terminated or result.truncated
            reward[0] = result.reward
            score += result.raw_reward
            num_steps += 1
            has_ended = result.episode_ended
            is_truncated = result.truncated and not result.terminated
            show(num_steps)
    return Game(
        path=out,
        score=score,
        num_steps=num_steps,
        is_over=has_ended and not is_truncated,
        is_truncated=is_truncated,
        num_frames=num_frames,
        frames_per_second=frames_per_second,
    )


def _one_action(space: Space, actions: Any) -> Any:
    """The first of ``actions``, as `Environment.step` takes it."""
    if isinstance(space, Leaf):
        return actions[0] if space.shape else actions[0].item()
    action = zeros(space, 1)
    write_values(space, actions, action)
    return action[0]


def _with_caption(picture: NDArray[np.uint8], text: str) -> NDArray[np.uint8]:
    """The picture, enlarged by a whole factor, under a line of text; sides even, for encoders."""
    height, width, _ = picture.shape
    factor = max(1, round(_SIDE / max(height, width)))
    height, width = height * factor, width * factor
    whole = np.zeros((_CAPTION + height + height % 2, width + width % 2, 3), np.uint8)
    whole[_CAPTION : _CAPTION + height, :width] = cv2.resize(
        picture, (width, height), interpolation=cv2.INTER_NEAREST
    )
    cv2.putText(whole, text, (6, 19), cv2.FONT_HERSHEY_SIMPLEX, 0.45, (255, 255, 255), 1)
    return whole
