"""Training and playing in this process, for tests of what is learned."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from made_rollouts import learner_of

from accel_rl.algos import LearnerConfig, LearnerSpec, NetworkSpec
from accel_rl.envs import make_env_factory
from accel_rl.samplers import ActionServer, SamplerConfig, SerialSampler

CPU = torch.device("cpu")


class Run:
    """An algorithm on ``env``, all in this process. ``network``: options of `NetworkSpec`."""

    def __init__(
        self,
        env: str | Callable[[], Any],
        settings: tuple[LearnerConfig, SamplerConfig],
        seed: int,
        **network: Any,
    ) -> None:
        torch.manual_seed(seed)
        config, sampler = settings
        self.factory, self.settings, self.seed = make_env_factory(env), sampler, seed
        self.sampler = SerialSampler(self.factory, config=sampler, seed=seed)
        spec = self.sampler.env_spec
        agent = config.make_agent(NetworkSpec("auto", spec, CPU, **network))
        task = LearnerSpec(spec, sampler.num_envs, sampler.horizon, seed)
        self.learner = learner_of(config, agent, task)
        self.server = ActionServer(agent, self.sampler, CPU)
        self.config, self.agent = config, agent
        self.sampler.start()

    def train(self, steps: int, begin: int = 0, end: int | None = None) -> None:
        """From step ``begin`` to ``end`` of ``steps``."""
        spec = self.sampler.rollout_spec
        for taken in range(begin, steps if end is None else end, spec.T * spec.B):
            self.sampler.collect(self.server)
            self.learner.update(self.server.finish(), progress=taken / steps)

    def learn(self, steps: int, enough: float, episodes: int) -> float:
        """Train until the mean return is ``enough``, at most ``steps``; return the last one."""
        spec = self.sampler.rollout_spec
        part = steps // 5 // (spec.T * spec.B) * spec.T * spec.B
        mean = -np.inf
        for begin in range(0, steps, part):
            self.train(steps, begin, min(begin + part, steps))
            mean = self.mean_return(episodes)
            if mean >= enough:
                break
        return mean

    def mean_return(self, episodes: int) -> float:
        """Of ``episodes`` episodes in other environments, without learning."""
        returns: list[float] = []
        with SerialSampler(self.factory, config=self.settings, seed=self.seed + 100) as sampler:
            server = ActionServer(self.config.evaluating(self.agent), sampler, CPU)
            while len(returns) < episodes:
                sampler.collect(server)
                returns += [episode.episode_return for episode in sampler.take_episodes()]
        return float(np.mean(returns))
