"""Learners on a GPU: the same as on the CPU, without waiting for the device."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from accel_rl.agents import RolloutTensors
from accel_rl.algos import (
    A2CConfig,
    DQNConfig,
    LearnerConfig,
    PPOConfig,
    make_agent,
    make_learner,
)
from accel_rl.envs import EnvSpec
from accel_rl.parallel import FlatParameters, Local

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

T, B = 4, 8
ENV = EnvSpec(
    name="toy", observation_shape=(3,), observation_dtype=np.dtype(np.float32), num_actions=2
)
SMALL: dict[str, Any] = {"batch_size": 16, "min_steps": 64, "replay_size": 1000}
CONFIGS: dict[str, LearnerConfig] = {
    "a2c": A2CConfig(),
    "ppo": PPOConfig(minibatch_size=T * B),  # one minibatch: the order of its steps is no matter
    "dqn": DQNConfig(**SMALL, replay_device="cpu"),  # drawn there, alike for both
    "rainbow": DQNConfig(
        **SMALL,
        replay_device="cpu",
        double=True,
        dueling=True,
        num_atoms=11,
        prioritized=True,
        n_step=3,
        optimizer="adam",
    ),
}


def batch(seed: int, device: torch.device) -> RolloutTensors:
    g = torch.Generator().manual_seed(seed)
    fields = RolloutTensors(
        observation=torch.randn(T + 1, B, 3, generator=g),
        action=torch.randint(0, 2, (T, B), generator=g),
        reward=torch.randn(T, B, generator=g),
        terminated=torch.rand(T, B, generator=g) < 0.1,
        truncated=torch.zeros(T, B, dtype=torch.bool),
        valid=torch.ones(T, B, dtype=torch.bool),
        final_observation=torch.empty(0, 3),
        final_step=torch.empty(0, dtype=torch.int64),
        final_env=torch.empty(0, dtype=torch.int64),
    )
    return RolloutTensors(*(field.to(device) for field in fields))


def make(config: LearnerConfig, device: torch.device) -> tuple[Any, Local]:
    torch.manual_seed(0)
    agent = make_agent(config, "mlp", ENV, device)
    exchange = Local(FlatParameters(agent.model), config.rule, config.max_gradient_norm)
    return make_learner(config, agent, exchange, ENV, B, T, seed=0), exchange


@contextlib.contextmanager
def no_synchronisation() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("algorithm", CONFIGS)
def test_updates_on_the_gpu_equal_those_on_the_cpu(algorithm: str) -> None:
    found = []
    for device in (torch.device("cpu"), torch.device("cuda")):
        learner, exchange = make(CONFIGS[algorithm], device)
        for seed in range(6):
            learner.update(batch(seed, device), progress=0.0)
        assert exchange.num_updates > 0
        found.append(exchange.parameters.parameter.cpu())
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("is_measured", [False, True], ids=["", "measured"])
@pytest.mark.parametrize("algorithm", CONFIGS)
def test_updates_with_everything_on_the_gpu_do_not_wait_for_it(
    algorithm: str, is_measured: bool
) -> None:
    config, device = CONFIGS[algorithm], torch.device("cuda")
    if isinstance(config, DQNConfig):
        config = replace(config, replay_device="cuda")
    config = replace(config, log_norms=is_measured, gradient_cosine_interval=int(is_measured))
    learner, exchange = make(config, device)
    rollouts = [batch(seed, device) for seed in range(6)]
    for each in rollouts[:4]:
        learner.update(each, progress=0.0)
    torch.cuda.synchronize()
    with no_synchronisation():
        for each in rollouts[4:]:
            learner.update(each, progress=0.0)
    assert exchange.parameters.parameter.isfinite().all()
