"""GA3C with its model on a GPU."""

import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from accel_rl.agents import PolicyAgent
from accel_rl.config import TrainConfig
from accel_rl.ga3c.learner import GA3C, GA3CConfig, Samples
from accel_rl.ga3c.threads import predict
from accel_rl.ga3c.versions import VersionExchange, Versions
from accel_rl.models import make_model
from accel_rl.parallel import FlatParameters
from accel_rl.samplers import SamplerConfig
from accel_rl.training.train import train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
]
LEARNER = GA3CConfig(lr=3e-3, reduction="mean", rmsprop_eps=1e-3, rmsprop_initial=0.0, tuner=False)


def make(device: str) -> tuple[PolicyAgent, VersionExchange]:
    torch.manual_seed(0)
    model = make_model("nips", (4, 84, 84), np.dtype(np.uint8), 6).to(device)
    flat = FlatParameters(model)
    return PolicyAgent(model), VersionExchange(flat, Versions(flat.parameter, LEARNER.rule, None))


def test_predictions_and_updates_are_those_of_the_cpu() -> None:
    rng = np.random.default_rng(0)
    image = rng.integers(256, size=(20, 4, 84, 84), dtype=np.uint8)
    uniform = rng.random(20)
    values, actions, parameters = [], [], []
    for device in ("cpu", "cuda"):
        agent, exchange = make(device)
        prediction = predict(agent, exchange, torch.device(device), False, image, uniform)
        values.append(prediction.value)
        actions.append(prediction.action)
        batch = Samples(
            torch.from_numpy(image).to(device),
            torch.from_numpy(actions[0]).to(device),
            torch.linspace(-1, 1, 20, device=device),
        )
        GA3C(agent, LEARNER, exchange).update(batch, 0.0)
        parameters.append(exchange.parameters.parameter.cpu())
    np.testing.assert_allclose(values[0], values[1], atol=1e-3)
    assert (actions[0] == actions[1]).mean() > 0.9
    torch.testing.assert_close(parameters[0], parameters[1], atol=1e-4, rtol=1e-3)


def test_run_on_a_gpu_ends_with_its_steps_taken(tmp_path: Path) -> None:
    config = TrainConfig(
        algo="ga3c",
        env="catch",
        model="mlp",
        total_steps=5_000,
        device="cuda",
        run_dir=str(tmp_path / "run"),
        sampler=SamplerConfig(num_envs=8, horizon=5, num_groups=4),
        learner=dataclasses.replace(LEARNER, num_predictors=2, num_trainers=2),
    )
    result = train(config, Console(file=io.StringIO()))
    assert result.status is not None and result.status.steps >= 5_000
    assert result.updates > 50
