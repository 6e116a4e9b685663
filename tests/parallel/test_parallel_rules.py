"""Update rules against independent versions."""

import numpy as np
import pytest
import torch

from accel_rl.parallel import Adam, RAdam, RMSProp

pytestmark = pytest.mark.numeric


@pytest.mark.parametrize("initial", [0.0, 1.0], ids=["paper", "tensorflow"])
def test_rmsprop_over_many_steps_equals_slow_version(initial: float) -> None:
    rng = np.random.default_rng(0)
    gradients = rng.normal(size=(20, 7))
    expected = list(rng.normal(size=7))
    parameter = torch.tensor(expected, dtype=torch.float64)
    rule = RMSProp(decay=0.9, eps=1e-6, initial=initial)
    state = rule.make_state(parameter)
    squares = [initial] * 7
    for step, gradient in enumerate(gradients, 1):
        rule.step_(parameter, torch.from_numpy(gradient), state, rule.rate(0.01, step))
        for i in range(7):
            squares[i] = 0.9 * squares[i] + 0.1 * gradient[i] ** 2
            expected[i] -= 0.01 * gradient[i] / (squares[i] + 1e-6) ** 0.5
    np.testing.assert_allclose(parameter.numpy(), expected, rtol=1e-12)
    np.testing.assert_allclose(state["mean_square"].numpy(), squares, rtol=1e-12)


def test_adam_over_many_steps_equals_slow_version() -> None:
    rng = np.random.default_rng(0)
    gradients = rng.normal(size=(20, 7))
    expected = list(rng.normal(size=7))
    parameter = torch.tensor(expected, dtype=torch.float64)
    rule = Adam(eps=1e-5)
    state = rule.make_state(parameter)
    means, squares = [0.0] * 7, [0.0] * 7
    for step, gradient in enumerate(gradients, 1):
        rule.step_(parameter, torch.from_numpy(gradient), state, rule.rate(0.01, step))
        for i in range(7):
            means[i] = 0.9 * means[i] + 0.1 * gradient[i]
            squares[i] = 0.999 * squares[i] + 0.001 * gradient[i] ** 2
            rate = 0.01 * (1 - 0.999**step) ** 0.5 / (1 - 0.9**step)
            expected[i] -= rate * means[i] / (squares[i] ** 0.5 + 1e-5)
    np.testing.assert_allclose(parameter.numpy(), expected, rtol=1e-12)
    np.testing.assert_allclose(state["mean"].numpy(), means, rtol=1e-12)
    np.testing.assert_allclose(state["mean_square"].numpy(), squares, rtol=1e-12)


@pytest.mark.parametrize("as_tensor", [False, True])
def test_adam_with_eps_after_the_correction_equals_torch(as_tensor: bool) -> None:
    torch.manual_seed(0)
    parameter = torch.randn(9, dtype=torch.float64)
    other = parameter.clone().requires_grad_()
    optimizer = torch.optim.Adam([other], lr=0.01, eps=0.1)
    rule = Adam(eps=0.1, eps_after_correction=True)
    state = rule.make_state(parameter)
    for step in range(1, 6):
        gradient = torch.randn(9, dtype=torch.float64)
        rate = rule.rate(0.01, step)
        rule.step_(parameter, gradient, state, torch.tensor(rate).double() if as_tensor else rate)
        other.grad = gradient.clone()
        optimizer.step()
    torch.testing.assert_close(parameter, other.detach(), rtol=1e-7 if as_tensor else 1e-12, atol=0)


@pytest.mark.parametrize(
    ("beta2", "first", "as_tensor"), [(0.999, 6, True), (0.9, 6, False), (0.5, None, True)]
)
def test_radam_equals_torch_before_and_after_it_is_rectified(beta2, first, as_tensor) -> None:
    torch.manual_seed(0)
    parameter = torch.randn(9, dtype=torch.float64)
    other = parameter.clone().requires_grad_()
    optimizer = torch.optim.RAdam([other], betas=(0.9, beta2))
    rule = RAdam(beta2=beta2)
    state = rule.make_state(parameter)
    rectified = []
    for step in range(1, 31):
        lr = 0.01 * (1 - step / 40)
        optimizer.param_groups[0]["lr"] = lr
        gradient = torch.randn(9, dtype=torch.float64)
        gradient[0] = 0.0
        rate = rule.rate(lr, step)
        rectified += [step] * (rate > 0)
        given = torch.tensor(rate, dtype=torch.float64) if as_tensor else rate
        rule.step_(parameter, gradient, state, given)
        other.grad = gradient.clone()
        optimizer.step()
        torch.testing.assert_close(parameter, other.detach(), rtol=1e-10, atol=1e-14)
    assert rectified == list(range(first, 31)) if first else not rectified


def test_radam_leaves_the_parameters_alone_at_a_learning_rate_of_0() -> None:
    rule, parameter = RAdam(), torch.ones(3)
    state = rule.make_state(parameter)
    for step in (1, 2, 7, 8):
        rule.step_(parameter, torch.full((3,), 0.2), state, rule.rate(0.0, step))
    assert parameter.tolist() == [1.0] * 3
