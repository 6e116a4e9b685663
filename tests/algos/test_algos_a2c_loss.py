"""The A2C loss against explicit loops, and its gradient against the analytic one."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from accel_rl.algos.a2c import a2c_loss
from accel_rl.models import PolicyValue

pytestmark = pytest.mark.numeric


def random_case(num_actions: int = 4, num_samples: int = 30) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(0)
    return {
        "logits": torch.from_numpy(rng.normal(size=(num_samples, num_actions))),
        "value": torch.from_numpy(rng.normal(size=num_samples)),
        "action": torch.from_numpy(rng.integers(num_actions, size=num_samples)),
        "return_": torch.from_numpy(rng.normal(size=num_samples)),
        "advantage": torch.from_numpy(rng.normal(size=num_samples)),
        "valid": torch.from_numpy(rng.random(num_samples) < 0.7),
    }


def loss_of(case: dict[str, torch.Tensor], entropy_coefficient: float = 0.01) -> Any:
    output = PolicyValue(case["logits"], case["value"])
    given = (case[name] for name in ("action", "return_", "advantage", "valid"))
    return a2c_loss(output, *given, value_coefficient=0.25, entropy_coefficient=entropy_coefficient)


def test_loss_of_each_sample_equals_slow_version_and_is_0_where_not_valid() -> None:
    case = random_case()
    loss = loss_of(case)
    assert {len(each) for each in loss} == {30}
    count = int(case["valid"].sum())
    assert 0 < count < 30
    for i in range(30):
        found = [each[i].item() * count for each in loss]
        if not case["valid"][i]:
            assert found == [0, 0, 0, 0]
            continue
        weights = [math.exp(z) for z in case["logits"][i].tolist()]
        p = [w / sum(weights) for w in weights]
        policy = -case["advantage"][i].item() * math.log(p[case["action"][i]])
        value = (case["return_"][i].item() - case["value"][i].item()) ** 2
        entropy = -sum(q * math.log(q) for q in p)
        total = policy + 0.25 * value - 0.01 * entropy
        assert found == pytest.approx([total, policy, value, entropy], rel=1e-12)


def test_loss_and_gradient_for_two_action_softmax_equal_the_analytic_ones() -> None:
    # with z = z1 - z0 and p = p1: d(-A ln p)/dz1 = -A (1 - p); dH/dz1 = -z p (1 - p);
    # d(R - V)^2/dV = -2 (R - V)
    z, advantage, return_, value = 0.8, 1.7, 2.0, 0.5
    numbers = {"value": [value], "return_": [return_], "advantage": [advantage]}
    case = {name: torch.tensor(x, dtype=torch.float64) for name, x in numbers.items()}
    case["logits"] = torch.tensor([[0.0, z]], dtype=torch.float64)
    for each in case.values():
        each.requires_grad_()
    case |= {"action": torch.tensor([1]), "valid": torch.tensor([True])}
    loss = loss_of(case, entropy_coefficient=0.1)
    loss.total.sum().backward()
    p = 1 / (1 + math.exp(-z))
    # p = 0.6899745, H = 0.6191211: 1.7 * 0.3711007 + 0.25 * 1.5**2 - 0.1 * 0.6191211
    assert loss.total.item() == pytest.approx(1.1314590, abs=1e-6)
    expected = -advantage * (1 - p) + 0.1 * z * p * (1 - p)
    assert case["logits"].grad is not None and case["value"].grad is not None
    np.testing.assert_allclose(case["logits"].grad[0].numpy(), [-expected, expected], rtol=1e-12)
    assert case["value"].grad.item() == pytest.approx(0.25 * -2 * (return_ - value), rel=1e-12)
    assert case["return_"].grad is None and case["advantage"].grad is None


def test_values_of_wrong_shape_are_refused() -> None:
    case = random_case()
    with pytest.raises(ValueError, match=r"expected \[N\] with N = 30"):
        loss_of({**case, "value": case["value"].unsqueeze(1)})
