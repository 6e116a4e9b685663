"""The A2C loss against explicit loops, and its gradient against the analytic one."""

import math

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


def test_loss_of_each_sample_equals_slow_version_and_is_0_where_not_valid() -> None:
    case = random_case()
    loss = a2c_loss(
        PolicyValue(case["logits"], case["value"]),
        case["action"],
        case["return_"],
        case["advantage"],
        case["valid"],
        value_coefficient=0.25,
        entropy_coefficient=0.01,
    )
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


def test_loss_of_one_sample_equals_hand_computed() -> None:
    # p = (1/2, 1/2), advantage 3, return 2, value 0.5:
    # policy = 3 ln 2 = 2.0794415; value = 1.5^2 = 2.25; entropy = ln 2 = 0.6931472
    # total = 2.0794415 + 0.25 * 2.25 - 0.01 * 0.6931472 = 2.6350101
    one = torch.ones(1, dtype=torch.float64)
    loss = a2c_loss(
        PolicyValue(torch.zeros(1, 2, dtype=torch.float64), 0.5 * one),
        torch.tensor([1]),
        2 * one,
        3 * one,
        torch.tensor([True]),
        value_coefficient=0.25,
        entropy_coefficient=0.01,
    )
    assert loss.total.item() == pytest.approx(2.6350101, abs=1e-7)


def test_gradient_for_two_action_softmax_equals_the_analytic_one() -> None:
    # with z = z1 - z0 and p = p1: d(-A ln p)/dz1 = -A (1 - p); dH/dz1 = -z p (1 - p);
    # d(R - V)^2/dV = -2 (R - V)
    z, advantage, return_, value = 0.8, 1.7, 2.0, 0.5
    logits = torch.tensor([[0.0, z]], dtype=torch.float64, requires_grad=True)
    v = torch.tensor([value], dtype=torch.float64, requires_grad=True)
    loss = a2c_loss(
        PolicyValue(logits, v),
        torch.tensor([1]),
        torch.tensor([return_], dtype=torch.float64),
        torch.tensor([advantage], dtype=torch.float64),
        torch.tensor([True]),
        value_coefficient=0.25,
        entropy_coefficient=0.1,
    )
    grad_logits, grad_value = torch.autograd.grad(loss.total, (logits, v))
    p = 1 / (1 + math.exp(-z))
    expected = -advantage * (1 - p) + 0.1 * z * p * (1 - p)
    np.testing.assert_allclose(grad_logits[0].numpy(), [-expected, expected], rtol=1e-12)
    assert grad_value.item() == pytest.approx(0.25 * -2 * (return_ - value), rel=1e-12)


def test_targets_carry_no_gradient() -> None:
    case = random_case()
    return_, advantage = (case[name].requires_grad_() for name in ("return_", "advantage"))
    case["logits"].requires_grad_()
    loss = a2c_loss(
        PolicyValue(case["logits"], case["value"]),
        case["action"],
        return_,
        advantage,
        case["valid"],
        value_coefficient=0.25,
        entropy_coefficient=0.01,
    )
    loss.total.sum().backward()
    assert return_.grad is None
    assert advantage.grad is None


def test_values_of_wrong_shape_are_refused() -> None:
    case = random_case()
    with pytest.raises(ValueError, match=r"expected \[N\] with N = 30"):
        a2c_loss(
            PolicyValue(case["logits"], case["value"].unsqueeze(1)),
            case["action"],
            case["return_"],
            case["advantage"],
            case["valid"],
            value_coefficient=0.25,
            entropy_coefficient=0.01,
        )
