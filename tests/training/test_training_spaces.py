"""Spaces and options that an algorithm cannot learn are one message, before anything starts."""

import multiprocessing.process
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from saved_runs import quiet, trained

from accel_rl.capture import Capture
from accel_rl.cli.parse import parse_arguments
from accel_rl.runs.checkpoint import list_checkpoints, load_checkpoint
from accel_rl.training.train import train

BOTH = ("normalize_observation", "normalize_reward")
ROOT = Path(__file__).parents[2]


class Nothing(gymnasium.Env[Any, Any]):
    """One step, with a space of actions that is set below."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def reset(self, **_: Any) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 0.0, True, False, {}


class Unbounded(Nothing):
    action_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)


class HalfBounded(Nothing):
    action_space = spaces.Box(np.array([-np.inf, -0.1]), np.array([0.1, np.inf]), dtype=np.float64)


class Integers(Nothing):
    action_space = spaces.Box(-(2**31), 2**31 - 1, (2,), np.int32)


class Nested(Nothing):
    observation_space = spaces.Dict({"inner": spaces.Dict({"x": spaces.Box(-1, 1, (2,))})})
    action_space = spaces.Discrete(2)


@pytest.mark.parametrize("normalized", BOTH)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("algo=examples.own_algorithm:make",),
            "normalize_observation and normalize_reward must be false, since the learner of Smooth",
        ),
    ],
    ids=["own"],
)
def test_normalization_that_cannot_be_shared_is_refused_by_name(
    normalized: str, options: tuple[str, ...], message: str, monkeypatch
) -> None:
    monkeypatch.syspath_prepend(ROOT)
    with pytest.raises(ValueError, match=message):
        parse_arguments([*options, "env=CartPole-v1", f"{normalized}=true"])
    parse_arguments([*options, "env=CartPole-v1"])


@pytest.mark.parametrize("algo", ["ppo", "a2c", "paac"])
def test_learners_may_normalize_in_step_with_a_store_or_alone(algo: str) -> None:
    for more in (("learners=2",), ("sync=store", "learners=2"), ()):
        parse_arguments([f"algo={algo}", "env=CartPole-v1", *more, *(f"{x}=true" for x in BOTH)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("algo=ppo", "env=breakout", "normalize_observation=true"),
            "normalize_observation=true is for numbers, and observations are images, .* leave it",
        ),
        (
            ("algo=a2c", "env=test_training_spaces:Nested", "normalize_observation=true"),
            "normalize_observation=true takes observations of one mapping, .* leave it out, or fla",
        ),
        (
            ("algo=dqn", "env=Pendulum-v1"),
            "DQN cannot use this environment: the actions of environment Pendulum-v1 are .* must "
            "be the integers .* algo=a2c and algo=ppo take every one",
        ),
        (
            ("algo=ga3c", "env=Pendulum-v1"),
            "cannot use this environment: the actions of .* algo=a2c and algo=ppo take every one",
        ),
        (
            ("algo=ga3c", "env=control_envs:MaskedGrid"),
            "the observations of control_envs:MaskedGrid have a leaf action_mask, which it does "
            "not know; use algo=a2c or algo=ppo, or leave the mask out",
        ),
        (
            ("algo=ga3c", "env=control_envs:ToldMask", "info_keys=action_mask"),
            "have a leaf action_mask, which it does not know; use algo=a2c or algo=ppo",
        ),
        (
            ("algo=examples.own_algorithm:make", "env=control_envs:MaskedGrid"),
            "Smooth cannot use this environment: .* have a leaf action_mask, .* use algo=a2c or",
        ),
        (
            ("algo=examples.own_algorithm:make", "env=Pendulum-v1"),
            "Smooth cannot use this environment: the actions of environment Pendulum-v1 are ",
        ),
        (
            ("algo=ppo", "env=test_training_spaces:Integers"),
            "a policy can learn integers with at most 100000 values in all: give them bounds",
        ),
        (
            ("algo=ppo", "env=control_envs:Aim", "lstm=true"),
            "a memory needs observations that are one array, .* leave out lstm or gru, or join",
        ),
        (
            ("algo=ppo", "env=control_envs:Aim", "model=nature"),
            "model=nature is for one image, .* use model=auto, which joins them, or module:func",
        ),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else "",
)
def test_space_that_cannot_be_learned_is_one_message_before_any_process(
    options: tuple[str, ...], message: str, monkeypatch, tmp_path
) -> None:
    def started(self: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", started)
    monkeypatch.syspath_prepend(ROOT)
    config = parse_arguments([*options, "total_steps=200000", f"run_dir={tmp_path}/run"])
    with pytest.raises(ValueError, match=message) as found:
        train(config, quiet())
    assert "\n" not in str(found.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("env", ["Unbounded", "HalfBounded"])
def test_infinite_bounds_of_floats_are_learned_from(env: str, tmp_path) -> None:
    trained(tmp_path / "run", "algo=a2c", f"env=test_training_spaces:{env}")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch itself, while it compiles
@pytest.mark.parametrize("env", ["Swing", "MaskedGrid", "Aim"])
@pytest.mark.parametrize("algo", ["a2c", "ppo"])
def test_every_space_is_learned_captured_as_it_is_eagerly(
    algo: str, env: str, tmp_path, monkeypatch
) -> None:
    options = [f"algo={algo}", f"env=control_envs:{env}", "horizon=8", "total_steps=128"]
    options += ["num_envs=4", "normalize_observation=true", "normalize_reward=true"]
    options += ["minibatch_size=16"] * (algo == "ppo")
    eager, found = Capture(torch.device("cpu"), "eager"), []
    for is_captured in (False, True):
        torch._dynamo.reset()
        with monkeypatch.context() as patch:
            if is_captured:
                patch.setattr("accel_rl.training.build.make_capture", lambda *_: eager)
            run_dir = trained(tmp_path / str(is_captured), *options)
        found.append(read_parameters(run_dir))
    torch._dynamo.reset()
    assert found[0].keys() == found[1].keys()
    for name, parameter in found[0].items():
        torch.testing.assert_close(found[1][name], parameter, rtol=1e-4, atol=1e-5)


def read_parameters(run_dir: Path) -> dict[str, torch.Tensor]:
    learner = load_checkpoint(list_checkpoints(run_dir)[-1])["learner"]
    parameters: dict[str, torch.Tensor] = learner["parameters"]
    return parameters
