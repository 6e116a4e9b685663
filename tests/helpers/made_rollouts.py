"""Rollouts that are made up, and a network whose updates can be worked out by hand."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from accel_rl.agents import PolicyAgent, RolloutTensors
from accel_rl.algos import LearnerSpec
from accel_rl.envs import EnvSpec
from accel_rl.models import PolicyValue, PolicyValueModel
from accel_rl.parallel import FlatParameters, Local
from accel_rl.spaces import Leaf, discrete, map_leaves


def task_of(T: int, B: int, seed: int = 0) -> LearnerSpec:
    """The task of a learner from made-up rollouts, whatever the environment."""
    observation = Leaf((3,), np.dtype(np.float32))
    spec = EnvSpec(name="made up", observation=observation, action=discrete(2))
    return LearnerSpec(spec, B, T, seed)


def learner_of(config: Any, agent: Any, task: LearnerSpec) -> Any:
    """The learner of ``agent``, alone; its `Local` is ``sync``."""
    sync = Local(FlatParameters(agent.model), config.rule, config.max_gradient_norm)
    return config.make_learner(agent, sync, task)


def made_rollout(observation: Any, action: Any, reward: Tensor, **more: Any) -> RolloutTensors:
    """Nothing ends in it and all is valid, unless ``more`` says otherwise."""
    none = torch.zeros(0, dtype=torch.int64, device=reward.device)
    flag = torch.zeros_like(reward, dtype=torch.bool)
    fields = {
        "terminated": flag,
        "truncated": flag.clone(),
        "valid": ~flag,
        "final_observation": map_leaves(lambda leaf: leaf[0, :0], observation),
        "final_step": none,
        "final_env": none.clone(),
    }
    return RolloutTensors(observation, action, reward, **(fields | more))


def acted(agent: PolicyAgent, batch: RolloutTensors) -> RolloutTensors:
    """``batch`` with what an action server keeps of the steps, had ``agent`` acted in them."""
    T, B = batch.reward.shape
    observation, action = (
        map_leaves(lambda each: each[:T].flatten(0, 1), tree)
        for tree in (batch.observation, batch.action)
    )
    if batch.normalizer is not None:
        observation = batch.normalizer(observation)
    with torch.no_grad():
        outputs, value = agent.evaluate(observation, batch.sequences(slice(0, T)))
        log_prob = agent.distribution.log_prob(outputs, action)
    return batch._replace(log_prob=log_prob.view(T, B), value=value.view(T, B))


def numbers(T: int, B: int, num_actions: int, seed: int = 0) -> RolloutTensors:
    """Random numbers as observations; nothing ends."""
    g = torch.Generator().manual_seed(seed)
    return made_rollout(
        torch.randn(T + 1, B, generator=g),
        torch.randint(0, num_actions, (T, B), generator=g),
        torch.randn(T, B, generator=g),
    )


def vectors(T: int, B: int, *shape: int, generator: torch.Generator) -> RolloutTensors:
    """Random vectors or what ``shape`` says, and two even actions; one step in ten ends."""
    return made_rollout(
        torch.randn(T + 1, B, *shape, generator=generator),
        torch.randint(0, 2, (T, B), generator=generator),
        torch.randn(T, B, generator=generator),
        terminated=torch.rand(T, B, generator=generator) < 0.1,
        log_prob=torch.full((T, B), 0.5).log(),
        value=torch.zeros(T, B),
    )


class LinearModel(PolicyValueModel):
    """The observation, a number, is its own value; the policy of three actions starts uniform.

    ``seen``: what its learner asked with gradient.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.logits = nn.Parameter(torch.zeros(3))
        self.seen: list[Tensor] = []

    def forward(self, observation: Tensor) -> PolicyValue:
        if torch.is_grad_enabled():
            self.seen.append(observation.clone())
        logits = self.logits.expand(len(observation), 3)
        return PolicyValue(logits, self.scale * observation.float())
