"""IMPALA's residual network: against a plain twin, its size, and where it may be used."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from accel_rl.models import MemorySpec, QHead, Sequences, make_model
from accel_rl.models.image import ImageNetwork, Picture
from accel_rl.models.q_value import num_random, with_noise
from accel_rl.models.residual import IMPALA_NET, MaxPool, SpectralConv, spectral_norm
from accel_rl.spaces import Leaf

pytestmark = pytest.mark.numeric

UINT8 = np.dtype(np.uint8)
SHAPES = [pytest.param((4, 84, 84), marks=pytest.mark.slow), (2, 13, 10), (1, 8, 9)]


class Twin(nn.Module):
    """The network as the paper draws it, with TensorFlow's padding written out."""

    def __init__(self, shape: tuple[int, int, int], num_actions: int) -> None:
        super().__init__()
        channels, height, width = shape
        self.convs = nn.ModuleList()
        for out in (16, 32, 32):
            self.convs.append(nn.Conv2d(channels, out, 3, padding=1))
            self.convs.extend(nn.Conv2d(out, out, 3, padding=1) for _ in range(4))
            channels = out
        size = 32 * math.ceil(height / 8) * math.ceil(width / 8)
        self.hidden = nn.Linear(size, 256)
        self.policy, self.value = nn.Linear(256, num_actions), nn.Linear(256, 1)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        x = image.to(self.hidden.weight.dtype) / 255
        convs = iter(self.convs)
        for _ in range(3):
            x = pool_as_tensorflow(next(convs)(x))
            for _ in range(2):
                first, second = next(convs), next(convs)
                x = x + second(F.relu(first(F.relu(x))))
        x = F.relu(x).permute(0, 2, 3, 1).flatten(1)
        x = F.relu(self.hidden(x))
        return self.policy(x), self.value(x).squeeze(1)


def pool_as_tensorflow(x: Tensor) -> Tensor:
    """A maximum of each window, with SAME padding: its smaller half comes first."""
    *_, height, width = x.shape
    pads = [max(0, (math.ceil(n / 2) - 1) * 2 + 3 - n) for n in (height, width)]
    top, left = (pad // 2 for pad in pads)
    rows = []
    for i in range(math.ceil(height / 2)):
        row = []
        for j in range(math.ceil(width / 2)):
            u, v = 2 * i - top, 2 * j - left
            row.append(x[:, :, max(0, u) : u + 3, max(0, v) : v + 3].amax((2, 3)))
        rows.append(torch.stack(row, -1))
    return torch.stack(rows, -2)


def make_pair(shape: tuple[int, int, int]) -> tuple[ImageNetwork, Twin]:
    """The network and its twin, with the same parameters, none of them 0."""
    torch.manual_seed(0)
    model, twin = ImageNetwork(IMPALA_NET, Picture(*shape), num_actions=3), Twin(shape, 3)
    for own, other in zip(model.parameters(), twin.parameters(), strict=True):
        own.data.add_(torch.randn_like(own), alpha=0.02)
        other.data.copy_(own.data)
    return model, twin


def images(shape: tuple[int, int, int], N: int = 2) -> Tensor:
    return torch.randint(0, 256, (N, *shape), dtype=torch.uint8)


@pytest.mark.parametrize("shape", SHAPES)
def test_network_and_its_gradient_equal_those_of_the_twin(shape: tuple[int, int, int]) -> None:
    model, twin = (each.double() for each in make_pair(shape))
    image = images(shape)
    found, expected = model(image), twin(image)
    torch.testing.assert_close(tuple(found), expected, rtol=1e-9, atol=1e-9)
    weight = torch.randn(2, 3, dtype=torch.float64)
    gradients = [
        torch.autograd.grad((weight * logits).sum() + value.square().sum(), list(net.parameters()))
        for net, (logits, value) in ((model, found), (twin, expected))
    ]
    for own, other in zip(*gradients, strict=True):
        assert other.abs().max() > 0
        torch.testing.assert_close(own, other, rtol=1e-7, atol=1e-9)
    with torch.no_grad():  # as it acts
        torch.testing.assert_close(tuple(model(image)), expected, rtol=1e-9, atol=1e-9)


def test_gradient_in_bfloat16_is_as_near_as_that_of_the_twin() -> None:
    shape = (4, 24, 20)
    model, twin = make_pair(shape)
    image, gradients = images(shape, 16), []
    for network, is_short in ((model, False), (model, True), (twin, True)):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_short):
            logits, value = network(image)
        loss = value.float().sum() + logits.float()[:, 0].sum()
        gradients.append(torch.autograd.grad(loss, list(network.parameters())))
    for full, short, other in zip(*gradients, strict=True):
        assert short.dtype == torch.float32
        assert (short - full).norm() <= 2 * (other - full).norm() <= 0.3 * full.norm()


def test_parameters_are_as_many_as_the_paper_s_layers_have() -> None:
    model = make_model("impala", Leaf((4, 84, 84), UINT8), 18)
    first = [(4, 16), (16, 32), (32, 32)]  # the convolution before each maximum
    convs = [*first, *((out, out) for _, out in first for _ in range(4))]
    count = sum(9 * into * out + out for into, out in convs)
    assert len(convs) == 15 and count == 97_744
    count += 11 * 11 * 32 * 256 + 256 + 256 * 18 + 18 + 257  # 84 -> 42 -> 21 -> 11
    assert sum(p.numel() for p in model.parameters()) == count


def test_initial_weights_are_sonnet_s() -> None:
    torch.manual_seed(0)
    model = make_model("impala", Leaf((4, 84, 84), UINT8), 6)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any()
            continue
        scaled = parameter.detach() * parameter[0].numel() ** 0.5
        assert scaled.abs().max() <= 2
        if parameter.numel() > 2_000:  # a normal distribution cut off at 2 has deviation 0.8796
            assert scaled.std().item() == pytest.approx(0.8796, abs=0.03)
            assert scaled.abs().max() > 1.95


def test_it_has_an_lstm_and_learns_values_of_actions() -> None:
    shape, image = (4, 24, 20), images((4, 24, 20))
    recurrent = make_model("impala", Leaf(shape, UINT8), 3, MemorySpec())
    state, is_first = torch.zeros(2, recurrent.state_size), torch.zeros(1, 2, dtype=torch.bool)
    output, after = recurrent(image, Sequences(state, is_first))
    assert (output.logits.shape, output.value.shape) == ((2, 3), (2,))
    assert after.shape == (2, 2 * 256)
    for num_atoms, is_dueling in ((1, False), (5, True)):
        q_model = make_model("impala", Leaf(shape, UINT8), QHead(3, num_atoms, is_dueling))
        remembering = make_model(
            "impala", Leaf(shape, UINT8), QHead(3, num_atoms, is_dueling), MemorySpec()
        )
        state = torch.zeros(2, remembering.state_size)
        q_values = q_model(image), remembering(image, Sequences(state, is_first))[0]
        for network, q_value in zip((q_model, remembering), q_values, strict=True):
            assert q_value.shape == (2, 3, num_atoms)
            q_value.square().sum().backward()
            assert all(p.grad is not None for p in network.parameters())


@pytest.mark.parametrize("shape", [(64, 576), (5, 3), (1, 4)])
def test_spectral_norm_is_the_largest_singular_value_with_its_gradient(
    shape: tuple[int, int],
) -> None:
    """The gradient is the product of both singular vectors."""
    matrix = torch.from_numpy(np.random.default_rng(0).normal(size=shape)).requires_grad_()
    u, values, v = np.linalg.svd(matrix.detach().numpy())
    found = spectral_norm(matrix)
    (gradient,) = torch.autograd.grad(found, matrix)
    assert found.item() == pytest.approx(values[0], rel=1e-6)
    np.testing.assert_allclose(gradient, np.outer(u[:, 0], v[0]), atol=1e-3)


def test_spectral_convolution_has_the_kernel_divided_by_its_norm() -> None:
    torch.manual_seed(0)
    conv, x = SpectralConv(6, 5, 3, 1, 1), torch.randn(2, 6, 7, 7)
    norm = np.linalg.svd(conv.weight.detach().numpy().reshape(5, -1))[1][0]
    expected = F.conv2d(x, conv.weight / float(norm), conv.bias, padding=1)
    torch.testing.assert_close(conv(x), expected)


@pytest.mark.parametrize("shape", [(11, 11), (11, 10), (3, 5), (6, 6), (23, 14)])
def test_maximum_has_the_windows_of_an_adaptive_one(shape: tuple[int, int]) -> None:
    """Window i of 6 goes from floor(i n / 6) to ceil((i + 1) n / 6)."""
    x = torch.randn(1, 2, *shape)
    found = MaxPool(6)(x)
    for i in range(6):
        for j in range(6):
            rows, columns = (
                slice(k * n // 6, -(-(k + 1) * n // 6)) for k, n in zip((i, j), shape, strict=True)
            )
            assert torch.equal(found[:, :, i, j], x[:, :, rows, columns].amax((2, 3)))


def test_network_of_btr_has_its_layers_and_learns() -> None:
    """13 * 13 images leave maps of 2 x 2, whose maximum is 6 x 6 all the same."""
    head = QHead(6, 8, True, True, True)
    model = make_model("btr", Leaf((4, 13, 13), UINT8), head)
    convs = [(4, 32), (32, 64), (64, 64), *([(32, 32)] * 4), *([(64, 64)] * 8)]
    count = sum(9 * into * out + out for into, out in convs)
    count += 65 * 2304  # levels
    for num in (6, 1):  # each weight and bias with its deviation
        count += 2 * (2305 * 512 + 513 * num)
    assert sum(p.numel() for p in model.parameters()) == count
    assert sum(isinstance(each, SpectralConv) for each in model.modules()) == 12
    image = images((4, 13, 13))
    with with_noise(model, torch.randn(num_random(model, 2))):
        output = model(image)
    assert output.shape == (2, 6, 8)
    output.square().sum().backward()
    assert all(p.grad.abs().max() > 0 for p in model.parameters())
