"""The LSTM and the networks with it, against the formulas in NumPy and autograd's gradient."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from accel_rl.models import MemorySpec, Sequences, make_model
from accel_rl.models.memory import LSTM
from accel_rl.spaces import Leaf

pytestmark = pytest.mark.numeric

T, B, F = 7, 3, 5
RNG = np.random.default_rng(0)
SHAPES = (Leaf((6,), np.dtype(np.float32)), 4)
IMAGES = (Leaf((4, 104, 80), np.dtype(np.uint8)), 4)


def make_lstm() -> LSTM:
    torch.manual_seed(0)
    lstm = LSTM(F)
    for parameter in lstm.parameters():  # biases, too
        torch.nn.init.normal_(parameter, std=0.7)
    return lstm


def make_case() -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, a state, and episodes that begin in the first row, within and in the last."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(T * B, F, generator=generator)
    state = torch.randn(B, 2 * F, generator=generator)
    is_first = torch.zeros(T, B, dtype=torch.bool)
    is_first[0, 0] = is_first[3, 1] = is_first[4, 1] = is_first[T - 1, 2] = True
    return x, state, is_first


def slow_lstm(lstm: LSTM, x: Tensor, state: Tensor, is_first: Tensor) -> NDArray[np.float64]:
    """Gers et al. 2000, one environment and one unit after another."""

    def sigmoid(z: float) -> float:
        return 1 / (1 + np.exp(-z))

    w, u = lstm.input.weight.detach().numpy(), lstm.recurrent.weight.detach().numpy()
    bias = lstm.input.bias.detach().numpy()
    inputs = x.view(T, B, F).numpy().astype(float)
    outputs = np.zeros((T, B, F))
    for b in range(B):
        h, c = np.split(state[b].numpy().astype(float), 2)
        for t in range(T):
            if is_first[t, b]:
                h, c = np.zeros(F), np.zeros(F)
            z = [w[k] @ inputs[t, b] + u[k] @ h + bias[k] for k in range(4 * F)]
            c = np.array(
                [sigmoid(z[F + j]) * c[j] + sigmoid(z[j]) * np.tanh(z[3 * F + j]) for j in range(F)]
            )
            h = np.array([sigmoid(z[2 * F + j]) * np.tanh(c[j]) for j in range(F)])
            outputs[t, b] = h
    return outputs


def test_lstm_is_that_of_the_formulas_with_zeros_where_episodes_begin() -> None:
    lstm, (x, state, is_first) = make_lstm(), make_case()
    outputs, after = lstm(x, state, is_first)
    expected = slow_lstm(lstm, x, state, is_first)
    np.testing.assert_allclose(outputs.view(T, B, F).detach(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(after[:, :F], outputs.view(T, B, F)[-1])


def test_lstm_of_parts_goes_on_from_the_state_of_the_one_before() -> None:
    lstm, (x, state, is_first) = make_lstm(), make_case()
    whole, after = lstm(x, state, is_first)
    for t in range(T):
        part, state = lstm(x[t * B : (t + 1) * B], state, is_first[t : t + 1])
        torch.testing.assert_close(part, whole[t * B : (t + 1) * B])
    torch.testing.assert_close(state, after)


def test_nothing_before_an_episode_has_a_gradient_from_it() -> None:
    lstm, (x, state, is_first) = make_lstm(), make_case()
    x.requires_grad_()
    outputs, _ = lstm(x, state, is_first)
    outputs.view(T, B, F)[4:, 1].sum().backward()
    assert x.grad is not None
    touched = x.grad.view(T, B, F).abs().sum(2) > 0
    expected = torch.zeros(T, B, dtype=torch.bool)
    expected[4:, 1] = True
    assert torch.equal(touched, expected)


@pytest.mark.parametrize(
    ("name", "shapes", "state_size"),
    [("mlp", SHAPES, 4 * 64), ("a3c", IMAGES, 2 * 256), ("nature", IMAGES, 2 * 512)],
)
def test_recurrent_model_has_the_layers_of_the_other_and_lstms_as_wide(
    name: str, shapes: tuple[Leaf, int], state_size: int
) -> None:
    model = make_model(name, *shapes, MemorySpec())
    assert model.state_size == state_size
    observation = torch.from_numpy(RNG.integers(256, size=(T * B, *shapes[0].shape))).to(
        torch.uint8 if name != "mlp" else torch.float32
    )
    is_first = torch.zeros(T, B, dtype=torch.bool)
    output, state = model(observation, Sequences(torch.zeros(B, model.state_size), is_first))
    assert output.logits.shape == (T * B, 4)
    assert output.value.shape == (T * B,)
    assert state.shape == (B, state_size)
    plain = make_model(name, *shapes)
    own = {k: p.shape for k, p in model.named_parameters() if "memory" not in k}
    assert sorted(own.values()) == sorted(p.shape for p in plain.parameters())
    assert bool(state.any())


def test_value_of_an_mlp_leaves_its_policy_alone() -> None:
    model = make_model("mlp", *SHAPES, MemorySpec())
    observation, is_first = torch.randn(T * B, 6), torch.zeros(T, B, dtype=torch.bool)
    output, _ = model(observation, Sequences(torch.zeros(B, model.state_size), is_first))
    output.value.sum().backward()
    moved = {name for name, each in model.named_parameters() if each.grad is not None}
    assert moved
    assert all(name.startswith("value.") for name in moved)


def test_recurrence_is_in_float32_under_autocast() -> None:
    lstm, (x, state, is_first) = make_lstm(), make_case()
    exact, _ = lstm(x, state, is_first)
    with torch.autocast("cpu", torch.bfloat16):
        outputs, after = lstm(x, state, is_first)
    assert outputs.dtype == after.dtype == torch.float32
    assert 0 < float((outputs - exact).detach().abs().max()) < 0.1
