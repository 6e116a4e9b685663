"""What a program gives samplers, saved policies and sweeps is refused by name where it is wrong."""

from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv
from saved_runs import trained

from accel_rl.envs import make_env_factory
from accel_rl.ga3c.sampler import QueuedSampler
from accel_rl.samplers import ParallelSampler, SamplerConfig, SamplerError, SerialSampler
from accel_rl.sweep.plan import plan_runs
from accel_rl.tools.policy import load_policy
from accel_rl.vector import VectorEnv

CATCH = make_env_factory("catch")
CONFIG = SamplerConfig(num_envs=4, num_groups=2)
QUEUED = {"most_agents": 4, "max_prediction_batch": 4, "training_queue_size": 4, "gamma": 0.9}


def make_queued(config: Any = CONFIG, seed: Any = 0, **options: Any) -> QueuedSampler:
    return QueuedSampler(CATCH, config, seed, **QUEUED | options)


MAKE: dict[str, Any] = {
    "serial": partial(SerialSampler, CATCH),
    "parallel": partial(ParallelSampler, CATCH),
    "queued": make_queued,
}


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"config": {"num_envs": 4}}, r"config is \{'num_envs': 4\}; it must be a SamplerConfig"),
        ({"seed": -1}, "seed is -1; it must be at least 0"),
        ({"seed": 1.5}, "seed is 1.5; it must be an integer"),
        ({"seed": True}, "seed is True; it must be an integer"),
    ],
    ids=["config", "negative", "fraction", "boolean"],
)
def test_sampler_takes_a_config_and_a_seed(kind: str, arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MAKE[kind](**arguments)


@pytest.mark.parametrize("make", [SerialSampler, ParallelSampler])
@pytest.mark.parametrize(
    ("env", "settings", "message"),
    [
        ("catch", {"horizn": 5}, "horizn is no setting of a sampler; did you mean horizon"),
        ("catch", {"x": 5}, "x is no setting of a sampler; there are .*num_envs"),
        ("catch", {"num_envs": 0}, "num_envs is 0; it must be at least 1"),
        (
            "catch",
            {"config": CONFIG, "num_envs": 3},
            "num_envs=3 does not divide into num_groups=2",
        ),
        ("Catch-v7", {}, "env=Catch-v7"),
        (3, {}, "env is 3; it must be a name or a function"),
    ],
)
def test_sampler_of_an_environment_and_settings(
    make: Any, env: Any, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make(env, **settings)


@pytest.mark.parametrize("make", [SerialSampler, ParallelSampler])
def test_sampler_takes_an_environment_by_name_or_as_a_function_that_makes_it(make: Any) -> None:
    """With as many groups as it can have, and the settings of a config unless others are given."""
    rollouts = []
    for env in ("CartPole-v1", CartPoleEnv, make_env_factory("CartPole-v1")):
        with make(env, num_envs=3, horizon=7, seed=5) as sampler:
            assert (sampler.config.num_envs, sampler.config.num_groups) == (3, 1)
            rollouts.append(
                sampler.collect(lambda step: (step.observation[:, 2] > 0).astype(int)).copy()
            )
    assert all(np.array_equal(rollouts[0].observation, each.observation) for each in rollouts)
    assert rollouts[0].observation.shape == (8, 3, 4)
    with make("catch", config=CONFIG, horizon=2) as sampler:
        assert sampler.config == replace(CONFIG, horizon=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_prediction_batch": 2.5}, "max_prediction_batch is 2.5; it must be an integer"),
        ({"training_queue_size": "a"}, "training_queue_size is 'a'; it must be an integer"),
        ({"most_agents": "8"}, "most_agents is '8'; it must be an integer"),
        ({"gamma": None}, "gamma is None; it must be a number"),
    ],
)
def test_sizes_of_queues_are_integers(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_queued(**options)


def test_number_of_agents_and_predictions_are_what_they_must_be() -> None:
    def actions_alone(observation: Any, uniform: Any) -> Any:
        return np.zeros(len(uniform), np.int64)

    with make_queued() as sampler:
        with pytest.raises(ValueError, match=r"num_agents is 2.5; it must be an integer"):
            sampler.set_num_agents(2.5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"policy returned ndarray; .* return a Prediction"):
            while True:
                sampler.serve(actions_alone)
    assert not sampler.is_running


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (([0, 1], [0]), "got actions that are no array: .*inhomogeneous"),
        (torch.zeros(4, requires_grad=True), "got actions of dtype float32; they must be integers"),
    ],
    ids=["ragged", "gradient"],
)
def test_actions_that_are_no_array_are_called_so(actions: object, message: str) -> None:
    with SerialSampler(CATCH, config=CONFIG) as sampler, pytest.raises(ValueError, match=message):
        sampler.collect(lambda step: actions)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 1.5}, "seed is 1.5; it must be an integer"),
        ({"seed": "a"}, "seed is 'a'; it must be an integer"),
        ({"seed": True}, "seed is True; it must be an integer"),
        ({"seed": [1, 2, 3, "a"]}, "seed is 'a'; it must be an integer, or None"),
        ({"options": 3}, "options is 3; it must be a dict, or None"),
    ],
)
def test_vector_environment_is_reset_with_integers(options: Any, message: str) -> None:
    with closing(VectorEnv(CATCH, 4)) as envs, pytest.raises(ValueError, match=message):
        envs.reset(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"checkpoint": 0.5}, "checkpoint is 0.5; it must be an integer or text, or None"),
        ({"greedy": "no"}, "greedy is 'no'; it must be True or False"),
        ({"seed": -1}, "seed is -1; it must be at least 0"),
        ({"seed": "a"}, "seed is 'a'; it must be an integer"),
    ],
)
def test_policy_is_loaded_with_what_it_takes(options: Any, message: str, tmp_path) -> None:
    with pytest.raises(ValueError, match=message):
        load_policy(tmp_path, **options)


def test_policy_is_loaded_with_numbers_of_numpy(tmp_path) -> None:
    run_dir = trained(tmp_path / "run", "env=catch")
    policy = load_policy(run_dir, np.int64(40), greedy=np.bool_(True), seed=np.int64(1))  # type: ignore[arg-type]
    assert policy.env_spec.name == "catch"


def test_reset_that_returns_the_observation_alone_is_told_so() -> None:
    class Old(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(-1, 1, (2,))
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return np.zeros(2, np.float32)  # of length 2, as a pair is

    message = r"environment 0 \(Old\) reset must return observation, info; it returned ndarray"
    with pytest.raises(SamplerError, match=message):
        SerialSampler(make_env_factory(Old), config=CONFIG).start()


@pytest.mark.parametrize(
    "axes",
    [{"seed": "0..100000000"}, {"seed": "0..4999", "num_envs": "2,4,8"}],
    ids=["range", "product"],
)
def test_sweep_of_a_slip_is_refused_at_once(axes: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"at most 10,000"):
        plan_runs({"env": "catch", **axes})
