"""The parameter store and `StoreSync` in one process: arithmetic, files, refusals, numbers."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from store_learners import Sum, push, zeros
from torch import nn

from accel_rl.parallel import (
    Adam,
    FlatParameters,
    Local,
    RMSProp,
    StoreSync,
    create_store,
    open_store,
)
from accel_rl.parallel.rules import UpdateRule

RMSPROP = RMSProp(decay=0.9, eps=1e-6, initial=1.0)
ADAM = Adam(eps=1e-5)


def model(dtype: torch.dtype = torch.float32, inputs: int = 30) -> FlatParameters:
    torch.manual_seed(0)
    return FlatParameters(nn.Linear(inputs, 21).to(dtype))


@contextlib.contextmanager
def shared(
    rule: UpdateRule, num_chunks: int = 3, max_norm: float | None = None, **options: Any
) -> Iterator[StoreSync]:
    parameters = model(**options)
    with contextlib.closing(create_store(parameters, rule, num_chunks)) as store:
        yield StoreSync(parameters, store, rule, max_norm)


def step(sync: Any, seed: int) -> torch.Tensor:
    gradient = sync.parameters.gradient
    generator = torch.Generator().manual_seed(seed)
    gradient.copy_(torch.randn(gradient.shape, generator=generator, dtype=gradient.dtype))
    return sync.step(lr=0.01)


def assert_same(state: Any, other: Any) -> None:
    assert state.keys() == other.keys()
    for kind in state.keys() - {"counts"}:
        for name, tensor in state[kind].items():
            assert torch.equal(tensor, other[kind][name]), (kind, name)


# ---- arithmetic ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "num_chunks", "options"),
    [
        (RMSPROP, 7, {"inputs": 1_000}),
        (ADAM, 3, {"dtype": torch.float32}),
        (ADAM, 1, {"dtype": torch.float64}),
    ],
)
def test_one_learner_equals_the_local_rule_to_the_bit(rule, num_chunks, options) -> None:
    local = Local(model(**options), rule, 0.5)
    with shared(rule, num_chunks, 0.5, **options) as sync:
        for seed in range(5):
            norm, expected = step(sync, seed), step(local, seed)
            assert torch.equal(norm, expected)
            assert torch.equal(sync.parameters.parameter, local.parameters.parameter)
        assert_same(sync.state_dict(), local.state_dict())
        assert sync.num_updates == 5


@pytest.mark.parametrize("rule", [RMSPROP, ADAM], ids=["rmsprop", "adam"])
def test_two_learners_in_turn_equal_the_slow_version_with_one_count(rule: UpdateRule) -> None:
    rng = np.random.default_rng(0)
    gradients = rng.normal(size=(6, 20))
    with contextlib.closing(create_store(wide(20), rule)) as store:
        syncs = [StoreSync(wide(20), store, rule, None) for _ in range(2)]
        for turn, gradient in zip((0, 0, 1, 0, 1, 1), gradients, strict=True):
            syncs[turn].parameters.gradient[:20] = torch.from_numpy(gradient)
            syncs[turn].step(lr=0.01)
        found = syncs[1].parameters.parameter[:20].numpy()
        assert syncs[0].num_updates == 3
    expected = np.zeros(20)
    for i in range(20):
        mean, square = 0.0, 1.0 if rule is RMSPROP else 0.0
        for t in range(1, 7):  # the store's count, whoever pushes
            g = gradients[t - 1, i]
            if rule is RMSPROP:
                square = 0.9 * square + 0.1 * g * g
                expected[i] -= 0.01 * g / math.sqrt(square + 1e-6)
            else:
                mean, square = 0.9 * mean + 0.1 * g, 0.999 * square + 0.001 * g * g
                rate = 0.01 * math.sqrt(1 - 0.999**t) / (1 - 0.9**t)
                expected[i] -= rate * mean / (math.sqrt(square) + 1e-5)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def wide(size: int) -> FlatParameters:
    """Zeros, float64."""
    linear = nn.Linear(size, 1, bias=False).double()
    nn.init.zeros_(linear.weight)
    return FlatParameters(linear)


def test_pull_takes_what_others_pushed() -> None:
    with contextlib.closing(create_store(zeros(64), Sum())) as store:
        one, other = (StoreSync(zeros(64), store, Sum(), None) for _ in range(2))
        push(one, 3)
        assert other.parameters.parameter.unique().tolist() == [0]
        other.pull()
        assert other.parameters.parameter.unique().tolist() == [3]
        assert other.num_updates == 0


def test_push_that_fails_lets_go_of_its_lock_and_changes_nothing() -> None:
    class Failing(Sum):
        def step_(self, parameter: torch.Tensor, *rest: Any) -> None:
            parameter.fill_(99)
            raise RuntimeError("in the middle")

    with contextlib.closing(create_store(zeros(64), Sum(), timeout_seconds=0.05)) as store:
        sync = StoreSync(zeros(64), store, Sum(), None)
        with pytest.raises(RuntimeError, match="in the middle"):
            push(StoreSync(zeros(64), store, Failing(), None), 1)
        push(sync, 1)
        assert sync.parameters.parameter.unique().tolist() == [1]


# ---- chunks, locks, numbers ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "num_chunks", "lengths"),
    [(96, 3, [32, 32, 32]), (80, 3, [32, 32, 16]), (16, 3, [16]), (80, 4, [32, 32, 16])],
)
def test_chunks_cover_the_vector_at_cache_lines(size, num_chunks, lengths) -> None:
    with contextlib.closing(create_store(zeros(size), Sum(), num_chunks)) as store:
        ends = [0, *(chunk.elements.stop for chunk in store.chunks)]
        assert [chunk.elements.start for chunk in store.chunks] == ends[:-1]
        assert np.diff(ends).tolist() == lengths and ends[-1] == size
        addresses = [slot.data_ptr() for chunk in store.chunks for slot in chunk.slots]
        assert all(address % 64 == 0 for address in addresses)


@pytest.mark.parametrize("is_another", [True, False])
def test_two_in_one_process_exclude_each_other(is_another: bool) -> None:
    """Two that have opened a store, or two threads that share one."""
    with (
        contextlib.closing(create_store(zeros(48), Sum(), timeout_seconds=0.05)) as store,
        contextlib.closing(open_store(store.address, zeros(48), Sum(), 0.05)) as opened,
    ):
        visited, visits = [], store.visit()
        assert [next(visits)[0].index, next(visits)[0].index] == [0, 1]
        with pytest.raises(TimeoutError, match=r"chunk 1 of the .* another thread of this"):
            for chunk, _ in (opened if is_another else store).visit():
                visited.append(chunk.index)
        assert [(chunk.index, waited) for chunk, waited in visits] == [(2, 0.0)]
    assert visited == [0, 2]  # what was free did not wait


def test_lag_counts_updates_of_others_since_the_last_read() -> None:
    with contextlib.closing(create_store(zeros(48), Sum())) as store:
        one, other = (StoreSync(zeros(48), store, Sum(), None) for _ in range(2))
        assert math.isnan(one.take_metrics()["push_lag_mean"])
        for sync in (one, other, other, one):
            push(sync, 1)
        metrics = one.take_metrics()
        # three chunks each: first nobody else, then two by the other
        assert [metrics[f"push_lag_{kind}"] for kind in ("min", "mean", "max")] == [0, 1, 2]
        assert metrics["push_seconds"] > 0 and metrics["lock_wait_seconds"] == 0
        other.pull()
        push(other, 1)
        assert other.take_metrics()["push_lag_max"] == 1  # of its first push; the pull saw the rest
        assert math.isnan(one.take_metrics()["push_lag_max"])


# ---- saved state ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("saves_shared", "loads_shared"), [*itertools.product((False, True), repeat=2)]
)
def test_state_of_one_sync_loaded_by_another_gives_the_same_next_step(
    saves_shared: bool, loads_shared: bool
) -> None:
    with shared(ADAM) as first, shared(ADAM, num_chunks=7) as second:
        saver = first if saves_shared else Local(model(), ADAM, None)
        loader = second if loads_shared else Local(model(), ADAM, None)
        for seed in range(3):
            step(saver, seed)
        step(loader, 99)
        loader.load_state_dict(saver.state_dict())
        assert loader.num_updates == 3
        step(saver, 4), step(loader, 4)
        assert_same(saver.state_dict(), loader.state_dict())
        loaded = loader.parameters.to_named(loader.parameters.parameter)
        assert torch.equal(loaded["weight"], saver.state_dict()["parameters"]["weight"])


def test_saved_counts_are_of_all_learners_and_of_this_one() -> None:
    with contextlib.closing(create_store(zeros(48), Sum())) as store:
        one, other = (StoreSync(zeros(48), store, Sum(), None) for _ in range(2))
        for sync in (one, other, other):
            push(sync, 1)
        saved = one.state_dict()
        assert {name: int(n) for name, n in saved["counts"].items()} == {
            "num_updates": 3,
            "learner_updates": 1,
        }
        assert saved["parameters"]["weight"].unique().tolist() == [3]  # the store's, not its own
        other.load_state_dict(saved)
        assert other.num_updates == 1
        assert [chunk.look()[1] for chunk in store.chunks] == [3, 3, 3]


# ---- strangers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "rule", "message"),
    [
        (model(), ADAM, r"other rule than this learner: RMSProp\(.*, here Adam\("),
        (model(torch.float64), RMSPROP, "other dtype than this learner: float32, here float64"),
        (model(inputs=31), RMSPROP, "other parameters than this learner; start all learners"),
    ],
    ids=["rule", "dtype", "parameters"],
)
def test_store_of_something_else_is_refused(parameters, rule, message) -> None:
    with contextlib.closing(create_store(model(), RMSPROP)) as store:
        with pytest.raises(ValueError, match=message):
            open_store(store.address, parameters, rule)


def test_number_of_chunks_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="num_chunks is 0; it must be at least 1"):
        create_store(zeros(16), Sum(), num_chunks=0)


def test_closed_store_takes_no_more_pushes_and_its_address_is_void() -> None:
    store = create_store(zeros(16), Sum())
    sync = StoreSync(zeros(16), store, Sum(), None)
    store.close()
    store.close()
    with pytest.raises(ValueError, match="closed file"):
        push(sync, 1)
    with pytest.raises(ValueError, match=rf"no parameter store .*{os.getpid()}, must still run"):
        open_store(store.address, zeros(16), Sum())
