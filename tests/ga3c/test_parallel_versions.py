"""Parameters in versions: updates in their order, none lost; nobody sees one that changes."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import nn

from accel_rl.ga3c.versions import Versions, VersionSync
from accel_rl.parallel import FlatParameters, Local, RMSProp

RULE = RMSProp(decay=0.9, eps=1e-6, initial=0.0)
DESCENT = RMSProp(decay=1.0, eps=0.0, initial=1.0)  # divides by 1: plain gradient descent


def make(rule: RMSProp = RULE, max_norm: float | None = None) -> tuple[nn.Module, Versions]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    versions = Versions(FlatParameters(model).parameter, rule, max_norm)
    return model, versions


def reader(model: nn.Module, versions: Versions) -> VersionSync:
    return VersionSync(FlatParameters(copy.deepcopy(model)), versions)


def test_updates_equal_those_of_a_learner_alone() -> None:
    model, versions = make(max_norm=0.5)
    local = Local(FlatParameters(copy.deepcopy(model)), RULE, 0.5)
    syncs = [reader(model, versions) for _ in range(3)]
    generator = torch.Generator().manual_seed(1)
    for k in range(7):
        gradient = torch.randn(local.parameters.gradient.shape, generator=generator)
        local.parameters.gradient.copy_(gradient)
        sync = syncs[k % 3]
        sync.parameters.gradient.copy_(gradient)
        assert sync.step(0.1).item() == local.step(0.1).item()
        assert sync.made == sync.version == sync.num_updates == k + 1
    for sync in syncs:
        sync.pull()
        assert torch.equal(sync.parameters.parameter, local.parameters.parameter)
    state, expected = syncs[0].state_dict(), local.state_dict()
    assert state.keys() == expected.keys()
    for kind, named in expected.items():
        for name, tensor in named.items():
            assert torch.equal(state[kind][name], tensor), (kind, name)


def test_version_that_was_taken_stays_as_it_is_through_many_updates() -> None:
    model, versions = make()
    one, other = reader(model, versions), reader(model, versions)
    before = one.parameters.parameter.clone()
    for _ in range(10):
        other.parameters.gradient.fill_(1.0)
        other.step(0.1)
    assert torch.equal(one.parameters.parameter, before)
    assert one.version == 0
    one.pull()
    assert one.version == 10
    assert torch.equal(one.parameters.parameter, other.parameters.parameter)
    assert not torch.equal(one.parameters.parameter, before)


def test_network_computes_with_the_version_that_was_pulled() -> None:
    model, versions = make()
    own = copy.deepcopy(model)
    sync, other = VersionSync(FlatParameters(own), versions), reader(model, versions)
    x = torch.ones(1, 3)
    before = own(x)
    other.parameters.gradient.fill_(1.0)
    other.step(0.1)
    assert torch.equal(own(x), before)
    sync.pull()
    weight, bias = (sync.parameters.to_named(versions.take()[1])[n] for n in ("weight", "bias"))
    torch.testing.assert_close(own(x), x @ weight.T + bias)
    # The gradient goes to the network's own memory, not to that of others.
    own(x).sum().backward()
    assert sync.parameters.gradient.abs().sum() > 0
    assert other.parameters.gradient.ne(sync.parameters.gradient).any()


def test_memory_is_for_as_many_versions_as_are_read_and_two_more() -> None:
    model, versions = make()
    syncs = [reader(model, versions) for _ in range(4)]
    for k in range(40):
        syncs[k % 4].parameters.gradient.fill_(1.0)
        syncs[k % 4].step(0.1)
    assert len(versions._slots) <= 6
    for sync in syncs:
        sync.close()
    assert versions._num_readers == [0] * len(versions._slots)


def test_threads_lose_no_update_and_see_none_that_is_half_made() -> None:
    model, versions = make(DESCENT)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    versions = Versions(FlatParameters(model).parameter, DESCENT, None)
    torn: list[int] = []
    ends = threading.Event()

    def push(sync: VersionSync) -> None:
        for _ in range(200):
            sync.parameters.gradient.zero_()
            for view in sync.parameters.views(sync.parameters.gradient).values():
                view.fill_(-1.0)
            sync.step(1.0)

    def look(sync: VersionSync) -> None:
        weight = dict(sync.parameters._model.named_parameters())["weight"]
        while not ends.is_set():
            sync.pull()
            if not bool((weight == sync.version).all()):
                torn.append(sync.version)

    pushers = [reader(model, versions) for _ in range(3)]
    with ThreadPoolExecutor(4) as threads:
        looked = threads.submit(look, reader(model, versions))
        for pushed in [threads.submit(push, each) for each in pushers]:
            pushed.result(60)
        ends.set()
        looked.result(60)
    assert versions.num_updates == 600
    pushers[0].pull()
    named = pushers[0].parameters.to_named(pushers[0].parameters.parameter)
    np.testing.assert_array_equal(named["weight"], 600.0)
    assert not torn


def test_state_goes_on_where_it_was_saved() -> None:
    model, versions = make()
    sync = reader(model, versions)
    for _ in range(3):
        sync.parameters.gradient.fill_(0.5)
        sync.step(0.1)
    state = sync.state_dict()
    other_model, other_versions = make()
    waiting, other = reader(other_model, other_versions), reader(other_model, other_versions)
    other.load_state_dict(state)
    waiting.pull()
    assert waiting.version == other.num_updates == 3
    for each in (sync, other):
        each.parameters.gradient.fill_(-0.25)
        each.step(0.1)
    for name, tensor in sync.state_dict()["parameters"].items():
        assert torch.equal(other.state_dict()["parameters"][name], tensor), name
