"""What a run says of the environment that it was given."""

import csv
import io
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from rich.console import Console
from torch import nn

from accel_rl.cli.parse import parse_arguments
from accel_rl.spaces import Space, from_gymnasium, leaves_of
from accel_rl.training.train import _seen, train


class Broken(gymnasium.Env):
    action_space = Discrete(2)
    observation_space = Box(0, 1, (3,), np.float32)

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        raise KeyError("lost")


class Narrow(Broken):
    action_space = Box(-1e-3, 1e-3, (1,), np.float32)

    def step(self, action):
        return np.zeros(3, np.float32), 1.0, True, False, {}


def run(name: str, run_dir: Path, *options: str) -> str:
    small = ("num_workers=0", "total_steps=80", "decorrelation_steps=0", "learners=1")
    options = (*small, *options, f"run_dir={run_dir}")
    console = Console(file=io.StringIO(), width=1_000)
    train(parse_arguments([f"env=test_training_told:{name}", *options]), console)
    return console.file.getvalue()


def seen(space: Space, network: nn.Module, *options: str) -> list[str]:
    config = parse_arguments(["algo=ppo", "env=catch", *options])
    return [each for path, leaf in leaves_of(space) for each in _seen(config, path, leaf, network)]


@pytest.mark.parametrize(
    ("space", "sentence"),
    [
        (Discrete(4), "catch are single integers, which the network takes as quantities"),
        (MultiDiscrete([50, 3]), "catch are integers, which the network takes as quantities"),
        (Box(0, 3, (1,), np.int64), "catch are integers, which the network takes as quantities"),
        (Dict(a=Discrete(4), b=Box(0, 1)), r"catch \(a\) are single integers, which the network"),
        (Box(0, 255, (1, 12, 12), np.uint8), ""),
        (Box(0, 1, (3,), np.float32), ""),
    ],
    ids=str,
)
def test_observations_that_may_be_meant_otherwise_are_pointed_out(
    space: Any, sentence: str
) -> None:
    said = [each for each in seen(from_gymnasium(space), nn.Identity()) if "integers" in each]
    assert len(said) == bool(sentence) and all(re.search(sentence, each) for each in said)


@pytest.mark.parametrize(("algo", "share"), [("ppo", 0.32), ("ppo_mujoco", 0.999)])
def test_actions_of_which_most_are_clipped_are_pointed_out(
    algo: str, share: float, tmp_path: Path
) -> None:
    sizes = ("num_envs=16", "horizon=5", "minibatch_size=40")
    said = run("Narrow", tmp_path / "run", f"algo={algo}", *sizes)
    (row,) = csv.DictReader((tmp_path / "run" / "metrics.csv").read_text().splitlines())
    assert float(row["clipped_action_share"]) == pytest.approx(share, abs=0.15)
    assert ("of the floats in actions lie beyond their bounds" in said) == (share > 0.5)
    assert ("bounds 0.001 to 0.001 from their middle" in said) == (algo == "ppo_mujoco")
