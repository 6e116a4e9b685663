"""The updates of a learner on its own: clip, apply the rule, save and load."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from accel_rl.parallel import FlatParameters, Local, ParameterRule, RMSProp, create_store

pytestmark = pytest.mark.numeric

RULE = RMSProp(decay=0.9, eps=1e-6, initial=0.0)


def make_sync(max_gradient_norm: float | None = None, rule: RMSProp = RULE) -> Local:
    torch.manual_seed(0)
    return Local(FlatParameters(nn.Linear(3, 2)), rule, max_gradient_norm)


def test_step_applies_the_rule_to_the_clipped_gradient() -> None:
    sync = make_sync(max_gradient_norm=0.5)
    flat = sync.parameters
    before = flat.parameter.double().numpy().copy()
    flat.gradient[:2] = torch.tensor([3.0, 4.0])
    norm = sync.step(lr=0.01)
    clipped = np.zeros_like(before)
    clipped[:2] = (0.3, 0.4)
    expected = before - 0.01 * clipped / np.sqrt(0.1 * clipped**2 + 1e-6)
    assert norm.item() == pytest.approx(5.0)
    np.testing.assert_allclose(flat.parameter.numpy(), expected, rtol=1e-5, atol=1e-7)


def test_state_of_another_rule_is_refused() -> None:
    sync = make_sync()
    state = sync.state_dict()
    state["momentum"] = state.pop("mean_square")
    with pytest.raises(
        ValueError, match=r"holds counts, momentum, parameters; .* needs counts, mean_square"
    ):
        sync.load_state_dict(state)


class Named(ParameterRule):
    """Takes the sum of each weight off it, and leaves biases."""

    def make_state(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"last": torch.zeros_like(parameter)}

    def step_parameter_(
        self, name: str, parameter: Any, gradient: Any, state: Any, rate: float | torch.Tensor
    ) -> None:
        assert parameter.shape == gradient.shape == state["last"].shape
        state["last"].copy_(gradient)
        if name.endswith("weight"):
            parameter.sub_(rate * gradient.sum())


def test_rule_may_see_each_parameter_by_name_and_shape() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    sync = Local(FlatParameters(model), Named(), None)
    for number, each in enumerate(model.parameters()):
        each.grad.fill_(number + 1)  # type: ignore[union-attr]
    sync.step(lr=0.5)
    for name, each in model.named_parameters():
        moved = 0.5 * each.grad.sum() if name.endswith("weight") else 0.0
        torch.testing.assert_close(each.detach(), before[name] - moved)
    found = sync.state_dict()["last"]
    assert all(torch.equal(found[name], each.grad) for name, each in model.named_parameters())


def test_rule_of_whole_parameters_is_refused_in_a_store() -> None:
    with pytest.raises(ValueError, match=r"Named sees whole parameters.*use sync=all_reduce"):
        create_store(FlatParameters(torch.nn.Linear(2, 1)), Named())
