"""Training and playing in this process, for tests of what is learned."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from accel_rl.algos import LearnerConfig, Network, Task
from accel_rl.envs import make_env_factory
from accel_rl.parallel import FlatParameters, Local
from accel_rl.samplers import ActionServer, SamplerConfig, SerialSampler

CPU = torch.device("cpu")


class Run:
    """An algorithm on ``env``, all in this process. ``network``: options of `Network`."""

    def __init__(
        self,
        env: str | Callable[[], Any],
        settings: tuple[LearnerConfig, SamplerConfig],
        seed: int,
        **network: Any,
    ) -> None:
        torch.manual_seed(seed)
        config, sampler = settings
        self.sampler = SerialSampler(make_env_factory(env), config=sampler, seed=seed)
        spec = self.sampler.env_spec
        agent = config.make_agent(Network("auto", spec, CPU, **network))
        exchange = Local(FlatParameters(agent.model), config.rule, config.max_gradient_norm)
        self.learner = config.make_learner(
            agent, exchange, Task(spec, sampler.num_envs, sampler.horizon, seed)
        )
        self.server = ActionServer(agent, self.sampler, CPU)
        self.config, self.agent = config, agent
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
        server = ActionServer(self.config.evaluating(self.agent), self.sampler, CPU)
        while len(returns) < episodes:
            self.sampler.collect(server)
            returns += [episode.raw_return for episode in self.sampler.take_episodes()]
        return float(np.mean(returns))
