"""Spaces and options that an algorithm cannot learn are one message, before anything starts."""

import multiprocessing.process
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from saved_runs import quiet, trained

from accel_rl.cli.parse import parse_arguments
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


@pytest.mark.parametrize("normalized", BOTH)
def test_normalization_that_cannot_be_shared_is_refused_by_name(
    normalized: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT)
    with pytest.raises(ValueError, match="normalize_observation and normalize_reward must be fals"):
        parse_arguments(["algo=examples.own_algorithm:make", f"{normalized}=true"])


@pytest.mark.parametrize("algo", ["ppo", "a2c", "paac"])
def test_learners_may_normalize_in_step_with_a_store_or_alone(algo: str) -> None:
    for more in (("learners=2",), ("sync=store", "learners=2"), ()):
        parse_arguments([f"algo={algo}", "env=CartPole-v1", *more, *(f"{x}=true" for x in BOTH)])


HERE = "env=test_training_spaces"
OWN = "algo=examples.own_algorithm:make"

REFUSED = [
    ("algo=ppo env=breakout normalize_observation=true", "normalize_observation=true.* pictures"),
    ("algo=dqn env=Pendulum-v1", "DQN .* actions of .* Pendulum-v1 .* algo=a2c and algo=ppo"),
    (f"{OWN} env=control_envs:MaskedGrid", "Smooth .* leaf action_mask, .* use algo=a2c or"),
    ("algo=ppo env=control_envs:Aim memory=lstm", "a memory needs .* leave memory out"),
]
SLOWLY_REFUSED = [
    ("algo=ga3c env=Pendulum-v1", "the actions of .* algo=a2c and algo=ppo"),
    ("algo=ga3c env=control_envs:MaskedGrid", "leaf action_mask, .* algo=a2c or algo=ppo"),
    ("algo=ga3c env=control_envs:ToldMask info_keys=action_mask", "action_mask, .* algo=a2c or"),
    (f"{OWN} env=Pendulum-v1", "Smooth cannot use .* actions of environment Pendulum-v1"),
    (f"algo=ppo {HERE}:Integers", "integers between bounds, .* 100,000 values"),
    ("algo=ppo env=control_envs:Aim model=nature", "model=nature is for one picture, .*=auto"),
]


@pytest.mark.parametrize(
    ("options", "message"),
    [*REFUSED, *(pytest.param(*each, marks=pytest.mark.slow) for each in SLOWLY_REFUSED)],
)
def test_space_that_cannot_be_learned_is_one_message_before_any_process(
    options: str, message: str, monkeypatch, tmp_path
) -> None:
    def started(self: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", started)
    monkeypatch.syspath_prepend(ROOT)
    config = parse_arguments([*options.split(), "total_steps=200000", f"run_dir={tmp_path}/run"])
    with pytest.raises(ValueError, match=message) as found:
        train(config, quiet())
    assert "\n" not in str(found.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("env", ["Unbounded", "HalfBounded"])
def test_infinite_bounds_of_floats_are_learned_from(env: str, tmp_path) -> None:
    trained(tmp_path / "run", "algo=a2c", f"env=test_training_spaces:{env}")
