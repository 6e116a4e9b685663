"""Settings that a program gives are of the kind that is declared, in every config."""

from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf
from refusals import words

from accel_rl.algos import (
    A2CConfig,
    DQNConfig,
    PPOConfig,
    PQNConfig,
)
from accel_rl.config import TrainConfig
from accel_rl.envs import AtariConfig
from accel_rl.parallel import ParallelConfig
from accel_rl.samplers import SamplerConfig
from accel_rl.sweeps.plan import SweepOptions
from accel_rl.tools.evaluate import EvaluateOptions


class OwnSamplerConfig(SamplerConfig):
    """Of a variant that the library does not know."""


@pytest.mark.parametrize(
    ("kind", "name", "value", "remedy"),
    [
        (SamplerConfig, "num_envs", "8", "integer"),
        (SamplerConfig, "num_groups", True, "integer"),
        (SamplerConfig, "num_workers", "2", "integer or none"),
        (A2CConfig, "lr", "high", "number or none"),
        (A2CConfig, "gamma", False, "number"),
        (A2CConfig, "lr", 0.0, "above 0"),
        (A2CConfig, "gamma", 1.1, "from 0 to 1"),
        (A2CConfig, "gae_lambda", -0.1, "from 0 to 1"),
        (A2CConfig, "entropy_coefficient", -1.0, "at least 0"),
        (A2CConfig, "max_gradient_norm", 0.0, "above 0"),
        (A2CConfig, "rmsprop_decay", 1.0, "at least 0 and below 1"),
        (PPOConfig, "clip_range", -0.1, "above 0"),
        (PPOConfig, "epochs", 0, "at least 1"),
        (PQNConfig, "q_lambda", 1.5, "from 0 to 1"),
        (PQNConfig, "epsilon_final", -0.1, "from 0 to 1"),
        (PQNConfig, "exploration_fraction", 0.0, "above 0 and at most 1"),
        (DQNConfig, "training_intensity", 0.0, "above 0"),
        (DQNConfig, "training_intensity", float("inf"), "finite"),
        (DQNConfig, "n_step", 0, "at least 1"),
        (DQNConfig, "v_max", float("inf"), "finite"),
        (DQNConfig, "prioritized", 1, "true|false"),
        (AtariConfig, "frame_skip", 0, "at least 1"),
        (AtariConfig, "frame_stack", 0, "at least 1"),
        (AtariConfig, "max_episode_steps", -1, "at least 1"),
        (AtariConfig, "max_noops", -1, "at least 0"),
        (AtariConfig, "sticky_actions", 1.0, "below 1"),
        (AtariConfig, "sticky_actions", -0.1, "probability"),
        (ParallelConfig, "sync", "ring", "all_reduce|store"),
        (TrainConfig, "env", 3, "text"),
        (TrainConfig, "info_keys", "abc", "list of text"),
        (TrainConfig, "learner", None, "an instance of a subclass of"),
        (TrainConfig, "run_dir", "\udcff", "UTF-8 another name"),
        (TrainConfig, "total_steps", 0, "at least 1"),
        (TrainConfig, "schedule_steps", -1, "at least 1"),
        (TrainConfig, "log_interval", -5, "at least 1"),
        (TrainConfig, "seed", -1, "from 0 to"),
        (TrainConfig, "evaluation_interval", -1, ""),
        (SweepOptions, "sweep_dir", "\udcff", "UTF-8 another name"),
        (EvaluateOptions, "greedy", "no", "true|false"),
    ],
)
def test_value_of_another_kind_or_size_is_refused(
    kind: Any, name: str, value: object, remedy: str
) -> None:
    with pytest.raises(ValueError, match=words(f"{name} is {value!r} {remedy}")):
        kind(**{name: value})


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        (TrainConfig, {"run_dir": ""}, "run_dir= names no directory"),
        (TrainConfig, {"sampler": OwnSamplerConfig()}, "sampler is OwnSampler of no subclass"),
        (TrainConfig, {"total_steps": 200, "schedule_steps": 100}, "schedule_steps=200 or more"),
        (DQNConfig, {"v_min": 1.0, "v_max": 1.0}, "v_min=1.0 must be below v_max=1.0"),
        (
            DQNConfig,
            {"learning_starts": 2_000_000},
            "learning_starts=2000000 more than the replay holds",
        ),
        (DQNConfig, {"value_rescaling": True, "num_atoms": 51}, "value_rescaling num_atoms=51"),
    ],
)
def test_values_that_do_not_fit_together_are_refused(
    kind: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=words(said)):
        kind(**options)


def test_lists_become_tuples_which_can_be_compared() -> None:
    given: dict[str, Any] = {"info_keys": ["x"]}
    assert TrainConfig(**given) == TrainConfig(info_keys=("x",))


def test_numbers_of_numpy_become_those_that_can_be_saved() -> None:
    given: dict[str, Any] = {"num_envs": np.int64(8), "step_timeout_seconds": np.float64(2.5)}
    rates: dict[str, Any] = {"lr": np.float32(0.5), "gamma": 1, "log_norms": np.bool_(True)}
    config = TrainConfig(sampler=SamplerConfig(**given), learner=A2CConfig(**rates))
    saved = OmegaConf.to_yaml(OmegaConf.structured(config))
    for line in ("num_envs: 8", "step_timeout_seconds: 2.5", "lr: 0.5", "log_norms: true"):
        assert f" {line}\n" in saved
