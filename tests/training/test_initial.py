"""Runs that start from trained weights (``init``)."""

import contextlib
import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from saved_runs import SMALL_OPTIONS, quiet, trained
from tiers import slow

from accel_rl.cli.parse import parse_arguments
from accel_rl.envs.catch import Catch
from accel_rl.runs.checkpoint import list_checkpoints, load_checkpoint
from accel_rl.spaces import discrete
from accel_rl.training.build import build
from accel_rl.training.run import Run
from accel_rl.training.train import train


class FourActions(Catch):
    spec = dataclasses.replace(Catch.spec, action=discrete(4))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("runs") / "run", "env=catch", "horizon=5")


def built(stack: contextlib.ExitStack, *options: str) -> Run:
    given = dict(each.split("=", 1) for each in ("num_workers=0", "num_envs=2", "seed=7", *options))
    made = build(parse_arguments([f"{key}={value}" for key, value in given.items()]))
    stack.callback(made.close)
    return made


@pytest.mark.parametrize("algo", ["a2c", "dqn", slow("ga3c")])
def test_run_starts_with_the_parameters_of_the_checkpoint(algo: str, tmp_path: Path) -> None:
    own = [f"algo={algo}", "env=catch", *SMALL_OPTIONS.get(algo, ())]
    path = list_checkpoints(trained(tmp_path / "run", *own))[-1]
    saved = load_checkpoint(path)["learner"]["parameters"]
    with contextlib.ExitStack() as stack:
        made = built(stack, *own, f"init={path}")
        flat = made.sync.parameters
        assert all(torch.equal(saved[k], v) for k, v in flat.views(flat.parameter).items())
        if algo == "dqn":
            assert torch.equal(made.learner._target.parameter, flat.parameter)
    assert made.initial.startswith(f"starts with the parameters of {path} after ")
    assert "but for" not in made.initial


def test_another_number_of_actions_keeps_the_rest_of_the_network(source: Path) -> None:
    saved = load_checkpoint(list_checkpoints(source)[-1])["learner"]["parameters"]
    with contextlib.ExitStack() as stack:
        made = built(stack, "env=test_initial:FourActions", f"init={source}")
        own = dict(made.agent.model.named_parameters())
    same = {name for name in own if torch.equal(own[name], saved[name])}
    assert own.keys() - same == {"policy.4.weight", "policy.4.bias"}
    assert made.initial.endswith("but for policy.4.weight, policy.4.bias, which do not fit")


def test_moments_of_observations_come_along(tmp_path: Path) -> None:
    own = ["env=control_envs:Swing", "normalize_observation=true", "normalize_reward=true"]
    path = trained(tmp_path / "run", *own)
    saved = load_checkpoint(list_checkpoints(path)[-1])["algorithm"]
    with contextlib.ExitStack() as stack:
        state = built(stack, *own, f"init={path}").learner.get_state()
    for found, expected in (
        (state["observation_moments"]["observation"], saved["observation_moments"]["observation"]),
        (state["reward_moments"], saved["reward_moments"]),
    ):
        assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_a_fixed_weight_of_the_entropy_is_the_one_that_is_given(tmp_path: Path) -> None:
    own = ["algo=sac", *SMALL_OPTIONS["sac"]]
    path = trained(tmp_path / "run", *own)
    with contextlib.ExitStack() as stack:
        model = built(stack, *own, f"init={path}", "alpha=0.05").agent.model
    assert model.log_alpha.exp().item() == pytest.approx(0.05)


def test_what_cannot_be_started_from_is_refused(source: Path, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack, pytest.raises(ValueError, match=r"init=.*not exist"):
        built(stack, f"init={tmp_path / 'nothing'}")
    with contextlib.ExitStack() as stack, pytest.raises(ValueError, match=r"checkpoint.*; name a"):
        built(stack, f"init={source / 'config.yaml'}")
    with contextlib.ExitStack() as stack, pytest.raises(ValueError, match="no parameter with the"):
        built(stack, "algo=sac", "env=control_envs:Swing", f"init={source}")
    with pytest.raises(ValueError, match=r"init=.* cannot be given with resume=.*begun with none"):
        train(parse_arguments([f"resume={source}", f"init={source}", "total_steps=80"]), quiet())
