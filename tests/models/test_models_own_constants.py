"""What networks of the user's own have besides their parameters: the same each time one is made."""

import math
from typing import Any

import pytest
import torch
from own_networks import A, Net, make_own
from torch import Tensor, nn


class Scaled(Net):
    """Its features are multiplied by ``scale``, an attribute."""

    def __init__(self, scale: Any, trunk: nn.Module | None = None) -> None:
        super().__init__(trunk)
        self.scale = scale

    def forward(self, observation: Tensor) -> Any:
        x = self.trunk(observation) * self.scale
        return self.policy(x), self.value(x).squeeze(1)


class Buffered(Net):
    def __init__(self, buffer: Tensor) -> None:
        super().__init__()
        self.register_buffer("buffer", buffer)


class Permuted(Net):
    def __init__(self) -> None:
        super().__init__()
        self.order = torch.randperm(8).tolist()

    def forward(self, observation: Tensor) -> Any:
        x = self.trunk(observation)[:, self.order]
        return self.policy(x), self.value(x).squeeze(1)


class OtherLayers(Net):
    def __init__(self, size: int) -> None:
        super().__init__(nn.Sequential(nn.Linear(4, size), nn.Linear(size, 8)))


RANDOM = {
    "tensor": lambda: Scaled(torch.randn(8)),
    "number": lambda: Scaled(torch.randn(()).item()),
    "order": Permuted,
    "lazy": lambda: Scaled(torch.randn(8), nn.LazyLinear(8)),
}


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
@pytest.mark.parametrize("make", RANDOM.values(), ids=RANDOM)
def test_random_constant_that_is_no_parameter_is_refused(make, monkeypatch) -> None:
    torch.manual_seed(0)
    message = r"mine: with the same parameters it gives other outputs each .* requires_grad=False"
    with pytest.raises(ValueError, match=message):
        make_own(lambda observation_shape, num_actions: make(), monkeypatch)


CONSTANT = {
    "frozen parameter": lambda: Scaled(nn.Parameter(torch.randn(8), requires_grad=False)),
    "of a seed": lambda: Scaled(torch.randn(8, generator=torch.Generator().manual_seed(0))),
    "lazy": lambda: Scaled(2.0, nn.LazyLinear(8)),
    "nan": lambda: Buffered(torch.tensor([math.nan, 1.0, -math.inf])),
    "whole numbers": lambda: Buffered(torch.arange(3)),
    "booleans": lambda: Buffered(torch.tensor([True, False])),
    "none": lambda: Buffered(torch.zeros(0, dtype=torch.uint8)),
}


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
@pytest.mark.parametrize("make", CONSTANT.values(), ids=CONSTANT)
def test_constant_that_every_network_has_is_taken(make, monkeypatch) -> None:
    model = make_own(lambda observation_shape, num_actions: make(), monkeypatch)
    assert model(torch.zeros(2, 4))[0].shape == (2, A)


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_lazy_running_statistics_are_refused_as_others_are(monkeypatch) -> None:
    def make(observation_shape: Any, num_actions: Any) -> nn.Module:
        norm = nn.LazyInstanceNorm1d(track_running_stats=True)
        return Net(nn.Sequential(nn.Linear(4, 8), nn.Unflatten(1, (2, 4)), norm, nn.Flatten()))

    with pytest.raises(ValueError, match=r"changes the buffer trunk.2.running_mean, .* LayerNorm"):
        make_own(make, monkeypatch)


@pytest.mark.parametrize("more", [{}, {"num_atoms": 5}], ids=["policy", "q"])
def test_parameters_that_are_others_each_time_are_refused(more, monkeypatch) -> None:
    sizes = iter((5, 6))

    def make(**arguments: Any) -> nn.Module:
        size = next(sizes)
        if not more:
            return OtherLayers(size)
        return nn.Sequential(nn.Linear(4, size), nn.Linear(size, A * 5), nn.Unflatten(1, (A, 5)))

    with pytest.raises(ValueError, match=r"the parameter .*0\.\w+ is not there each time .* shape"):
        make_own(make, monkeypatch, **more)
