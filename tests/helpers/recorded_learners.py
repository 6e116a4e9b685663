"""Learners, recorded or not, on made-up rollouts: for tests on the CPU and on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any

import numpy as np
import torch
from flat_views import check_views
from torch import Tensor

from accel_rl.agents import QAgent, RolloutTensors
from accel_rl.algos import (
    A2CConfig,
    DQNConfig,
    LearnerConfig,
    LearnerSpec,
    NetworkSpec,
    PPOConfig,
    PQNConfig,
)
from accel_rl.envs import EnvSpec
from accel_rl.graphs import Graphs
from accel_rl.models import one_step
from accel_rl.parallel import AllReduce, FlatParameters, Group, Local
from accel_rl.spaces import Leaf, discrete

T, B, NUM_ACTIONS = 4, 6, 4
SEEDING = Lock()  # learners in step are made in several threads
IMAGES = EnvSpec(
    name="images",
    observation=Leaf((2, 44, 44), np.dtype(np.uint8)),
    action=discrete(NUM_ACTIONS),
)
Q: dict[str, Any] = {
    "batch_size": 8,
    "learning_starts": 48,
    "buffer_size": 600,
    "lr_schedule": "linear",
}
CONFIGS: dict[str, Callable[[], LearnerConfig]] = {
    "a2c": lambda: A2CConfig(lr_schedule="linear", normalize_advantage=True),
    "vtrace": lambda: A2CConfig(vtrace=True, gae_lambda=0.9),
    "a2c-bfloat16": lambda: A2CConfig(precision="bfloat16"),
    "ppo": lambda: PPOConfig(
        minibatch_size=12, clip_range=0.01, clip_value=True, max_gradient_norm=0.5
    ),
    "a2c-lstm": lambda: A2CConfig(),
    "ppo-lstm": lambda: PPOConfig(minibatch_size=12),
    "pqn-lstm": lambda: PQNConfig(minibatch_size=12),
    "pqn": lambda: PQNConfig(minibatch_size=12, lr_schedule="linear"),
    "double-dueling-prioritized": lambda: DQNConfig(
        **Q, double=True, dueling=True, prioritized=True, optimizer="adam", epsilon_per_env=True
    ),
    "categorical": lambda: DQNConfig(**Q, num_atoms=21, n_step=3, double=True, dueling=True),
    "implicit-munchausen-noisy": lambda: DQNConfig(
        **Q, num_atoms=5, quantiles="implicit", munchausen=True, noisy=True, dueling=True
    ),
}


def rollouts(device: torch.device, num: int) -> Iterator[RolloutTensors]:
    """Random ones. Some steps are terminal; in every other rollout one is truncated.

    Of a device, the host is told that they follow on each other, so that nobody compares them.
    """
    g = torch.Generator().manual_seed(0)
    shape = IMAGES.observation_shape
    for i in range(num):
        M = i % 2
        truncated = torch.zeros(T, B, dtype=torch.bool)
        truncated[2, :M] = True
        batch = RolloutTensors(
            observation=torch.randint(0, 256, (T + 1, B, *shape), generator=g, dtype=torch.uint8),
            action=torch.randint(0, NUM_ACTIONS, (T, B), generator=g),
            reward=torch.randn(T, B, generator=g),
            terminated=(torch.rand(T, B, generator=g) < 0.1) & ~truncated,
            truncated=truncated,
            valid=torch.rand(T, B, generator=g) < 0.9,
            final_observation=torch.randint(0, 256, (M, *shape), generator=g, dtype=torch.uint8),
            final_step=torch.full((M,), 2),
            final_env=torch.zeros(M, dtype=torch.int64),
            log_prob=torch.rand(T, B, generator=g).log(),
            value=torch.linspace(-1, 1, T * B).view(T, B),
        )
        host = batch.flags._replace(follows=True) if device.type != "cpu" else None
        yield batch.map(lambda field: field.to(device))._replace(host=host)


class Run:
    """A learner with its agent, on ``device``; ``model``: the network's name, in ``dtype``.

    ``group``: of learners in step, of which this is one.
    """

    def __init__(
        self,
        name: str,
        graphs: Graphs | None,
        device: torch.device,
        model: str = "a3c",
        dtype: torch.dtype = torch.float32,
        group: Group | None = None,
    ) -> None:
        config = CONFIGS[name]()
        memory: Any = "lstm" if name.endswith("lstm") else None
        with SEEDING:
            torch.manual_seed(0)
            network = NetworkSpec(model, IMAGES, device, memory=memory, graphs=graphs)
            self.agent = config.make_agent(network)
        flat = FlatParameters(self.agent.model.to(dtype))
        given = flat, config.rule, config.max_gradient_norm
        self.sync = Local(*given) if group is None else AllReduce(*given, group)
        self.learner = config.make_learner(self.agent, self.sync, LearnerSpec(IMAGES, B, T, seed=0))
        self.device, self.dtype = device, dtype
        if isinstance(self.agent, QAgent) and self.agent.support is not None:
            self.agent.support = self.agent.support.to(dtype)
        if self.agent.remembers:
            shape = T + 1, B, self.agent.model.state_size
            states = torch.randn(shape, generator=torch.Generator().manual_seed(0))
            self.states = states.to(device, dtype)

    def update(self, batch: RolloutTensors, progress: float) -> dict[str, Tensor]:
        batch = batch._replace(reward=batch.reward.to(self.dtype))
        return self.learner.update(self._with_state(batch), progress)

    def act(self, batch: RolloutTensors, seed: int) -> Tensor:
        g = torch.Generator().manual_seed(seed)
        noise = torch.rand(B, dtype=torch.float64, generator=g).to(self.device)
        if self.agent.remembers:
            states = self._with_state(batch).recurrent_state
            assert states is not None
            memory = one_step(states[0], None)
            return self.agent.act(batch.observation[0], noise, slice(0, B), memory)[0]
        return self.agent.act(batch.observation[0], noise, slice(0, B))

    def _with_state(self, batch: RolloutTensors) -> RolloutTensors:
        if not self.agent.remembers:
            return batch
        return batch._replace(recurrent_state=self.states)


def assert_equal(recorded: Run, eager: Run, tolerance: float, num_updates: int = 6) -> None:
    """Both learn from the same rollouts while the schedules fall, and act in between.

    ``tolerance``: of parameters, as a part of their change, and of metrics, of themselves.
    """
    before = eager.sync.parameters.parameter.clone()
    for i, batch in enumerate(rollouts(eager.device, num_updates)):
        progress = i / num_updates
        found, expected = recorded.update(batch, progress), eager.update(batch, progress)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            given = {"rtol": tolerance, "atol": tolerance, "check_dtype": False, "msg": name}
            torch.testing.assert_close(found[name], value, **given)
        assert torch.equal(recorded.act(batch, i), eager.act(batch, i))
    after = eager.sync.parameters.parameter
    difference = (recorded.sync.parameters.parameter - after).norm() / (after - before).norm()
    assert difference < tolerance
    check_views(recorded.sync.parameters)
