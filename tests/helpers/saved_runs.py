"""Saved runs for the tests of what is done with them."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from rich.console import Console
from space_envs import SpaceEnv

from accel_rl.cli.parse import parse_arguments
from accel_rl.envs import EnvSpec, StepResult
from accel_rl.presets import PRESETS
from accel_rl.runs import figures
from accel_rl.runs.checkpoint import list_checkpoints, load_checkpoint, save_checkpoint
from accel_rl.spaces import Leaf, discrete, random_values
from accel_rl.training.train import train

SMALL = ["num_workers=0", "num_envs=2", "decorrelation_steps=0", "log_interval=40"]

SMALL_DQN = ["algo=dqn", "horizon=4", "learning_starts=20", "buffer_size=200", "batch_size=8"]
Q_LEARNING = SMALL_DQN[1:]
SMALL_OPTIONS = {
    **dict.fromkeys(("dqn", "async_dqn", "double_dqn", "cat_dqn", "rainbow"), Q_LEARNING),
    **dict.fromkeys(("qr_dqn", "iqn", "btr"), Q_LEARNING),
    "r2d2": ["learning_starts=400", "buffer_size=2000", "total_steps=440"],
    "pqn": ["minibatch_size=64"],
    "ga3c": ["num_workers=none", "num_envs=4"],
    "ppo_mujoco": ["env=control_envs:Swing", "horizon=16", "minibatch_size=32"],
    "sac": ["env=control_envs:Swing", *Q_LEARNING],
}
"""what makes a run of each preset small, beside the options of `trained`"""
TOLD = ["previous_action_reward=true", "horizon=16", "minibatch_size=32"]
POLICIES = {
    "masked": ["algo=ppo", "env=space_envs:masked", *TOLD[1:], "normalize_observation=true"],
    "masked-q": ["algo=dqn", "env=space_envs:masked", *Q_LEARNING],
    "dict": ["algo=ppo", "env=saved_runs:nested", *TOLD[1:]],
    "normalized": ["algo=a2c", "env=control_envs:Swing", "normalize_observation=true"],
    "lstm": ["algo=a2c", "memory=lstm"],
    "gru-told": ["algo=ppo", "memory=gru", *TOLD],
} | {f"all-{name}": [f"algo={name}", *SMALL_OPTIONS.get(name, ())] for name in PRESETS}
"""options of runs whose policies differ in what they are given and give"""


def nested() -> SpaceEnv:
    return SpaceEnv("dict")


def with_env(options: Sequence[str]) -> list[str]:
    """``options``, and catch if they name no environment."""
    return [*options, *["env=catch"] * (not any(each.startswith("env=") for each in options))]


def drawn_steps(spec: EnvSpec, num_steps: int, n: int) -> Iterator[tuple[Any, Any, Any]]:
    """Observations ``[n, ...]``, whether each is the first of an episode, and rewards."""
    rng = np.random.default_rng(7)
    for step in range(num_steps):
        observation = random_values(spec.observation, rng, n)
        if observation.dtype.names and "action_mask" in observation.dtype.names:
            observation["action_mask"][:, step % 2] = 1  # something is allowed
        is_first = np.arange(n) == step if step else np.ones(n, np.bool_)
        yield observation, is_first, rng.normal(size=n).astype(np.float32)


def quiet() -> Console:
    return Console(file=io.StringIO())


@contextmanager
def undrawn() -> Iterator[None]:
    """Within, learning curves are empty files: one takes as long to draw as a short run."""
    with patch.object(figures, "draw_learning_curve", lambda path, *_: path.touch()):
        yield


def trained(run_dir: Path, *arguments: str) -> Path:
    """A run directory, made by a run of 40 steps if no other number is given."""
    options = ["total_steps=40", *SMALL, f"run_dir={run_dir}"]
    keys = {argument.partition("=")[0] for argument in arguments}
    kept = [option for option in options if option.partition("=")[0] not in keys]
    with undrawn():
        train(parse_arguments([*kept, *arguments]), quiet())
    return run_dir


def prefer_action(run_dir: Path, action: int, logit: float = 1000.0) -> None:
    """Changes the last checkpoint of ``run_dir`` so that its policy takes ``action`` always.

    Or, with a small ``logit``, more often than the others, whose logits are 0.
    """
    path = list_checkpoints(run_dir)[-1]
    state = load_checkpoint(path)
    bias = state["learner"]["parameters"]["policy.4.bias"]
    state["learner"]["parameters"]["policy.4.weight"].zero_()
    bias.zero_()
    bias[action] = logit
    del state["format"]
    save_checkpoint(run_dir, state["counts"]["steps"], state)


class Pay:
    """Three steps, each paying its action; at most 2. The observation is a picture of it."""

    spec = EnvSpec(
        name="pay",
        observation=Leaf((4, 6, 3), np.dtype(np.uint8)),
        action=discrete(3),
    )

    def seed(self, seed: np.random.SeedSequence) -> None:
        pass

    def reset(self, out: Any) -> None:
        self.t = 0
        out.fill(100)

    def step(self, action: int, out: Any) -> StepResult:
        self.t += 1
        out.fill(100 + action)
        ended = self.t == 3
        return StepResult(float(action > 0), float(action), ended, False, ended)

    def close(self) -> None:
        pass
