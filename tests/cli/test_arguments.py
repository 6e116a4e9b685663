"""What a program gives samplers, saved policies and sweeps is refused by name where it is wrong."""

from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Optional

import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv
from refusals import words
from saved_runs import trained

from accel_rl.algos import A2CConfig
from accel_rl.envs import make_env_factory
from accel_rl.ga3c.sampler import QueuedSampler
from accel_rl.samplers import ParallelSampler, SamplerConfig, SerialSampler
from accel_rl.sweeps.plan import plan_runs
from accel_rl.tools.policy import load_policy
from accel_rl.vector import VectorEnv

CATCH = make_env_factory("catch")
CONFIG = SamplerConfig(num_envs=4, num_groups=2)
QUEUED = {"max_agents": 4, "max_prediction_batch": 4, "training_queue_size": 4, "gamma": 0.9}


def make_queued(config: Any = CONFIG, seed: Any = 0, **options: Any) -> QueuedSampler:
    return QueuedSampler(CATCH, config, seed, **QUEUED | options)


MAKE: dict[str, Any] = {
    "serial": partial(SerialSampler, CATCH),
    "parallel": partial(ParallelSampler, CATCH),
    "queued": make_queued,
}

Name = Literal["left", "right"]


@dataclass(frozen=True, kw_only=True)
class Own(A2CConfig):
    """A user's own config, in a module whose annotations are no text."""

    rate: float = 1.0
    limit: Optional[float] = None  # noqa: UP045
    quoted: "int" = 1
    side: Name = "left"
    sizes: tuple[int, ...] = ()
    threads: int | Literal["auto"] = 1
    where: Path | None = None  # of no kind that is checked

    make_learner = A2CConfig.make_learner


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rate": "abc"}, "rate is 'abc'; it must be: number"),
        ({"rate": [1]}, r"rate is \[1\]; it must be: number"),
        ({"limit": "abc"}, "limit is 'abc'; it must be: number or none"),
        ({"quoted": 1.5}, "quoted is 1.5; it must be: integer"),
        ({"side": "up"}, "side is 'up'; it must be: left\\|right"),
        ({"sizes": (1, "a")}, r"sizes is \(1, 'a'\); it must be: list of integer"),
        ({"threads": "all"}, "threads is 'all'; it must be: integer or auto"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_options_of_a_config_of_ones_own_are_checked(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Own(**given)


def test_numbers_of_numpy_in_a_config_of_ones_own_become_plain() -> None:
    config = Own(rate=np.float32(0.5), limit=np.float64(2), sizes=[1, 2], where=Path("here"))
    assert (type(config.rate), type(config.limit), config.sizes) == (float, float, (1, 2))


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"config": {"num_envs": 4}}, "config is {'num_envs': 4}; SamplerConfig"),
        ({"seed": -1}, "seed is -1; at least 0"),
        ({"seed": True}, "seed is True; integer"),
    ],
    ids=["config", "negative", "boolean"],
)
def test_sampler_takes_a_config_and_a_seed(kind: str, arguments: Any, said: str) -> None:
    with pytest.raises(ValueError, match=words(said)):
        MAKE[kind](**arguments)


def reset(**options: Any) -> None:
    with closing(VectorEnv(CATCH, 4)) as envs:
        envs.reset(**options)


def collect(actions: Any) -> None:
    with SerialSampler(CATCH, config=CONFIG) as sampler:
        sampler.collect(lambda step: actions)


CALLS: list[tuple[Any, dict[str, Any], str]] = [
    *(
        (make, {"factory": env, **options}, said)
        for make in (SerialSampler, ParallelSampler)
        for env, options, said in (
            ("catch", {"horizn": 5}, "horizn setting horizon"),
            ("catch", {"x": 5}, "x setting there are num_envs"),
            ("catch", {"num_envs": 0}, "num_envs is 0; at least 1"),
            ("catch", {"config": CONFIG, "num_envs": 3}, "num_envs=3 num_groups=2"),
            ("Catch-v7", {}, "env=Catch-v7"),
            (3, {}, "env is 3; a name or a function"),
        )
    ),
    (make_queued, {"max_prediction_batch": 2.5}, "max_prediction_batch is 2.5; integer"),
    (make_queued, {"training_queue_size": "a"}, "training_queue_size is 'a'; integer"),
    (collect, {"actions": ([0, 1], [0])}, "actions no array: inhomogeneous"),
    (collect, {"actions": torch.zeros(4, requires_grad=True)}, "actions float32; integers"),
    (reset, {"seed": 1.5}, "seed is 1.5; integer"),
    (reset, {"seed": True}, "seed is True; integer"),
    (reset, {"seed": [1, 2, 3, "a"]}, "seed is 'a'; integer or none"),
    (reset, {"options": 3}, "options is 3; a dict, or None"),
    (load_policy, {"path": "x", "checkpoint": 0.5}, "checkpoint is 0.5; integer or text or"),
    (load_policy, {"path": "x", "greedy": "no"}, "greedy is 'no'; true|false"),
    (load_policy, {"path": "x", "seed": -1}, "seed is -1; at least 0"),
    (plan_runs, {"axes": {"env": "catch", "seed": "0..100000000"}}, "more than 10,000"),
    (plan_runs, {"axes": {"seed": "0..4999", "num_envs": "2,4,8"}}, "more than 10,000"),
]


@pytest.mark.parametrize(("call", "options", "said"), CALLS)
def test_what_a_program_gives_is_refused_by_name(
    call: Any, options: dict[str, Any], said: str
) -> None:
    first, *rest = options.items()
    with pytest.raises(ValueError, match=words(said)):
        call(first[1], **dict(rest)) if first[0] in NAMELESS else call(**options)


NAMELESS = ("factory", "path", "axes")


@pytest.mark.parametrize(
    "make",
    [
        SerialSampler,
        pytest.param(ParallelSampler, marks=[pytest.mark.slow, pytest.mark.processes]),
    ],
)
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


def test_policy_is_loaded_with_numbers_of_numpy(tmp_path) -> None:
    run_dir = trained(tmp_path / "run", "env=catch")
    policy = load_policy(run_dir, np.int64(40), greedy=np.bool_(True), seed=np.int64(1))  # type: ignore[arg-type]
    assert policy.env_spec.name == "catch"
