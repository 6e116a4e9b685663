"""Gradient clipping and advantage normalisation of each preset, as in the code that it follows.

The reference implementations are written from the formulas of TensorFlow's ``clip_by_global_norm``
and baselines' ppo2, in NumPy and float64.
"""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from accel_rl.algos.actor_critic import normalize
from accel_rl.cli.parse import parse_arguments
from accel_rl.ga3c.versions import Versions, VersionSync
from accel_rl.parallel import (
    Adam,
    AllReduce,
    FlatParameters,
    GradientSync,
    Local,
    MultiStepAdam,
    StoreSync,
    create_store,
)
from accel_rl.parallel.gradient_sync import clip_gradient_
from accel_rl.training.build import build

Vector = NDArray[np.float64]


def clipped_exactly(gradient: Vector, limit: float) -> Vector:
    norm = np.sqrt(np.sum(gradient**2))
    return gradient * limit / max(norm, limit)


@pytest.mark.parametrize("norm", [0.0, 1e-9, 5e-7, 0.1, 0.499, 0.5, 0.501, 3.0, 1e6])
def test_gradient_is_clipped_by_the_formula(norm: float) -> None:
    direction = np.random.default_rng(0).standard_normal(50)
    gradient = direction / np.linalg.norm(direction) * norm
    clipped = torch.from_numpy(gradient.copy())
    before = clip_gradient_(clipped, 0.5)
    assert before.item() == pytest.approx(norm, rel=1e-12)
    np.testing.assert_allclose(clipped.numpy(), clipped_exactly(gradient, 0.5), rtol=1e-12)


def test_gradient_within_the_limit_stays_to_the_bit() -> None:
    generator = torch.Generator().manual_seed(0)
    for limit in (0.3, 0.5, 3.0, 40.0):
        gradient = torch.randn(20, generator=generator)
        gradient *= 0.9 * limit / gradient.norm()
        clipped = gradient.clone()
        clip_gradient_(clipped, limit)
        torch.testing.assert_close(clipped, gradient, rtol=0, atol=0)


class Alone:
    """A group of one learner."""

    size = 1

    def broadcast_(self, x: torch.Tensor) -> None:
        """Nothing to do."""

    sum_ = maximum_ = broadcast_


@contextmanager
def sync_of(kind: type) -> Iterator[GradientSync]:
    flat, rule = FlatParameters(nn.Linear(3, 2)), Adam(eps=1e-5)
    with ExitStack() as stack:
        if kind in (StoreSync, MultiStepAdam):
            store = stack.enter_context(closing(create_store(flat, rule, 2)))
            more = (2,) if kind is MultiStepAdam else ()
            yield kind(flat, store, rule, 1.0, *more)
        elif kind is Versions:
            yield VersionSync(flat, Versions(flat.parameter, rule, 1.0))
        else:
            more = (Alone(),) if kind is AllReduce else ()
            yield kind(flat, rule, 1.0, *more)


def clipped_by(sync: GradientSync, norm: float) -> Vector:
    """What ``sync`` makes of a gradient of this norm that is all in one parameter."""
    gradient = sync.parameters.gradient
    gradient.zero_()
    gradient[1] = norm
    sync.step(1e-9)
    return gradient[:3].double().numpy().copy()


@pytest.mark.parametrize("kind", [Local, AllReduce, StoreSync, MultiStepAdam, Versions])
def test_every_sync_clips(kind: type) -> None:
    with sync_of(kind) as sync:
        for norm in (5e-7, 4.0):
            expected = clipped_exactly(np.array([0, norm, 0]), 1.0)
            np.testing.assert_allclose(clipped_by(sync, norm), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "options", ["algo=a2c num_workers=0", "algo=impala num_workers=0", "sync=store", "algo=ga3c"]
)
def test_run_clips_by_the_limit_of_its_options(options: str) -> None:
    config = parse_arguments(["env=catch", "device=cpu", "num_envs=32", *options.split()])
    parts = build(config)
    try:
        for norm in (5e-7, 100.0):
            limit = config.learner.max_gradient_norm
            found = clipped_by(parts.sync, norm)[1]
            expected = norm if limit is None else clipped_exactly(np.array([norm]), limit)[0]
            assert found == pytest.approx(expected, rel=1e-6)
    finally:
        if isinstance(parts.sync, StoreSync):
            parts.sync._store.close()
        parts.close()


@pytest.mark.parametrize("scale", [1.0, 1e-7])
def test_advantages_are_normalised_by_the_formula(scale: float) -> None:
    """In ppo2: ``(advs - advs.mean()) / (advs.std() + 1e-8)``, which is the population's."""
    rng = np.random.default_rng(0)
    advantage = scale * (3 + rng.standard_normal(64))
    valid = rng.random(64) < 0.8
    mean = sum(advantage[valid]) / valid.sum()
    deviation = np.sqrt(sum((advantage[valid] - mean) ** 2) / valid.sum())
    sync = Local(FlatParameters(nn.Linear(1, 1)), Adam(eps=1e-5), None)
    found = normalize(torch.from_numpy(advantage), torch.from_numpy(valid), sync)
    expected = (advantage - mean) / (deviation + 1e-8)
    np.testing.assert_allclose(found.numpy()[valid], expected[valid], rtol=1e-9)


@pytest.mark.parametrize(
    ("advantage", "valid", "expected"),
    [
        ([[3.0]], [[True]], [[3.0]]),  # one sample of PPO, or one step of one environment
        ([[3.0, 5.0], [7.0, 2.0]], [[False, True], [False, False]], [[3.0, 5.0], [7.0, 2.0]]),
        ([0.1] * 7, [True] * 7, [0.0] * 7),
        ([1e6 / 3] * 300, [True] * 300, [0.0] * 300),  # whose mean in float32 is another number
        ([0.0] * 4, [True] * 4, [0.0] * 4),
        ([1.0, 3.0], [True, True], [-1.0, 1.0]),
    ],
    ids=["one", "one-valid", "equal", "large", "zero", "two"],
)
def test_advantages_without_deviation_are_not_divided_by_it(
    advantage: list[Any], valid: list[Any], expected: list[Any]
) -> None:
    sync = Local(FlatParameters(nn.Linear(1, 1)), Adam(eps=1e-5), None)
    found = normalize(torch.tensor(advantage), torch.tensor(valid), sync)
    torch.testing.assert_close(found, torch.tensor(expected))
