"""Each algorithm learns what can be learned, and has to learn it."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from accel_rl.agents import CategoricalAgent
from accel_rl.algos import A2CConfig, ActorCriticConfig, PPOConfig, make_learner
from accel_rl.envs import make_env_factory
from accel_rl.models import make_model
from accel_rl.parallel import FlatParameters, Local
from accel_rl.samplers import ActionServer, SamplerConfig, SerialSampler

SEEDS = pytest.mark.parametrize("seed", [0, 1, 2])
ALGORITHMS = pytest.mark.parametrize("algorithm", ["a2c", "ppo"])

CATCH: dict[str, tuple[ActorCriticConfig, SamplerConfig]] = {
    "a2c": (A2CConfig(lr=2e-3), SamplerConfig(num_envs=16, horizon=10)),
    "ppo": (PPOConfig(minibatch_size=80), SamplerConfig(num_envs=16, horizon=20)),
}
CARTPOLE: dict[str, tuple[ActorCriticConfig, SamplerConfig]] = {
    "a2c": (
        A2CConfig(
            lr=3e-3,
            lr_schedule="linear",
            gamma=0.98,
            gae_lambda=0.95,
            entropy_coefficient=0.0,
            max_gradient_norm=2.0,
            rmsprop_decay=0.99,
            rmsprop_eps=1e-5,
        ),
        SamplerConfig(num_envs=8, horizon=8),
    ),
    "ppo": (
        PPOConfig(
            minibatch_size=256,
            epochs=10,
            gamma=0.98,
            gae_lambda=0.9,
            entropy_coefficient=0.0,
            value_coefficient=0.5,
            max_gradient_norm=0.5,
            normalize_advantage=True,
        ),
        SamplerConfig(num_envs=8, horizon=64),
    ),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """On a busy machine threads that wait for each other make small networks many times slower."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Run:
    """An algorithm on ``env``, all in this process."""

    def __init__(
        self, env: str, settings: tuple[ActorCriticConfig, SamplerConfig], seed: int
    ) -> None:
        torch.manual_seed(seed)
        config, sampler = settings
        self.sampler = SerialSampler(make_env_factory(env), sampler, seed)
        spec = self.sampler.env_spec
        model = make_model("auto", spec.observation_shape, spec.observation_dtype, spec.num_actions)
        exchange = Local(FlatParameters(model), config.rule, config.max_gradient_norm)
        agent = CategoricalAgent(model)
        self.learner = make_learner(config, agent, exchange, seed)
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


def learn_catch(algorithm: str, seed: int) -> tuple[float, float]:
    """Mean return before and after; 0.9 is 95 % of the balls caught."""
    run = Run("catch", CATCH[algorithm], seed)
    untrained = run.mean_return(episodes=500)
    run.train(steps=100_000)
    return untrained, run.mean_return(episodes=500)


@ALGORITHMS
def test_catch_is_learned_and_not_known_before(algorithm: str) -> None:
    untrained, trained = learn_catch(algorithm, seed=0)
    assert untrained < 0
    assert trained >= 0.9


@pytest.mark.learning
@SEEDS
@ALGORITHMS
def test_catch_is_learned_with_each_seed(algorithm: str, seed: int) -> None:
    untrained, trained = learn_catch(algorithm, seed)
    assert untrained < 0
    assert trained >= 0.9


@pytest.mark.learning
@SEEDS
@ALGORITHMS
def test_cartpole_is_learned_with_each_seed(algorithm: str, seed: int) -> None:
    run = Run("CartPole-v1", CARTPOLE[algorithm], seed)
    assert run.mean_return(episodes=50) < 100
    run.train(steps=200_000)
    assert run.mean_return(episodes=50) >= 475  # the task's own threshold
