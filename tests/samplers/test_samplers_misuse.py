"""Samplers that are used in a way that cannot work say what to do instead."""

import copy
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from batches import Walks
from sampler_cases import KINDS, zeros
from tiers import processes
from toy_envs import ToyEnv

from accel_rl.envs import Batched, make_env_factory
from accel_rl.samplers import ParallelSampler, SamplerConfig, SamplerError, SerialSampler
from accel_rl.samplers.block import environment_seed
from accel_rl.vector import VectorEnv

CONFIG = SamplerConfig(num_envs=4, horizon=5, num_workers=1)


@KINDS
def test_a_sampler_collects_one_rollout_at_a_time(kind):
    message = "collect was called while this sampler is in another collect"
    with kind(ToyEnv, config=CONFIG) as sampler:
        begun, may_go_on = threading.Event(), threading.Event()

        def wait(step) -> np.ndarray:
            begun.set()
            assert may_go_on.wait(60)
            return zeros(step)

        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(sampler.collect, wait)
            assert begun.wait(60)
            with pytest.raises(SamplerError, match=message):
                sampler.collect(zeros)
            with pytest.raises(SamplerError, match=f"get_state{message[7:]}"):
                sampler.get_state()
            may_go_on.set()
            assert first.result(60) is sampler.rollout
        sampler.collect(zeros)  # nothing has happened to it
        with pytest.raises(SamplerError, match=message):
            sampler.collect(lambda _: sampler.collect(zeros))


@pytest.mark.parametrize("factory", [ToyEnv, Batched(Walks)])
def test_start_tells_its_random_first_steps_and_ends_where_that_raises(factory, monkeypatch):
    monkeypatch.setattr("accel_rl.samplers.local_pool.LOOK_SECONDS", -1.0)
    config, told = replace(CONFIG, decorrelation_steps=30), []
    with closing(SerialSampler(factory, config=config, seed=3)) as sampler:
        sampler.start(look=told.append)
    seeds = [environment_seed(3, b).spawn(2)[1] for b in range(4)]
    expected = sum(int(np.random.default_rng(seed).integers(31)) for seed in seeds)
    assert told == sorted(told) and told[-1] == expected > 30

    def refuse(num_steps: int) -> None:
        if num_steps > 5:
            raise TimeoutError

    sampler = SerialSampler(factory, config=config, seed=3)
    with pytest.raises(TimeoutError):
        sampler.start(look=refuse)
    with pytest.raises(SamplerError, match="was closed"):
        sampler.start()


def test_a_serial_sampler_that_has_not_started_can_be_copied():
    sampler = copy.deepcopy(SerialSampler(ToyEnv, config=CONFIG))
    with sampler:
        assert sampler.collect(zeros).valid.all()


@pytest.mark.parametrize("kind", [SerialSampler, VectorEnv, processes(ParallelSampler)])
def test_a_factory_that_returns_one_environment_again_is_refused(kind):
    env = gymnasium.make("CartPole-v1")
    factory = make_env_factory(lambda: gymnasium.wrappers.FlattenObservation(env))
    with pytest.raises(SamplerError, match="has returned the same environment twice"):
        if kind is VectorEnv:
            VectorEnv(lambda: env, 2, num_workers=0, num_groups=2).reset()
        else:
            kind(factory, config=CONFIG).start()


@KINDS
def test_what_is_no_policy_or_no_action_is_refused_and_the_sampler_goes_on(kind):
    with kind(ToyEnv, config=CONFIG) as sampler:
        with pytest.raises(ValueError, match=r"policy is None; .*a function of a PolicyIn"):
            sampler.collect(None)
        with pytest.raises(ValueError, match=r"action 4; .*0 \.\. 3"):
            sampler.collect(lambda step: zeros(step) + 4)
        sampler.collect(zeros)


class Unpicklable:
    def __init__(self):
        self.lock = threading.Lock()

    def __call__(self):
        return ToyEnv()


@pytest.mark.parametrize(
    "options, tokens",
    [
        ({"num_envs": 9}, "num_envs=9 .*num_groups=2.*num_envs=8, num_envs=10"),
        ({"num_envs": 0}, "num_envs is 0; .*at least 1"),
        ({"num_groups": 0}, "num_groups is 0"),
        ({"step_timeout_seconds": 0}, "step_timeout_seconds is 0; .*above 0"),
        ({"decorrelation_steps": -1}, "decorrelation_steps is -1; .*at least 0"),
        ({"reset_policy": "later"}, r"reset_policy is 'later'; .*immediate\|wait"),
        ({"affinity": "none"}, r"affinity is 'none'; .*auto\|rotate\|off"),
        ({"on_worker_failure": "ignore"}, r"on_worker_failure is 'ignore'; .*raise\|restart"),
        ({"num_workers": 9}, "num_workers is 9; .*num_envs=8 .*at most 8"),
        ({"cpus": [4095]}, r"cpus=\[4095\].*not available"),
        ({"factory": Unpicklable()}, "factory cannot be sent to worker"),
        (
            {"num_envs": 10**6, "horizon": 10**6},
            "1000000 environments .*horizon=1000000 .*GB.*free",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "-",
)
def test_what_is_impossible_is_refused(options, tokens):
    settings = {"num_envs": 8, "num_groups": 2, "num_workers": 2}
    own = {name: options.pop(name) for name in ("cpus", "factory") if name in options}
    with pytest.raises(ValueError, match=tokens):
        config = SamplerConfig(**settings | options)
        ParallelSampler(own.pop("factory", ToyEnv), config=config, **own).start()


@pytest.mark.parametrize("num_envs", [10**8, 10**6])
def test_more_environments_than_fit_are_refused_before_anything_is_allocated(num_envs, monkeypatch):
    monkeypatch.setattr("accel_rl.samplers.base.free_memory", lambda: 10_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=f"num_envs|of {num_envs} environments"):
            VectorEnv("CartPole-v1", num_envs)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
