"""Drawing actions, and exploration of the user's own."""

from typing import Any

import numpy as np
import pytest
import torch

from accel_rl.agents import PolicyAgent, QAgent, sample_categorical
from accel_rl.agents.distributions import Factored, masked
from accel_rl.models import QHead, make_model
from accel_rl.spaces import Leaf

pytestmark = pytest.mark.numeric


def test_sample_on_known_distribution_gives_known_actions() -> None:
    # p = (0.25, 0.5, 0.25), cumulative 0.25, 0.75, 1
    logits = torch.tensor([0.25, 0.5, 0.25]).log().expand(6, 3)
    noise = torch.tensor([0.0, 0.24, 0.26, 0.74, 0.76, 0.999], dtype=torch.float64)
    assert sample_categorical(logits, noise).tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("num_actions", [2, 3, 6, 18])
def test_largest_uniform_gives_an_allowed_action(num_actions: int) -> None:
    torch.manual_seed(0)
    logits = torch.randn(1000, num_actions)
    noise = torch.full((1000,), np.nextafter(1.0, 0.0), dtype=torch.float64)
    assert sample_categorical(logits, noise).max() == num_actions - 1


def test_uniform_zero_never_gives_an_impossible_action() -> None:
    logits = torch.tensor([[-1e30, 0.0, 0.0]])
    assert sample_categorical(logits, torch.zeros(1, dtype=torch.float64)).item() == 1


@pytest.mark.parametrize("dtype", ["bool", "uint8", "uint16", "int32", "uint64"])
def test_mask_of_any_dtype_allows_what_is_not_zero(dtype: str) -> None:
    mask = torch.tensor([[0, 1, 1, 0]]).to(getattr(torch, dtype)).expand(64, -1)
    logits = masked(torch.zeros(64, 4), mask)
    noise = torch.linspace(0, np.nextafter(1.0, 0.0), 64, dtype=torch.float64)
    assert set(sample_categorical(logits, noise, mask).tolist()) == {1, 2}


def test_where_nothing_is_allowed_an_action_is_one_of_the_space() -> None:
    """An environment that waits for its reset has a mask of zeros; its action is ignored."""
    leaf = Leaf((2,), np.dtype(np.int64), 0, (1, 2))
    lowest = torch.full((1, 5), torch.finfo(torch.float32).min)
    action = Factored(leaf, [2, 3], torch.device("cpu")).draw(lowest, torch.full((1, 2), 0.99))
    assert (action <= torch.tensor([1, 2])).all()


class Boltzmann(QAgent):
    """Draws from a softmax over values."""

    def choose(
        self, outputs: torch.Tensor, noise: torch.Tensor, env_slice: slice, mask: Any = None
    ) -> torch.Tensor:
        return sample_categorical(outputs, noise, mask)


class Timid(PolicyAgent):
    """Halves its logits."""

    def choose(
        self, outputs: torch.Tensor, noise: torch.Tensor, env_slice: slice, mask: Any = None
    ) -> torch.Tensor:
        return super().choose(outputs / 2, noise, env_slice, mask)


@pytest.mark.parametrize("kind", ["q", "policy"])
def test_subclass_explores_as_it_chooses_and_is_greedy_as_before(kind: str) -> None:
    N, weights = 20_000, torch.tensor([0.0, 2.0, 1.0])
    observation, noise = torch.zeros(N, 3), (torch.arange(N).double() + 0.5) / N
    agent: Any
    if kind == "q":
        head: Any = QHead(3)
        model = make_model("mlp", Leaf((3,), np.dtype(np.float32)), head)
        layer, scale = model.advantage[-1], 1
        agent = Boltzmann(model, None, torch.zeros(1))
    else:
        model = make_model("mlp", Leaf((3,), np.dtype(np.float32)), 3)
        layer, scale = model.policy[-1], 2
        agent = Timid(model)
    layer.weight.data.zero_()
    layer.bias.data = weights.clone()
    share = torch.bincount(agent.act(observation, noise, slice(0, N)), minlength=3) / N
    torch.testing.assert_close(share, (weights / scale).softmax(0), atol=1e-3, rtol=0)
    assert (agent.greedy().act(observation, noise, slice(0, N)) == 1).all()
