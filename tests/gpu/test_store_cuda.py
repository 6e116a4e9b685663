"""Learners on a GPU that share a parameter store: the same as a learner alone."""

import contextlib
from typing import Any

import pytest
import torch
from torch import nn

from accel_rl.parallel import (
    Adam,
    FlatParameters,
    Local,
    MultiStepAdam,
    RMSProp,
    StoreSync,
    create_store,
)
from accel_rl.parallel.rules import UpdateRule

ADAM = Adam(eps=1e-5)
RULES = {"rmsprop": RMSProp(decay=0.9, eps=1e-6, initial=0.0), "adam": ADAM}


def model() -> FlatParameters:
    torch.manual_seed(0)
    return FlatParameters(nn.Linear(300, 211).cuda())


def push_alike(*syncs: Local | StoreSync) -> None:
    for seed in range(5):
        torch.manual_seed(seed)
        gradient = torch.randn_like(syncs[0].parameters.gradient)
        for sync in syncs:
            sync.parameters.gradient.copy_(gradient)
            sync.step(lr=0.01)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_one_learner_on_the_gpu_equals_the_local_rule(rule: UpdateRule) -> None:
    parameters = model()
    with contextlib.closing(create_store(parameters, rule)) as store:
        sync, local = StoreSync(parameters, store, rule, 0.5), Local(model(), rule, 0.5)
        push_alike(sync, local)
        found, expected = sync.parameters.parameter, local.parameters.parameter
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
        central = store.read()[0]["parameters"]
        assert torch.equal(central, found.cpu())  # in sync with what was written


def test_learners_on_cpu_and_gpu_share_a_store() -> None:
    parameters = model()
    with contextlib.closing(create_store(parameters, ADAM)) as store:
        torch.manual_seed(1)
        on_cpu = StoreSync(FlatParameters(nn.Linear(300, 211)), store, ADAM, None)
        on_gpu = StoreSync(parameters, store, ADAM, None)
        assert torch.equal(on_cpu.parameters.parameter, on_gpu.parameters.parameter.cpu())
        on_cpu.parameters.gradient.normal_()
        on_cpu.step(lr=0.01)
        on_gpu.pull()
        assert torch.equal(on_cpu.parameters.parameter, on_gpu.parameters.parameter.cpu())


@pytest.mark.parametrize("period", [1, 3])
def test_multi_step_adam_of_one_learner_on_the_gpu_equals_adam(period: int) -> None:
    parameters = model()
    with contextlib.closing(create_store(parameters, ADAM)) as store:
        sync = MultiStepAdam(parameters, store, ADAM, None, period)
        local = Local(model(), ADAM, None)
        push_alike(sync, local)
        found, expected = sync.parameters.parameter, local.parameters.parameter
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_push_waits_for_the_device_once_a_chunk_and_before_the_first(
    monkeypatch: pytest.MonkeyPatch, forbidding_waits: Any
) -> None:
    parameters = model()
    with contextlib.closing(create_store(parameters, ADAM, 3)) as store:
        sync = StoreSync(parameters, store, ADAM, 0.5)
        push_alike(sync)
        waits, wait = [], torch.cuda.Stream.synchronize
        monkeypatch.setattr(
            torch.cuda.Stream, "synchronize", lambda self: (waits.append(1), wait(self))
        )
        with forbidding_waits():
            sync.step(lr=0.01)
        assert len(waits) == 1 + 3
