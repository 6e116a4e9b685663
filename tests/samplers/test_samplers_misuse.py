"""Samplers that are used in a way that cannot work say what to do instead."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import gymnasium
import numpy as np
import pytest
from sampler_cases import zeros
from toy_envs import FaultyEnv, ToyEnv

from accel_rl.envs import make_env_factory
from accel_rl.samplers import ParallelSampler, SamplerConfig, SamplerError, SerialSampler
from accel_rl.vector import VectorEnv

CONFIG = SamplerConfig(num_envs=4, horizon=5)
ONE_WORKER = SamplerConfig(num_envs=2, horizon=5, num_workers=1, num_groups=2)


@pytest.mark.parametrize("kind", [ParallelSampler, SerialSampler])
def test_a_sampler_that_an_error_of_an_environment_closed_says_so(kind):
    sampler = kind(partial(FaultyEnv, "raise"), config=CONFIG)
    with pytest.raises(SamplerError, match="not running; call start"):
        sampler.collect(zeros)
    sampler.start()
    with pytest.raises(SamplerError, match="the simulator broke"):
        for _ in range(20):
            sampler.collect(zeros)
    message = r"closed by an error in an earlier collect \(\w+Error: .*make another one"
    with pytest.raises(SamplerError, match=message):
        sampler.collect(zeros)


@pytest.mark.parametrize("kind", [ParallelSampler, SerialSampler])
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


def test_a_serial_sampler_that_has_not_started_can_be_copied():
    sampler = copy.deepcopy(SerialSampler(ToyEnv, config=CONFIG))
    with sampler:
        assert sampler.collect(zeros).valid.all()


@pytest.mark.parametrize("kind", [ParallelSampler, SerialSampler, VectorEnv])
def test_a_factory_that_returns_one_environment_again_is_refused(kind):
    env = gymnasium.make("CartPole-v1")
    factory = make_env_factory(lambda: gymnasium.wrappers.FlattenObservation(env))
    with pytest.raises(SamplerError, match="has returned the same environment twice"):
        if kind is VectorEnv:
            VectorEnv(lambda: env, 2, num_workers=1, num_groups=2).reset()
        else:
            kind(factory, config=ONE_WORKER if kind is ParallelSampler else CONFIG).start()


def test_slots_beyond_the_rollout_take_no_memory():
    config = SamplerConfig(num_envs=4, horizon=5, final_observation_slots=10**300)
    with SerialSampler(ToyEnv, config=config) as sampler:
        assert len(sampler.collect(zeros).final_observation) == 5


@pytest.mark.parametrize("kind", [ParallelSampler, SerialSampler])
def test_what_is_no_policy_is_refused_and_the_sampler_goes_on(kind):
    with kind(ToyEnv, config=CONFIG) as sampler:
        with pytest.raises(ValueError, match="policy is None; it must be a function of a PolicyIn"):
            sampler.collect(None)
        sampler.collect(zeros)
