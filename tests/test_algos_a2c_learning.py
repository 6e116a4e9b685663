"""A2C learns what can be learned, and has to learn it."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from accel_rl.agents import CategoricalAgent
from accel_rl.algos import A2C, A2CConfig
from accel_rl.envs import make_env_factory
from accel_rl.models import make_model
from accel_rl.parallel import FlatParameters, Local
from accel_rl.samplers import ActionServer, SamplerConfig, SerialSampler

SEEDS = pytest.mark.parametrize("seed", [0, 1, 2])


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """On a busy machine threads that wait for each other make small networks many times slower."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Run:
    """A2C on ``env``, all in this process."""

    def __init__(self, env: str, config: A2CConfig, sampler: SamplerConfig, seed: int) -> None:
        torch.manual_seed(seed)
        self.sampler = SerialSampler(make_env_factory(env), sampler, seed)
        spec = self.sampler.env_spec
        model = make_model("auto", spec.observation_shape, spec.observation_dtype, spec.num_actions)
        exchange = Local(FlatParameters(model), config.rule, config.max_gradient_norm)
        agent = CategoricalAgent(model)
        self.learner = A2C(agent, config, exchange)
        self.server = ActionServer(agent, self.sampler, torch.device("cpu"))
        self.sampler.start()

    def train(self, steps: int) -> None:
        spec = self.sampler.rollout_spec
        for taken in range(0, steps, spec.T * spec.B):
            self.sampler.collect(self.server)
            self.learner.update(self.server.finish(), progress=taken / steps)

    def mean_return(self, episodes: int) -> float:
        """Of the next ``episodes`` episodes, without learning."""
        self.sampler.take_episodes()
        returns: list[float] = []
        while len(returns) < episodes:
            self.sampler.collect(self.server)
            returns += [episode.raw_return for episode in self.sampler.take_episodes()]
        return float(np.mean(returns))


def learn_catch(seed: int) -> tuple[float, float]:
    """Mean return before and after; 0.9 is 95 % of the balls caught."""
    run = Run("catch", A2CConfig(lr=2e-3), SamplerConfig(num_envs=16, horizon=10), seed)
    untrained = run.mean_return(episodes=500)
    run.train(steps=100_000)
    return untrained, run.mean_return(episodes=500)


def test_a2c_learns_catch_and_does_not_know_it_before() -> None:
    untrained, trained = learn_catch(seed=0)
    assert untrained < 0
    assert trained >= 0.9


@pytest.mark.learning
@SEEDS
def test_a2c_learns_catch_with_each_seed(seed: int) -> None:
    untrained, trained = learn_catch(seed)
    assert untrained < 0
    assert trained >= 0.9


@pytest.mark.learning
@SEEDS
def test_a2c_learns_cartpole_with_each_seed(seed: int) -> None:
    config = A2CConfig(
        lr=3e-3,
        lr_schedule="linear",
        gamma=0.98,
        gae_lambda=0.95,
        entropy_coefficient=0.0,
        max_gradient_norm=2.0,
        rmsprop_decay=0.99,
        rmsprop_eps=1e-5,
    )
    run = Run("CartPole-v1", config, SamplerConfig(num_envs=8, horizon=8), seed)
    assert run.mean_return(episodes=50) < 100
    run.train(steps=200_000)
    assert run.mean_return(episodes=50) >= 475  # the task's own threshold
