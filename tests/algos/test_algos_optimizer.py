"""Norms and gradient cosines of updates, against what NumPy makes of parameters and gradients."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from made_rollouts import learner_of, vectors
from numpy.typing import NDArray
from tiers import first_quick
from torch import nn

from accel_rl.agents import RolloutTensors
from accel_rl.algos import (
    A2CConfig,
    DQNConfig,
    LearnerConfig,
    LearnerSpec,
    NetworkSpec,
    PPOConfig,
    PQNConfig,
)
from accel_rl.algos.optimizer import Optimizer
from accel_rl.envs import EnvSpec
from accel_rl.parallel import FlatParameters, Local, RMSProp
from accel_rl.spaces import Leaf, discrete

pytestmark = pytest.mark.numeric

T, B = 4, 6
ENV = EnvSpec(
    name="toy",
    observation=Leaf((3,), np.dtype(np.float32)),
    action=discrete(2),
)
SMALL_DQN = {"batch_size": 8, "learning_starts": 48, "buffer_size": 600}
CONFIGS: dict[str, Callable[..., LearnerConfig]] = {
    "a2c": A2CConfig,
    "ppo": lambda **options: PPOConfig(minibatch_size=12, **options),
    "pqn": lambda **options: PQNConfig(minibatch_size=12, **options),
    "dqn": lambda **options: DQNConfig(**SMALL_DQN, **options),
    "prioritized": lambda **options: DQNConfig(**SMALL_DQN, prioritized=True, **options),
}


def make(config: LearnerConfig, num_envs: int = B) -> tuple[Any, Local]:
    torch.manual_seed(0)
    agent = config.make_agent(NetworkSpec("auto", ENV, torch.device("cpu")))
    learner = learner_of(config, agent, LearnerSpec(ENV, num_envs, T, seed=0))
    return learner, learner.sync


def make_batch(seed: int = 0) -> RolloutTensors:
    return vectors(T, B, 3, generator=torch.Generator().manual_seed(seed))


def some_envs(batch: RolloutTensors, envs: slice) -> RolloutTensors:
    names = (*(name for name in batch._fields[:9] if "final" not in name), "log_prob", "value")
    columns = {name: getattr(batch, name)[:, envs] for name in names}
    return batch._replace(**columns)


def layers_of(sync: Local, flat: torch.Tensor) -> dict[str, NDArray[np.float64]]:
    """All numbers of each layer: of its weight and of its bias."""
    layers: dict[str, list[Any]] = {}
    for name, tensor in sync.parameters.to_named(flat).items():
        layers.setdefault(name.rsplit(".", 1)[0], []).append(tensor.double().numpy().ravel())
    return {layer: np.concatenate(parts) for layer, parts in layers.items()}


def expected_norms(kind: str, layers: dict[str, NDArray[np.float64]]) -> dict[str, float]:
    norms = {f"{kind}/{layer}": np.sqrt((x**2).sum()) for layer, x in layers.items()}
    return {kind: np.sqrt(sum((x**2).sum() for x in layers.values())), **norms}


def test_norms_are_those_of_parameters_gradient_step_and_distance() -> None:
    learner, sync = make(A2CConfig(max_gradient_norm=0.1, log_norms=True))
    free, free_sync = make(A2CConfig(max_gradient_norm=None))  # its gradient stays unclipped
    flat = sync.parameters
    initial = flat.parameter.clone()
    learner.update(make_batch(0), progress=0.0)
    before = flat.parameter.clone()
    free_sync.parameters.parameter.copy_(before)
    found = learner.update(make_batch(1), progress=0.0)
    free.update(make_batch(1), progress=0.0)
    expected = {
        **expected_norms("parameter_norm", layers_of(sync, flat.parameter)),
        **expected_norms("step_norm", layers_of(sync, flat.parameter - before)),
        **expected_norms("distance_norm", layers_of(sync, flat.parameter - initial)),
        **expected_norms("gradient_norm", layers_of(sync, free_sync.parameters.gradient)),
        "clipped_gradient_norm": 0.1,
    }
    names = {"policy.0", "policy.2", "policy.4", "value.0", "value.2", "value.4"}
    assert {name.partition("/")[2] for name in expected} - {""} == names
    assert expected["gradient_norm"] > 0.1 and "gradient_norm" in found
    assert expected.keys() == {name for name in found if "norm" in name}
    assert set(found) <= set(learner.metric_names)
    for name, value in expected.items():
        assert found[name].item() == pytest.approx(value, rel=1e-4), name


@pytest.mark.parametrize("algo", CONFIGS)
def test_metrics_are_means_over_the_updates_of_a_call(algo: str, monkeypatch) -> None:
    learner, sync = make(CONFIGS[algo](log_norms=True))
    norms, apply = [], sync.apply

    def recorded(rate: float | torch.Tensor) -> torch.Tensor:
        before = sync.parameters.parameter.double().numpy().copy()
        result = apply(rate)
        moved = sync.parameters.parameter.double().numpy() - before
        norms.append(np.sqrt((moved**2).sum()))
        return result

    monkeypatch.setattr(sync, "apply", recorded)
    batches = 3 if "dqn" in algo or "prio" in algo else 1  # 48 steps before learning
    for seed in range(batches):
        metrics = learner.update(make_batch(seed), progress=0.0)
    assert len(norms) > 1 or algo == "a2c"
    assert set(metrics) == set(learner.metric_names)
    assert not any(value.requires_grad or value.ndim for value in metrics.values())
    assert metrics["step_norm"].item() == pytest.approx(np.mean(norms), rel=1e-4)
    assert learner.update(make_batch(9), 0.0)["step_norm"] != metrics["step_norm"]


@pytest.mark.parametrize("algo", CONFIGS)
def test_metrics_of_learners_that_share_updates_are_means_over_them(algo: str) -> None:
    """So that what each decides by them is the same: the other has as much, or twice as much."""
    found = []
    for others in (1.0, 2.0):
        learner, sync = make(CONFIGS[algo](log_norms=True))
        learner.optimizer._interval = 1
        sync.num_sharing = 2
        sync.sum = lambda x, others=others: x if x.numel() > 50 else x + others * x  # type: ignore[method-assign]
        for seed in range(3):  # 48 steps before learning from a replay
            metrics = learner.update(make_batch(seed), progress=0.0)
        found.append({name: value.item() for name, value in metrics.items()})
    assert set(found[0]) == set(learner.metric_names)
    assert found[1] == pytest.approx({name: 1.5 * value for name, value in found[0].items()})


@pytest.mark.parametrize("algo", first_quick(CONFIGS, 2))
def test_measuring_changes_no_parameter(algo: str) -> None:
    results = []
    for options in ({}, {"log_norms": True}):
        learner, sync = make(CONFIGS[algo](**options))
        for seed in range(5):
            metrics = learner.update(make_batch(seed), progress=0.1)
        results.append(sync.parameters.parameter.clone())
    assert torch.equal(*results)
    assert set(metrics) <= set(learner.metric_names)


def cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    a, b = one.double().numpy(), other.double().numpy()
    return float((a * b).sum() / np.sqrt((a**2).sum() * (b**2).sum()))


@pytest.mark.parametrize("num_envs", [B, B - 1], ids=["even", "odd"])
def test_cosine_is_that_of_the_gradients_of_half_the_environments_and_of_all(num_envs: int) -> None:
    batch = some_envs(make_batch(), slice(0, num_envs))
    batch.valid[2:, 1] = False
    batch.valid[3:, 2] = False
    gradients = []
    for envs in (slice(None), slice(0, None, 2)):
        part = some_envs(batch, envs)
        learner, sync = make(A2CConfig(max_gradient_norm=None), part.action.shape[1])
        learner.update(part, progress=0.0)
        gradients.append(sync.parameters.gradient.clone())
    learner, _ = make(A2CConfig(log_norms=True, loss_reduction="sum"), num_envs)
    found = learner.update(batch, progress=0.0)["gradient_cosine"].item()
    assert 0.2 < cosine(*gradients) < 0.99
    assert found == pytest.approx(cosine(*gradients), abs=1e-5)


def twice(draw: Callable[..., tuple[torch.Tensor, ...]]) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Draws half as many, and each of them twice in a row."""
    return lambda num, g: tuple(x.repeat_interleave(2) for x in draw(num // 2, g))


@pytest.mark.parametrize("algo", ["ppo", "dqn", "prioritized"])
def test_cosine_is_1_exactly_where_the_batch_is_its_half_twice(algo: str, monkeypatch) -> None:
    found = {}
    for doubled in (False, True):
        learner, _ = make(CONFIGS[algo](log_norms=True))
        learner.optimizer._interval = 1
        if doubled and algo == "ppo":

            def randperm(n: int, **_: Any) -> torch.Tensor:
                return torch.arange(n) // 2 * 2

            monkeypatch.setattr("torch.randperm", randperm)
        elif doubled:
            source = learner._priorities if algo == "prioritized" else learner.replay
            name = "draw" if algo == "prioritized" else "draw_uniformly"
            monkeypatch.setattr(source, name, twice(getattr(source, name)))
        for seed in range(3):
            metrics = learner.update(make_batch(seed), progress=0.0)
        found[doubled] = metrics["gradient_cosine"].item()
    assert found[True] == pytest.approx(1.0, abs=1e-5)
    assert found[False] < 0.95


class Two(nn.Module):
    """Two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = nn.Parameter(torch.zeros(2))


def measured(interval: int) -> tuple[Optimizer, torch.Tensor, Local]:
    model = Two()
    rule = RMSProp(decay=0.0, eps=1.0, initial=0.0)
    sync = Local(FlatParameters(model), rule, None)
    optimizer = Optimizer(sync, log_norms=True)
    optimizer._interval = interval
    return optimizer, model.numbers, sync


class Counted(NamedTuple):
    """A batch of as many valid samples as ``valid``."""

    valid: torch.Tensor


def step(optimizer: Optimizer, summands: torch.Tensor, num: int = 1, **metrics: Any) -> None:
    batch = Counted(torch.ones(num, dtype=torch.bool))
    optimizer.minimize(lambda batch: (summands, metrics), batch, lr=0.1)


def test_half_is_every_other_sample_weighted_by_the_number_of_samples(monkeypatch) -> None:
    # Two learners share an update: this one's half has the gradient (1, 0) and 3 samples, that of
    # the other is (0, 4) in all, so the half's is (3, 4); of both batches it is (1, 1).
    # (3 + 4) / (5 * sqrt(2)).
    update, numbers, sync = measured(interval=1)
    other = torch.zeros_like(sync.parameters.gradient)
    other[1] = 4
    monkeypatch.setattr(sync, "sum", lambda x: x + other if x.shape == other.shape else 2 * x)
    sync.num_sharing = 2
    step(update, numbers.clone(), num=3)
    assert update.take_metrics()["gradient_cosine"].item() == pytest.approx(7 / (5 * 2**0.5))


def test_cosine_of_a_gradient_that_vanishes_is_0() -> None:
    update, numbers, _ = measured(interval=1)
    step(update, numbers * 0)
    found = update.take_metrics()
    assert found["gradient_cosine"] == 0
    assert all(value.isfinite() for value in found.values())


def test_cosine_is_measured_every_so_many_updates() -> None:
    update, numbers, _ = measured(interval=3)
    found = []
    for _ in range(7):
        step(update, numbers.clone())
        found.append("gradient_cosine" in update.take_metrics())
    assert found == [True, False, False, True, False, False, True]


def test_what_the_model_itself_owns_is_the_layer_of_its_name() -> None:
    update, _, _ = measured(interval=10)
    assert "step_norm/model" in update.names


def test_metrics_are_means_over_the_steps_in_which_they_were_measured() -> None:
    update, numbers, _ = measured(interval=2)
    for value in (1.0, 2.0, 6.0):
        step(update, numbers * value, loss=value)
    found = update.take_metrics()
    assert found["loss"] == 3
    assert found["gradient_norm"].item() == pytest.approx(3 * 2**0.5)
    assert "gradient_cosine" in found
    assert update.take_metrics() == {}


def norms_of(learner: Any) -> Any:
    """The norms that a learner's `Optimizer` measures."""
    return learner.optimizer._norms


@pytest.mark.parametrize("algo", CONFIGS)
def test_distance_is_from_the_initial_parameters_also_after_resuming(algo: str) -> None:
    learner, sync = make(CONFIGS[algo](log_norms=True))
    for seed in range(4):
        learner.update(make_batch(seed), progress=0.0)
    other, other_sync = make(CONFIGS[algo](log_norms=True))
    other_sync.load_state_dict(sync.state_dict())
    norms, others = (norms_of(each) for each in (learner, other))
    others._initial.mul_(2)  # as if initial parameters were other ones by now
    other.set_state(learner.get_state())
    assert torch.equal(others._initial, norms._initial)
