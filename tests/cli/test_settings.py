"""Settings that a program gives are of the kind that is declared, in every config."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from accel_rl.algos import (
    A2CConfig,
    ActorCriticConfig,
    DQNConfig,
    LearnerConfig,
    PPOConfig,
)
from accel_rl.config import TrainConfig
from accel_rl.envs import AtariConfig
from accel_rl.ga3c.learner import GA3CConfig
from accel_rl.parallel import ParallelConfig
from accel_rl.presets import PRESETS
from accel_rl.samplers import SamplerConfig
from accel_rl.sweep.plan import SweepOptions
from accel_rl.tools.evaluate import EvaluateOptions
from accel_rl.tools.play import PlayOptions
from accel_rl.tools.plot import PlotOptions


@dataclass(frozen=True, kw_only=True)
class OwnPPOConfig(PPOConfig):
    """Of a variant that the library does not know."""

    beta: float = 0.5
    """of something"""


class OwnSamplerConfig(SamplerConfig):
    """Likewise."""


class OwnLearnerConfig(LearnerConfig):
    """Likewise."""


@pytest.mark.parametrize("kind", [LearnerConfig, ActorCriticConfig, OwnLearnerConfig])
def test_config_without_a_learner_is_refused(kind: type[LearnerConfig]) -> None:
    with pytest.raises(ValueError, match=rf"{kind.__name__}, which must define make_learner"):
        kind()


def test_config_is_never_trained_as_that_of_its_base_class_unless_it_says_so() -> None:
    with pytest.raises(ValueError, match=r"OwnPPOConfig.*make_learner = PPOConfig.make_learner"):
        OwnPPOConfig()

    class Likewise(OwnPPOConfig):
        make_learner = PPOConfig.make_learner

    assert TrainConfig(learner=Likewise(minibatch_size=16)).learner.learns_sequences


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (SamplerConfig, {"num_envs": "8"}, "num_envs is '8'; it must be an integer$"),
        (SamplerConfig, {"horizon": 5.0}, "horizon is 5.0; it must be an integer$"),
        (SamplerConfig, {"num_envs": None}, "num_envs is None; it must be an integer$"),
        (SamplerConfig, {"num_groups": True}, "num_groups is True; it must be an integer$"),
        (SamplerConfig, {"num_workers": "2"}, "num_workers is '2'; it must be an integer, or None"),
        (SamplerConfig, {"step_timeout_seconds": "1"}, "seconds is '1'; it must be a number$"),
        (SamplerConfig, {"affinity": None}, "affinity is None; it must be auto or rotate or off"),
        (A2CConfig, {"lr": "high"}, "lr is 'high'; it must be a number, or None"),
        (A2CConfig, {"gamma": False}, "gamma is False; it must be a number$"),
        (PPOConfig, {"epochs": 2.5}, "epochs is 2.5; it must be an integer$"),
        (DQNConfig, {"prioritized": 1}, "prioritized is 1; it must be True or False$"),
        (AtariConfig, {"clip_reward": "no"}, "clip_reward is 'no'; it must be True or False$"),
        (ParallelConfig, {"pull_steps": "9"}, "pull_steps is '9'; it must be an integer"),
        (TrainConfig, {"env": 3}, "env is 3; it must be text$"),
        (TrainConfig, {"cpus": 3}, "cpus is 3; it must be a tuple, each of it an integer$"),
        (TrainConfig, {"cpus": ("1",)}, r"cpus is \('1',\); it must be a tuple, each of it an int"),
        (TrainConfig, {"info_keys": "abc"}, "info_keys is 'abc'; it must be a tuple, each of it t"),
        (
            TrainConfig,
            {"sampler": None},
            "sampler is None; it must be an instance of SamplerConfig",
        ),
        (TrainConfig, {"sampler": OwnSamplerConfig()}, "sampler is OwnSampler.* of no subclass$"),
        (
            TrainConfig,
            {"learner": None},
            "learner is None; it must be an instance of a subclass of",
        ),
        (EvaluateOptions, {"greedy": "no"}, "greedy is 'no'; it must be True or False$"),
        (EvaluateOptions, {"num_steps": "50"}, "num_steps is '50'; it must be an integer$"),
        (PlayOptions, {"seed": 1.5}, "seed is 1.5; it must be an integer$"),
        (
            A2CConfig,
            {"rmsprop_initial": 1e300},
            r"rmsprop_initial is 1e\+300; it must be at most 3",
        ),
        (GA3CConfig, {"num_predictors": 40000}, "num_predictors is 40000; it must be at most 1024"),
        (
            SamplerConfig,
            {"decorrelation_steps": 10**12},
            "decorrelation_steps is 10+; it must be a",
        ),
        (TrainConfig, {"run_dir": ""}, "run_dir= names no directory; name one, or leave it out$"),
        (TrainConfig, {"run_dir": "\udcff"}, r"run_dir is '\\udcff'.*UTF-8.*another name$"),
        (SweepOptions, {"sweep_dir": "\udcff"}, r"sweep_dir is '\\udcff'.*UTF-8.*another name$"),
        (TrainConfig, {"schedule_steps": -1}, "schedule_steps is -1; it must be at least 1$"),
        (PlotOptions, {"x": "step"}, "x is 'step'; it must be steps or frames or minutes$"),
    ],
)
def test_value_of_another_kind_is_refused(
    kind: Any, options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**options)


def test_lists_become_tuples_which_can_be_compared() -> None:
    given: dict[str, Any] = {"cpus": [0, 1], "info_keys": ["x"]}
    assert TrainConfig(**given) == TrainConfig(cpus=(0, 1), info_keys=("x",))


def test_numbers_of_numpy_become_those_that_can_be_saved() -> None:
    given: dict[str, Any] = {"num_envs": np.int64(8), "step_timeout_seconds": np.float64(2.5)}
    rates: dict[str, Any] = {"lr": np.float32(0.5), "gamma": 1, "log_norms": np.bool_(True)}
    config = TrainConfig(sampler=SamplerConfig(**given), learner=A2CConfig(**rates))
    saved = OmegaConf.to_yaml(OmegaConf.structured(config))
    for line in ("num_envs: 8", "step_timeout_seconds: 2.5", "lr: 0.5", "log_norms: true"):
        assert f" {line}\n" in saved


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_of_the_kinds_that_they_declare(preset: str) -> None:
    assert PRESETS[preset]().algo == preset or preset == "eps_rainbow"
