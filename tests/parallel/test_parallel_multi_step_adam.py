"""Multi-step Adam against Adam, and against a slow version of the paper's appendix."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from accel_rl.parallel import (
    Adam,
    FlatParameters,
    Local,
    MultiStepAdam,
    ParameterStore,
    create_store,
)

pytestmark = pytest.mark.numeric

SIZE = 20  # of parameters; in two chunks, of 16 and of 4 and a gap
LR, BETA1, BETA2, EPS = 0.01, 0.9, 0.99, 1e-5
RULE = Adam(beta1=BETA1, beta2=BETA2, eps=EPS)


def zeros() -> FlatParameters:
    linear = nn.Linear(SIZE, 1, bias=False).double()
    nn.init.zeros_(linear.weight)
    return FlatParameters(linear)


@pytest.fixture
def store() -> Iterator[ParameterStore]:
    with contextlib.closing(create_store(zeros(), RULE, 2)) as store:
        yield store


def step(sync: MultiStepAdam | Local, gradient: NDArray[np.float64]) -> None:
    sync.parameters.gradient[:SIZE] = torch.from_numpy(gradient)
    sync.step(LR)


def values(sync: MultiStepAdam | Local) -> NDArray[np.float64]:
    return sync.parameters.parameter[:SIZE].numpy().copy()


class SlowLearner:
    """Appendix B for one number; ``central`` is theta, m, v and the count of steps, shared."""

    def __init__(self, central: list[float], period: int) -> None:
        self.central, self.period = central, period
        self.theta, self.m, self.v, self.count = central
        self.sum_g = self.sum_g2 = self.sum_step = 0.0
        self.n = 0

    def step(self, g: float) -> None:
        self.n += 1
        self.m = BETA1 * self.m + (1 - BETA1) * g
        self.v = BETA2 * self.v + (1 - BETA2) * g**2
        t = self.count + self.n
        rate = LR * (1 - BETA2**t) ** 0.5 / (1 - BETA1**t)
        change = -rate * self.m / (self.v**0.5 + EPS)
        self.theta += change
        self.sum_g = BETA1 * self.sum_g + g
        self.sum_g2 = BETA2 * self.sum_g2 + g**2
        self.sum_step += change
        if self.n == self.period:
            self.visit()

    def visit(self) -> None:
        theta, m, v, count = self.central
        self.central[:] = [
            theta + self.sum_step,
            BETA1**self.n * m + (1 - BETA1) * self.sum_g,
            BETA2**self.n * v + (1 - BETA2) * self.sum_g2,
            count + self.n,
        ]
        self.theta, self.m, self.v, self.count = self.central
        self.sum_g = self.sum_g2 = self.sum_step = 0.0
        self.n = 0


@pytest.mark.parametrize("period", [1, 2, 3, 4])
def test_one_learner_equals_adam_at_every_step(store: ParameterStore, period: int) -> None:
    gradients = np.random.default_rng(0).normal(size=(13, SIZE))
    sync = MultiStepAdam(zeros(), store, RULE, None, period)
    local = Local(zeros(), RULE, None)
    for gradient in gradients:
        step(sync, gradient)
        step(local, gradient)
        np.testing.assert_allclose(values(sync), values(local), rtol=1e-10)
    saved, expected = sync.state_dict(), local.state_dict()
    for kind in ("parameters", "mean", "mean_square"):
        torch.testing.assert_close(saved[kind], expected[kind], rtol=1e-10, atol=0)
    assert saved["counts"]["num_updates"] == 13


def test_two_learners_with_different_periods_equal_the_slow_version(store: ParameterStore) -> None:
    rng = np.random.default_rng(1)
    turns = [0, 0, 1, 0, 1, 1, 0, 0, 0, 1, 1, 0, 1, 0]
    gradients = rng.normal(size=(len(turns), SIZE))
    syncs = [MultiStepAdam(zeros(), store, RULE, None, period) for period in (3, 2)]
    for turn, gradient in zip(turns, gradients, strict=True):
        step(syncs[turn], gradient)
    for i in range(SIZE):
        central = [0.0, 0.0, 0.0, 0.0]
        slow = [SlowLearner(central, period) for period in (3, 2)]
        for turn, gradient in zip(turns, gradients, strict=True):
            slow[turn].step(gradient[i])
        for sync, learner in zip(syncs, slow, strict=True):
            assert values(sync)[i] == pytest.approx(learner.theta, rel=1e-10)
        flats, count = store.read()
        found = [flats[kind][i].item() for kind in ("parameters", "mean", "mean_square")]
        assert [*found, count] == pytest.approx(central, rel=1e-10)


def test_steps_left_over_reach_the_store_with_the_next_pull(store: ParameterStore) -> None:
    gradients = np.random.default_rng(2).normal(size=(4, SIZE))
    sync, other = (MultiStepAdam(zeros(), store, RULE, None, 3) for _ in range(2))
    local = Local(zeros(), RULE, None)
    for gradient in gradients:
        step(sync, gradient)
        step(local, gradient)
    assert store.read()[1] == 3
    sync.pull()
    other.pull()
    np.testing.assert_allclose(values(other), values(local), rtol=1e-10)
    assert store.read()[1] == 4


def test_pull_without_steps_leaves_the_store_alone_and_takes_the_moments(store) -> None:
    one, other = (MultiStepAdam(zeros(), store, RULE, None, 1) for _ in range(2))
    local = Local(zeros(), RULE, None)
    step(one, np.full(SIZE, 1.0))
    other.pull()
    assert store.read()[1] == 1
    step(other, np.full(SIZE, 2.0))
    for g in (1.0, 2.0):
        step(local, np.full(SIZE, g))
    np.testing.assert_allclose(values(other), values(local), rtol=1e-10)


def test_lag_counts_steps_of_others_at_a_visit(store: ParameterStore) -> None:
    one, other = (MultiStepAdam(zeros(), store, RULE, None, 2) for _ in range(2))
    for sync in (other, other, one, one):
        step(sync, np.full(SIZE, 1.0))
    metrics = one.take_metrics()
    assert metrics["push_lag_min"] == metrics["push_lag_max"] == 2


def test_state_of_adam_loaded_gives_the_same_next_steps(store: ParameterStore) -> None:
    gradients = np.random.default_rng(3).normal(size=(7, SIZE))
    sync, local = MultiStepAdam(zeros(), store, RULE, None, 2), Local(zeros(), RULE, None)
    step(sync, gradients[6])  # not seen by the store: dropped by loading
    for gradient in gradients[:3]:
        step(local, gradient)
    sync.load_state_dict(local.state_dict())
    for gradient in gradients[3:]:
        step(sync, gradient)
        step(local, gradient)
    np.testing.assert_allclose(values(sync), values(local), rtol=1e-10)


def test_period_below_one_is_refused(store: ParameterStore) -> None:
    with pytest.raises(ValueError, match="sync_period is 0; it must be at least 1"):
        MultiStepAdam(zeros(), store, RULE, None, 0)
