"""GA3C with its model on a GPU."""

import copy
import dataclasses
import io
import os
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from rich.console import Console

from accel_rl.agents import PolicyAgent
from accel_rl.config import TrainConfig
from accel_rl.ga3c.learner import GA3C, GA3CConfig, Samples
from accel_rl.ga3c.predictor import Places, Predictor, padded_size
from accel_rl.ga3c.versions import Versions, VersionSync
from accel_rl.graphs import Graphs
from accel_rl.models import make_model
from accel_rl.parallel import FlatParameters
from accel_rl.samplers import SamplerConfig
from accel_rl.spaces import Leaf
from accel_rl.training.train import train

IS_EMULATED = "EMULATED_GPU" in os.environ
LEARNER = GA3CConfig(
    lr=3e-3, loss_reduction="mean", rmsprop_eps=1e-3, rmsprop_initial=0.0, tuner=False
)


def make(device: str) -> tuple[PolicyAgent, VersionSync]:
    torch.manual_seed(0)
    model = make_model("nips", Leaf((4, 84, 84), np.dtype(np.uint8)), 6).to(device)
    flat = FlatParameters(model)
    return PolicyAgent(model), VersionSync(flat, Versions(flat.parameter, LEARNER.rule, None))


def test_predictions_and_updates_are_those_of_the_cpu() -> None:
    rng = np.random.default_rng(0)
    image = rng.integers(256, size=(20, 4, 84, 84), dtype=np.uint8)
    noise = rng.random(20)
    values, actions, parameters = [], [], []
    for device in ("cpu", "cuda"):
        agent, sync = make(device)
        prediction = Predictor(agent, sync, torch.device(device), False)(image, noise)
        values.append(prediction.value)
        actions.append(prediction.action)
        batch = Samples(
            torch.from_numpy(image).to(device),
            torch.from_numpy(actions[0]).to(device),
            torch.linspace(-1, 1, 20, device=device),
        )
        GA3C(agent, LEARNER, sync).update(batch, 0.0)
        parameters.append(sync.parameters.parameter.cpu())
    np.testing.assert_allclose(values[0], values[1], atol=1e-3)
    assert (actions[0] == actions[1]).mean() > 0.9
    torch.testing.assert_close(parameters[0], parameters[1], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(("choice", "vtrace"), [("off", False), ("on", True)])
def test_run_on_a_gpu_ends_with_its_steps_taken(
    choice: Any, vtrace: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if IS_EMULATED:  # else there are 32, and then the same ones again
        monkeypatch.setattr("torch_cuda.NUM_STREAMS", 1)
    config = TrainConfig(
        algo="ga3c",
        env="catch",
        model="mlp",
        total_steps=4_000,
        device="cuda",
        cuda_graphs=choice,
        run_dir=str(tmp_path / "run"),
        sampler=SamplerConfig(num_envs=8, horizon=5, num_groups=4),
        learner=dataclasses.replace(LEARNER, num_predictors=2, num_trainers=2, vtrace=vtrace),
    )
    result = train(config, Console(file=io.StringIO()))
    assert result.status is not None and result.status.steps >= 4_000
    assert result.updates > 50


def make_small(*, copies: bool) -> tuple[PolicyAgent, VersionSync]:
    """For vectors of 6 numbers and 3 actions; gradients are clipped."""
    torch.manual_seed(0)
    model = make_model("mlp", Leaf((6,), np.dtype(np.float32)), 3).to("cuda")
    flat = FlatParameters(model)
    versions = Versions(flat.parameter, LEARNER.rule, 0.5)
    return PolicyAgent(model), VersionSync(flat, versions, copies=copies)


def batches(rng: np.random.Generator, number: int) -> list[dict[str, np.ndarray]]:
    """Of 12 to 24 samples each; the last of a segment has discount 0."""
    made = []
    for n in rng.integers(12, 25, number):
        discount = np.where(rng.random(n) < 0.2, 0, 0.99).astype(np.float32)
        discount[-1] = 0
        made.append(
            {
                "observation": rng.standard_normal((n, 6), np.float32),
                "action": rng.integers(3, size=n),
                "return_": rng.standard_normal(n, np.float32),
                "behaviour_probability": rng.uniform(0.1, 1, n).astype(np.float32),
                "discount": discount,
            }
        )
    return made


@pytest.mark.parametrize(("reduction", "vtrace"), [("sum", True), ("mean", False)])
def test_updates_by_graphs_are_those_without(
    reduction: Literal["sum", "mean"], vtrace: bool
) -> None:
    """Batches of every size, filled up."""
    config = dataclasses.replace(LEARNER, loss_reduction=reduction, vtrace=vtrace, lr=1e-3)
    cuda, graphs = torch.device("cuda"), Graphs(torch.device("cuda"))
    ends: list[torch.Tensor] = []
    means: list[torch.Tensor] = []
    for used in (None, graphs):
        agent, sync = make_small(copies=used is graphs)
        learner, places = GA3C(agent, config, sync, used), Places(24, cuda)
        collected = []
        for number, fields in enumerate(batches(np.random.default_rng(1), 30)):
            n = len(fields["action"])
            if used is graphs:
                weight = (np.arange(padded_size(n)) < n).astype(np.float32)
                batch = Samples(**places.put({**fields, "weight": weight}), longest=24)
            else:
                moved = {name: torch.from_numpy(each).to(cuda) for name, each in fields.items()}
                batch = Samples(**moved, longest=24)
            metrics = learner.update(batch, number / 30)
            collected.append(torch.stack([metrics[name] for name in sorted(metrics)]))
        ends.append(sync.versions.take()[1].clone())
        means.append(torch.stack(collected))
    assert graphs.num_recorded == 2  # of 16 and of 32 rows
    assert (ends[0] - ends[1]).norm() / ends[0].norm() < 1e-5
    torch.testing.assert_close(means[0], means[1], atol=1e-4, rtol=1e-3)


def test_predictions_by_graphs_are_those_without() -> None:
    """Also of environments that were cut off, and with parameters that others have made."""
    cuda, graphs = torch.device("cuda"), Graphs(torch.device("cuda"))
    torch.manual_seed(0)
    flat = FlatParameters(make_model("mlp", Leaf((6,), np.dtype(np.float32)), 3).to(cuda))
    versions = Versions(flat.parameter, LEARNER.rule, None)
    networks = [copy.deepcopy(flat._model) for _ in range(2)]
    agents = [PolicyAgent(network) for network in networks]  # type: ignore[arg-type]
    syncs = [
        VersionSync(FlatParameters(network), versions, copies=bool(k))
        for k, network in enumerate(networks)
    ]
    by_graphs = Predictor(agents[1], syncs[1], cuda, True, graphs, 16)
    plain = Predictor(agents[0], syncs[0], cuda, True)
    rng = np.random.default_rng(2)
    for _ in range(40):
        n, m = rng.integers(1, 17), rng.integers(0, 4)
        observation = rng.standard_normal((n + m, 6), np.float32)
        noise = rng.random(n)
        own = plain(observation, noise)
        other = by_graphs(observation, noise)
        np.testing.assert_array_equal(own.action, other.action)
        np.testing.assert_allclose(own.value, other.value, atol=1e-6)
        np.testing.assert_allclose(
            own.behaviour_probability, other.behaviour_probability, atol=1e-6
        )
        assert own.version == other.version
        versions.update(torch.randn_like(flat.parameter), 1e-3)
    assert graphs.num_recorded >= 2


@pytest.mark.skipif(not hasattr(torch.cuda, "num_launches"), reason="counts on the emulated GPU")
def test_graphs_start_few_operations() -> None:
    """Of an update with 20 samples, and of acting for 8 environments."""
    updates, acting = num_launches(Graphs(torch.device("cuda")))
    assert updates <= 23 and acting <= 5
    without = num_launches(None)
    assert without[0] > 4 * updates and without[1] > 3 * acting


def num_launches(graphs: Graphs | None) -> tuple[int, int]:
    cuda, is_recorded = torch.device("cuda"), graphs is not None
    agent, sync = make_small(copies=is_recorded)
    learner, places = GA3C(agent, LEARNER, sync, graphs), Places(24, cuda)
    policy = Predictor(agent, sync, cuda, False, graphs, 8)
    rng = np.random.default_rng(1)
    fields = {
        "observation": rng.standard_normal((20, 6), np.float32),
        "action": rng.integers(3, size=20),
        "return_": rng.standard_normal(20, np.float32),
        "weight": np.ones(20, np.float32),
    }

    def update() -> None:
        if is_recorded:
            learner.update(Samples(**places.put(fields), longest=24), 0.0)
        else:
            moved = {name: torch.from_numpy(each).to(cuda) for name, each in fields.items()}
            del moved["weight"]
            learner.update(Samples(**moved, longest=24), 0.0)

    def act() -> None:
        policy(fields["observation"][:8], rng.random(8))

    counted = []
    for call in (update, act):
        for _ in range(6):
            call()
        before = torch.cuda.num_launches()  # type: ignore[attr-defined]
        call()
        counted.append(torch.cuda.num_launches() - before)  # type: ignore[attr-defined]
    return counted[0], counted[1]
