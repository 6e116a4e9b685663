"""How many threads learning has: one where an update is little work."""

import numpy as np
import pytest
import torch
from saved_runs import trained

from accel_rl.algos import A2C
from accel_rl.models import make_model
from accel_rl.parallel import FlatParameters
from accel_rl.training import torch_threads
from accel_rl.training.command_line import parse_arguments
from accel_rl.training.torch_threads import has_small_updates


@pytest.mark.parametrize(
    ("options", "num_samples"),
    [
        ("num_envs=16 horizon=5", 80),
        ("algo=ppo num_envs=8 horizon=64 minibatch_size=128", 128),
        ("algo=dqn num_envs=8 horizon=64 batch_size=32", 32),
    ],
)
@pytest.mark.parametrize("difference", [-1, 0])
def test_updates_are_small_by_parameters_times_samples(
    options: str, num_samples: int, difference: int, monkeypatch
) -> None:
    parameters = FlatParameters(make_model("mlp", (4,), np.dtype(np.float32), 2))
    size = parameters.parameter.numel() * num_samples
    monkeypatch.setattr(torch_threads, "_LEAST_SHARED", size - difference)
    config = parse_arguments(["env=catch", *options.split()])
    assert has_small_updates(config, parameters) == (difference == -1)


def test_updates_of_convolutions_are_not_small() -> None:
    parameters = FlatParameters(make_model("a3c", (4, 84, 84), np.dtype(np.uint8), 2))
    config = parse_arguments(["env=pong", "num_envs=2", "horizon=1"])
    assert not has_small_updates(config, parameters)


@pytest.mark.parametrize(
    ("options", "num_threads"),
    [
        ("num_envs=2", 1),
        ("num_envs=2 overlap=true", 1),
        ("num_envs=500 horizon=10 total_steps=5000", 4),
        ("num_envs=500 horizon=10 total_steps=5000 overlap=true", 2),
    ],
)
def test_small_updates_have_one_thread(options: str, num_threads: int, tmp_path, monkeypatch):
    """Others as many as there are CPUs, or half as many while simulators work."""
    found, update = set(), A2C.update

    def look(self: A2C, *arguments: object):
        found.add(torch.get_num_threads())
        return update(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(A2C, "update", look)
    monkeypatch.setattr(torch_threads, "available_cpus", lambda: range(4))
    monkeypatch.setattr(torch_threads, "cpu_quota", lambda: None)
    trained(tmp_path / "run", "env=catch", *options.split())
    assert found == {num_threads}
