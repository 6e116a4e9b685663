"""Networks of the user's own: what their functions are given, what is refused, what is learned."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flat_views import check_views
from own_networks import MADE, A, Net, QNet, make_own
from saved_runs import trained
from torch import Tensor, nn
from torch.nn import functional as F

from accel_rl.models import MemorySpec, RecurrentModel, Sequences, make_model
from accel_rl.models.own import own_network
from accel_rl.parallel import FlatParameters
from accel_rl.spaces import Leaf
from accel_rl.tools.policy import load_policy

# ---- what the function is given, and what becomes of what it returns -----------------------------


def test_function_is_given_shape_and_actions_by_name(monkeypatch) -> None:
    def make(*, num_actions: int, observation_shape: tuple[int, ...]) -> nn.Module:
        assert (observation_shape, num_actions) == ((4,), A)
        return Net()

    model = make_own(make, monkeypatch)
    assert list(dict(model.named_children())) == ["trunk", "policy", "value"]
    assert all(p.grad is None for p in model.parameters())


def test_function_for_q_learning_is_given_atoms_and_what_the_algorithm_asks_for(
    monkeypatch,
) -> None:
    given = {}

    def make(**arguments: Any) -> nn.Module:
        given.update(arguments)
        return nn.Sequential(nn.Linear(4, A * 5), nn.Unflatten(1, (A, 5)))

    model = make_own(make, monkeypatch, num_atoms=5, is_dueling=True)
    assert given == {
        "observation_shape": (4,),
        "num_actions": A,
        "num_atoms": 5,
        "is_dueling": True,
    }
    assert model(torch.zeros(7, 4)).shape == (7, A, 5)


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float64", "bool"])
def test_forward_is_given_the_dtype_of_the_environment(dtype: str, monkeypatch) -> None:
    class Mine(Net):
        def forward(self, observation: Tensor) -> Any:
            assert observation.dtype == getattr(torch, dtype)
            return super().forward(observation.float())

    monkeypatch.setitem(MADE, "mine", lambda observation_shape, num_actions: Mine())
    make_model("own_networks:mine", Leaf((4,), np.dtype(dtype)), A)


# ---- unusual parameters --------------------------------------------------------------------------


class Tied(Net):
    def __init__(self) -> None:
        super().__init__(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 8)))
        self.trunk[2].weight = self.trunk[1].weight  # type: ignore[index]


class Unused(Net):
    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(5, 5)


class Frozen(Net):
    def __init__(self) -> None:
        super().__init__()
        self.trunk.requires_grad_(False)


class Transposed(Net):
    def __init__(self) -> None:
        super().__init__()
        self.trunk.weight = nn.Parameter(torch.randn(4, 8).t())  # type: ignore[assignment]


class Neighbours(Net):
    """Two parameters from one piece of memory, which do not overlap."""

    def __init__(self) -> None:
        super().__init__()
        memory = torch.randn(16)
        self.trunk.bias = nn.Parameter(memory[:8])  # type: ignore[assignment]
        self.more = nn.Parameter(memory[8:])

    def forward(self, observation: Tensor) -> Any:
        x = self.trunk(observation) * self.more
        return self.policy(x), self.value(x).squeeze(1)


class Lazy(Net):
    def __init__(self) -> None:
        super().__init__(nn.LazyLinear(8))


class Normed(Net):
    def __init__(self) -> None:
        super().__init__(torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 8)))


class GivenStatistics(Net):
    def __init__(self) -> None:
        super().__init__(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8).eval()))


class Keeping(Net):
    def forward(self, observation: Tensor) -> Any:
        self.kept = self.trunk(observation)
        return super().forward(observation)


UNUSUAL = (Tied, Unused, Frozen, Transposed, Neighbours, Lazy, Normed, GivenStatistics, Keeping)


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
@pytest.mark.parametrize("kind", UNUSUAL, ids=lambda kind: kind.__name__)
def test_unusual_parameters_have_their_gradients_in_the_flat_ones(
    kind: type[Net], monkeypatch
) -> None:
    model = make_own(lambda observation_shape, num_actions: kind(), monkeypatch)
    plain = copy.deepcopy(model)
    flat = FlatParameters(model)
    observation = torch.randn(5, 4)
    for each in (plain, model):
        logits, value = each(observation)
        (logits.square().sum() + value.sum()).backward()
    found = flat.to_named(flat.gradient)
    for name, p in plain.named_parameters():
        expected = torch.zeros_like(p) if p.grad is None else p.grad
        torch.testing.assert_close(found[name], expected)
    check_views(flat)
    flat.parameter.sub_(flat.gradient, alpha=0.1)
    for p in plain.parameters():
        if p.grad is not None:
            p.data.sub_(p.grad, alpha=0.1)
    torch.testing.assert_close(model(observation), plain(observation))


# ---- what is refused -----------------------------------------------------------------------------


class Changed(Net):
    """Computes ``change(output)`` of what the network gives."""

    def __init__(self, change: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self._change = change

    def forward(self, observation: Tensor) -> Any:
        return self._change(*super().forward(observation))


class Remembering(Net):
    num_calls = 0

    def forward(self, observation: Tensor) -> Any:
        self.num_calls += 1
        logits, value = super().forward(observation)
        return logits * self.num_calls, value


class Overwriting(Net):
    def forward(self, observation: Tensor) -> Any:
        x = self.trunk(observation).exp()
        return self.policy(x), self.value(x.mul_(2)).squeeze(1)


class Counting(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, observation: Tensor) -> Any:
        self.seen += 1
        return super().forward(observation)


class Double(Net):
    def forward(self, observation: Tensor) -> Any:
        logits, value = super().forward(observation.double())
        return logits.float(), value.float()


class Dropping(Net):
    def forward(self, observation: Tensor) -> Any:
        x = F.dropout(self.trunk(observation))
        return self.policy(x), self.value(x).squeeze(1)


class Centred(Net):
    def forward(self, observation: Tensor) -> Any:
        x = self.trunk(observation)
        x = x - x.mean(0)
        return self.policy(x), self.value(x).squeeze(1)


def broken() -> None:
    raise RuntimeError("no such weights")


def sequence(*layers: nn.Module) -> Net:
    return Net(nn.Sequential(nn.Linear(4, 8), *layers))


def running() -> Net:
    norm = nn.InstanceNorm1d(2, track_running_stats=True)
    return sequence(nn.Unflatten(1, (2, 4)), norm, nn.Flatten())


FORM = r"forward must give \(logits \['N', 3\], value \['N'\]\), float32; for observations float32 "
OTHER = r"something else for the same observation in another batch; .* no Dropout, no BatchNorm"
GRADIENT = r"each output needs a gradient to some; .* outputs without gradient "
REFUSED: list[tuple[str, Callable[[], Any], str]] = [
    ("none", lambda: None, r"returned None; it must return an nn.Module"),
    ("error", broken, r"RuntimeError: no such weights \(.*test_models_own.py, line \d+, in"),
    ("sizes", lambda: Net(nn.Linear(5, 8)), r"forward on .* \[2, 4\] failed: Ru"),
    ("column", lambda: Changed(lambda p, v: (p, v[:, None])), FORM + r".*float32 \[2, 1\]\)$"),
    ("one", lambda: Changed(lambda p, v: p), FORM + r"\[2, 4\] it gave float32 \[2, 3\]$"),
    ("dict", lambda: Changed(lambda p, v: {"value": v}), FORM + r".* it gave {value: "),
    ("double", lambda: Changed(lambda p, v: (p.double(), v)), FORM + r".*\(float64 \[2, 3\]"),
    ("squeezed", lambda: Changed(lambda p, v: (p.squeeze(), v)), FORM + r"\[1, 4\] it gave"),
    ("rows", lambda: Changed(lambda p, v: (p.softmax(0), v)), OTHER),
    ("centred", Centred, OTHER),
    ("memory", Remembering, OTHER),
    ("noise", Dropping, OTHER),
    ("batch norm", lambda: sequence(nn.BatchNorm1d(8)), r"forward on .* \[1, 4\] failed: ValueErr"),
    ("dropout", lambda: sequence(nn.Dropout(0.1)), OTHER),
    ("overwritten", Overwriting, r"the backward pass failed: RuntimeError: .* inplace operation"),
    ("critic", lambda: Changed(lambda p, v: (p, v.detach())), GRADIENT + r"\['value'\]"),
    ("frozen", lambda: Net().requires_grad_(False), GRADIENT + r"\['logits', 'value'\]"),
    ("dtype", lambda: Double().double(), r"must be float32, .*{'trunk.weight': torch.float64"),
    ("buffer", Counting, r"forward changes the buffer seen, which neither"),
    ("running", running, r"forward changes the buffer trunk.2.running_mean.* use LayerNorm"),
]


@pytest.mark.parametrize(
    ("make", "message"), [each[1:] for each in REFUSED], ids=[each[0] for each in REFUSED]
)
def test_network_that_cannot_be_learned_with_is_refused(
    make: Callable[[], Any], message: str, monkeypatch
) -> None:
    torch.manual_seed(0)
    with pytest.raises(ValueError, match=rf"^model=own_networks:mine.*{message}"):
        make_own(lambda observation_shape, num_actions: make(), monkeypatch)


@pytest.mark.parametrize("more", [{}, {"num_atoms": 5}], ids=["policy", "q"])
def test_function_that_takes_other_arguments_is_told_which(more: dict, monkeypatch) -> None:
    call = r"num_actions=3.* failed: TypeError: .*"
    with pytest.raises(ValueError, match=rf"its call with \(observation_shape=\(4,\), {call}depth"):
        make_own(lambda depth, **arguments: Net(), monkeypatch, **more)


def test_q_values_of_another_shape_are_refused(monkeypatch) -> None:
    message = r"must give \(output \['N', 3, 5\]\), float32; for .* it gave float32 \[2, 3\]"
    with pytest.raises(ValueError, match=message):
        make_own(lambda **arguments: nn.Linear(4, A), monkeypatch, num_atoms=5)


# ---- a memory ------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("kind", ["policy", "q"])
def test_memory_is_between_the_features_and_the_heads_of_a_network(
    kind: str, num_rows: int, monkeypatch
) -> None:
    spec = MemorySpec("gru")
    if kind == "policy":
        model = make_own(lambda num_actions: Net(), monkeypatch, spec)
    else:
        model = make_own(QNet, monkeypatch, spec, num_atoms=1)
    observation, state = torch.randn(2 * num_rows, 4), torch.randn(2, 8)
    is_first = torch.zeros(num_rows, 2, dtype=torch.bool)
    output, after = model(observation, Sequences(state, is_first))
    net = own_network(model)
    x, expected = model.memory(net.trunk(observation), state, is_first)
    torch.testing.assert_close(after, expected)
    found = output[0] if kind == "policy" else output.squeeze(2)
    torch.testing.assert_close(found, net.policy(x))


def test_values_without_atoms_are_those_of_one_atom(monkeypatch) -> None:
    model = make_own(QNet, monkeypatch, num_atoms=1)
    observation = torch.randn(5, 4)
    assert model(observation).shape == (5, A, 1)
    expected = model.policy(model.trunk(observation))
    torch.testing.assert_close(model(observation).squeeze(2), expected)


class Averaging(RecurrentModel):
    """Its state is a mean of what it has seen, which fades."""

    state_size = 4

    def __init__(self, observation_shape: Any = None, num_actions: int = A) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, observation: Tensor, sequences: Sequences) -> Any:
        state, rows = sequences.state, []
        seen = observation.flatten(1).float()[:, :4].view(*sequences.is_first.shape, 4)
        for row, is_first in zip(seen, sequences.is_first, strict=True):
            state = 0.5 * state * ~is_first.unsqueeze(1) + row
            rows.append(state)
        return self.net(torch.cat(rows)), state


class Remembered(Net):
    def __init__(self, observation_shape: Any, num_actions: int) -> None:
        super().__init__()

    def features(self, observation: Tensor) -> Tensor:
        return super().features(observation.flatten(1).float()[:, :4])


class Unreadable(Net):
    def features(self, observation: Tensor) -> Any:
        return None


@pytest.mark.parametrize(
    ("make", "memory", "message"),
    [
        (lambda **_: nn.Linear(4, A), "lstm", r"lacks them; define features\(.*, or leave memory"),
        (lambda **_: Unreadable(), "gru", r"features must give \[N, F\], .* it gave None"),
    ],
    ids=["plain", "features"],
)
def test_network_that_cannot_have_the_memory_is_refused(
    make: Any, memory: Any, message: str, monkeypatch
) -> None:
    with pytest.raises(ValueError, match=message):
        make_own(make, monkeypatch, MemorySpec(memory), num_atoms=1)


@pytest.mark.parametrize(
    "options",
    [
        ("algo=ppo", "memory=lstm", "model=test_models_own:Remembered", "minibatch_size=20"),
        ("algo=a2c", "model=test_models_own:Averaging"),
    ],
    ids=["memory", "state"],
)
def test_network_of_ones_own_that_remembers_is_trained_and_acts(
    options: tuple[str, ...], tmp_path
) -> None:
    small = "env=catch", "num_envs=2", "total_steps=40", "num_workers=0"
    run_dir = trained(tmp_path / "run", *small, "horizon=10", *options)
    policy = load_policy(run_dir, greedy=True)
    shape = policy.env_spec.observation_shape
    begin, later = np.ones(1, np.bool_), np.zeros(1, np.bool_)
    for is_first in (begin, later):
        policy(np.ones((1, *shape), np.uint8), is_first)
    assert policy._states is not None and policy._states.get_state().any()
