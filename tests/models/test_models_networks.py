"""Networks: sizes, initial parameters, the arithmetic of the fast paths, and refusals."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from refusals import words
from torch.nn import functional as F

from accel_rl.models import PolicyValue, QHead, make_model
from accel_rl.models.image import (
    A3C_NET,
    DQN_NET,
    GA3C_LARGE_NETS,
    NATURE_NET,
    ImageNetwork,
    ImageSpec,
    Picture,
    normc_,
)
from accel_rl.models.layer_norm import NormalizedImageTrunk, NormalizedMLPTrunk, NormalizedQNetwork
from accel_rl.spaces import Leaf

pytestmark = pytest.mark.numeric

UINT8 = np.dtype(np.uint8)
SPECS = pytest.mark.parametrize("spec", [A3C_NET, DQN_NET, NATURE_NET], ids=lambda s: s.name)


def slow_conv(
    x: NDArray[np.float64],
    weight: NDArray[np.float64],
    bias: NDArray[np.float64],
    stride: int,
    padding: int,
) -> NDArray[np.float64]:
    """One image [C, H, W], one output at a time, then ReLU."""
    x = np.pad(x, ((0, 0), (padding, padding), (padding, padding)))
    k = weight.shape[-1]
    rows = (x.shape[1] - k) // stride + 1
    columns = (x.shape[2] - k) // stride + 1
    out = np.empty((len(weight), rows, columns))
    for o in range(len(weight)):
        for i in range(rows):
            for j in range(columns):
                patch = x[:, i * stride : i * stride + k, j * stride : j * stride + k]
                out[o, i, j] = bias[o] + (patch * weight[o]).sum()
    return np.maximum(out, 0)


def slow_forward(
    model: ImageNetwork, spec: ImageSpec, image: NDArray[np.uint8]
) -> tuple[NDArray[np.float64], float]:
    p = {name: t.detach().double().numpy() for name, t in model.named_parameters()}
    x = image / 255.0
    for number, conv in enumerate(spec.convs):
        weight, bias = p[f"convs.{number}.weight"], p[f"convs.{number}.bias"]
        x = slow_conv(x, weight, bias, conv.stride, conv.padding)
    features = x.transpose(1, 2, 0).reshape(-1)  # row, column, channel
    hidden = np.maximum(p["hidden.weight"] @ features + p["hidden.bias"], 0)
    logits = p["policy.weight"] @ hidden + p["policy.bias"]
    return logits, float(p["value.weight"][0] @ hidden + p["value.bias"][0])


@SPECS
@pytest.mark.parametrize("with_gradient", [False, True], ids=["acting", "learning"])
def test_image_network_equals_slow_reference(spec: ImageSpec, with_gradient: bool) -> None:
    torch.manual_seed(0)
    model = ImageNetwork(spec, Picture(2, 44, 40), num_actions=3)
    for p in model.parameters():  # biases and small heads must count
        p.data.add_(torch.randn_like(p), alpha=0.05)
    image = torch.randint(0, 256, (2, 2, 44, 40), dtype=torch.uint8)
    with torch.set_grad_enabled(with_gradient):
        output = model(image)
    for n in range(2):
        logits, value = slow_forward(model, spec, image[n].numpy())
        np.testing.assert_allclose(output.logits[n].detach().numpy(), logits, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(output.value[n].item(), value, rtol=1e-3, atol=1e-4)


@SPECS
def test_images_with_channels_last_in_memory_give_the_same_numbers(spec: ImageSpec) -> None:
    torch.manual_seed(0)
    model = ImageNetwork(spec, Picture(4, 84, 84), num_actions=3)
    image = torch.randint(0, 256, (2, 4, 84, 84), dtype=torch.uint8)
    with torch.no_grad():
        expected = model(image)
        output = model(image.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-6)


@SPECS
def test_gradients_in_bfloat16_are_those_in_float32_but_for_rounding(spec: ImageSpec) -> None:
    """The network written out, in bfloat16, is as far from them on the same processor."""
    torch.manual_seed(0)
    model = ImageNetwork(spec, Picture(4, 84, 84), num_actions=3)
    image = torch.randint(0, 256, (32, 4, 84, 84), dtype=torch.uint8)

    def written_out(image: torch.Tensor) -> PolicyValue:
        x = image / 255
        for conv in model.convs:
            x = F.conv2d(x, conv.weight, conv.bias, conv.stride, conv.padding).relu()  # type: ignore[arg-type]
        hidden = model.hidden
        x = F.linear(x.permute(0, 2, 3, 1).flatten(1), hidden.weight, hidden.bias).relu()
        return PolicyValue(model.policy(x), model.value(x).squeeze(1))

    gradients = []
    for network, is_short in ((model, False), (model, True), (written_out, True)):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_short):
            output = network(image)
        loss = output.value.float().sum() + output.logits.float()[:, 0].sum()
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
    for full, short, other in zip(*gradients, strict=True):
        assert short.dtype == torch.float32
        assert (short - full).norm() <= 2 * (other - full).norm() <= 0.1 * full.norm()


@pytest.mark.parametrize(
    ("spec", "shape", "hidden_inputs"),
    [
        (A3C_NET, (4, 104, 80), 12 * 9 * 32),
        (DQN_NET, (4, 104, 80), 12 * 9 * 64),
        (NATURE_NET, (4, 84, 84), 7 * 7 * 64),
        (GA3C_LARGE_NETS[0], (4, 84, 84), 3 * 3 * 64),
        (GA3C_LARGE_NETS[3], (4, 84, 84), 17 * 17 * 64),
    ],
    ids=lambda x: getattr(x, "name", None),
)
def test_hidden_layer_on_atari_images_has_published_size(
    spec: ImageSpec, shape: tuple[int, int, int], hidden_inputs: int
) -> None:
    model = ImageNetwork(spec, Picture(*shape), num_actions=4)
    assert model.hidden.weight.shape == (spec.hidden, hidden_inputs)


def test_normc_gives_each_output_unit_incoming_weights_of_the_norm() -> None:
    torch.manual_seed(0)
    weight = normc_(torch.empty(30, 50), 0.7)
    incoming = [math.sqrt(sum(w * w for w in row)) for row in weight.tolist()]
    np.testing.assert_allclose(incoming, 0.7, rtol=1e-5)
    outgoing = weight.norm(dim=0)
    assert outgoing.std() > 0.01


@pytest.mark.parametrize("name", ["a3c", "dqn"])
def test_initial_parameters_are_glorot_and_normc(name: str) -> None:
    torch.manual_seed(0)
    model = make_model(name, Leaf((4, 104, 80), UINT8), 6)
    assert isinstance(model, ImageNetwork)
    for layer, norm in ((model.hidden, 1.0), (model.policy, 0.01), (model.value, 1.0)):
        np.testing.assert_allclose(layer.weight.norm(dim=1).detach(), norm, rtol=1e-5)
    for conv in model.convs:
        out, into, height, width = conv.weight.shape
        bound = math.sqrt(6 / ((into + out) * height * width))
        largest = conv.weight.abs().max().item()
        assert 0.99 * bound < largest <= bound
    assert all((p == 0).all() for n, p in model.named_parameters() if n.endswith("bias"))


def test_initial_parameters_of_nature_are_orthogonal() -> None:
    torch.manual_seed(0)
    model = make_model("nature", Leaf((4, 84, 84), UINT8), 6)
    assert isinstance(model, ImageNetwork)
    layers = [(layer, 2.0) for layer in (*model.convs, model.hidden)]
    for layer, square in (*layers, (model.policy, 1e-4), (model.value, 1.0)):
        rows = layer.weight.detach().flatten(1).double()
        expected = square * torch.eye(len(rows), dtype=torch.float64)
        torch.testing.assert_close(rows @ rows.T, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("nips", (4 * 8 * 8, 16 * 4 * 4, 9 * 9 * 32, 256)),
        ("paac_nature", (4 * 8 * 8, 32 * 4 * 4, 64 * 3 * 3, 7 * 7 * 64, 512)),
    ],
)
def test_initial_weights_of_paac_lie_within_the_root_of_their_inputs(
    name: str, inputs: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    model = make_model(name, Leaf((4, 84, 84), UINT8), 6)
    assert isinstance(model, ImageNetwork)
    layers = (*model.convs, model.hidden, model.policy)
    for layer, num in zip(layers, inputs, strict=True):
        assert 0.98 < layer.weight.abs().max().item() * math.sqrt(num) <= 1


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((4, 104, 80), "uint8", "ImageNetwork"),
        ((1, 10, 5), "uint8", "MLP"),
        ((4, 104, 80), "float32", "ImageNetwork"),
        ((4,), "float64", "MLP"),
        ((10, 5), "bool", "MLP"),
        ((), "int64", "MLP"),
    ],
    ids=["image", "tiny_image", "floats", "vector", "board", "scalar"],
)
def test_auto_chooses_a_network_that_takes_the_observation(
    shape: tuple[int, ...], dtype: str, expected: str
) -> None:
    model = make_model("auto", Leaf(shape, np.dtype(dtype)), 2)
    assert type(model).__name__ == expected
    observation = torch.from_numpy(np.ones((7, *shape), dtype))
    output = model(observation)
    assert (output.logits.shape, output.value.shape) == ((7, 2), (7,))
    assert output.logits.dtype == output.value.dtype == torch.float32
    values = make_model("auto", Leaf(shape, np.dtype(dtype)), QHead(2))(observation)
    assert (values.shape, values.dtype) == ((7, 2, 1), torch.float32)


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "head", "said"),
    [
        ("resnet", (4, 84, 84), "uint8", 2, "model is 'resnet'; auto, a3c"),
        ("a3c", (4,), "float32", 2, "model=a3c needs pictures float32 of shape [4]"),
        ("nature", (4, 20, 20), "uint8", 2, "pictures of 20 x 20 too small model=nature"),
        ("impala", (1, 10, 5), "uint8", 2, "too small model=impala; use larger images"),
        ("impala", (4, 7, 84), "uint8", 2, "too small model=impala; use larger images"),
        ("auto", (10, 10, 10), "uint8", 2, "[10, 10, 10] channels first, channels last"),
        ("pqn", (4, 84, 84), "uint8", 2, "model=pqn Q-learning use model=auto"),
        ("pqn", (4, 84, 84), "uint8", QHead(2, is_dueling=True), "model=pqn dueling=true leave"),
    ],
)
def test_network_that_does_not_fit_is_refused(
    name: str, shape: tuple[int, ...], dtype: str, head: int | QHead, said: str
) -> None:
    with pytest.raises(ValueError, match=words(said)):
        make_model(name, Leaf(shape, np.dtype(dtype)), head)
    make_model("mlp", Leaf(shape, np.dtype(dtype)), 2)


def plain_pqn_layers(model: NormalizedQNetwork) -> torch.nn.Module:
    """The layers written out in plain torch, channels first, with the parameters of ``model``."""
    trunk = model.trunk
    assert isinstance(trunk, NormalizedImageTrunk)
    layers: list[torch.nn.Module] = []
    for conv, norm in zip(trunk.convs, trunk.conv_norms, strict=True):
        sizes = conv.kernel_size, conv.stride
        plain = torch.nn.Conv2d(conv.in_channels, conv.out_channels, *sizes)
        plain.load_state_dict(conv.state_dict())
        rows, columns, channels = norm.normalized_shape
        own = torch.nn.LayerNorm([channels, rows, columns])
        own.weight.data = norm.weight.data.permute(2, 0, 1).contiguous()
        own.bias.data = norm.bias.data.permute(2, 0, 1).contiguous()
        layers += [plain, own, torch.nn.ReLU()]
    hidden = torch.nn.Linear(*reversed(trunk.hidden.weight.shape))
    weight = trunk.hidden.weight.data.view(-1, rows, columns, channels)
    hidden.weight.data = weight.permute(0, 3, 1, 2).flatten(1)
    hidden.bias.data = trunk.hidden.bias.data
    return torch.nn.Sequential(
        *layers, torch.nn.Flatten(), hidden, trunk.norm, torch.nn.ReLU(), model.output
    )


def test_normalized_image_network_and_gradient_equal_plain_layers_with_channels_first() -> None:
    torch.manual_seed(0)
    model = make_model("pqn", Leaf((2, 52, 44), UINT8), QHead(3))
    assert isinstance(model, NormalizedQNetwork)
    for p in model.parameters():  # biases and the scales of the norms must count
        p.data.add_(torch.randn_like(p), alpha=0.05)
    image = torch.randint(0, 256, (5, 2, 52, 44), dtype=torch.uint8)
    plain = plain_pqn_layers(model)
    expected = plain(image / 255)
    output = model(image).squeeze(2)
    torch.testing.assert_close(output, expected, rtol=1e-3, atol=1e-4)
    output.square().sum().backward()
    found = model.trunk.convs[0].weight.grad  # type: ignore[union-attr, operator, index]
    (gradient,) = torch.autograd.grad(expected.square().sum(), [plain[0].weight])  # type: ignore[index]
    torch.testing.assert_close(found, gradient, rtol=1e-2, atol=1e-3 * float(gradient.abs().max()))
    with torch.no_grad():
        torch.testing.assert_close(model(image).squeeze(2), expected, rtol=1e-3, atol=1e-4)


def test_normalized_vector_network_equals_plain_layers() -> None:
    torch.manual_seed(0)
    model = make_model("pqn", Leaf((2, 3), np.dtype(np.float64)), QHead(4, 5))
    assert isinstance(model, NormalizedQNetwork) and isinstance(model.trunk, NormalizedMLPTrunk)
    x = torch.randn(7, 2, 3, dtype=torch.float64)
    y = x.flatten(1).float()
    for linear, norm in zip(model.trunk.layers[0::3], model.trunk.layers[1::3], strict=True):
        y = F.linear(y, linear.weight, linear.bias)
        y = (y - y.mean(1, keepdim=True)) / (y.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        y = (y * norm.weight + norm.bias).relu()
    assert y.shape == (7, 84)
    expected = F.linear(y, model.output.weight, model.output.bias).view(7, 4, 5)
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("shape", "dtype"), [((4, 84, 84), "uint8"), ((6,), "float32")])
def test_initial_parameters_of_pqn_are_orthogonal(shape: tuple[int, ...], dtype: str) -> None:
    torch.manual_seed(0)
    model = make_model("pqn", Leaf(shape, np.dtype(dtype)), QHead(6))
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            assert (p == 0).all()
        elif "norm" in name or p.ndim == 1:
            assert (p == 1).all()
        else:
            rows = p.detach().flatten(1).double()
            square = rows @ rows.T if len(rows) <= rows.shape[1] else rows.T @ rows
            expected = 2 * torch.eye(len(square), dtype=torch.float64)
            torch.testing.assert_close(square, expected, rtol=0, atol=1e-5)
    assert sum(p.ndim > 1 and "norm" not in n for n, p in model.named_parameters()) >= 3


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((4, 84, 84), "uint8", "NormalizedImageTrunk"),
        ((1, 10, 5), "uint8", "NormalizedImageTrunk"),
        ((1, 2, 5), "uint8", "NormalizedMLPTrunk"),
        ((84, 84, 4), "float32", "NormalizedImageTrunk"),
        ((), "int64", "NormalizedMLPTrunk"),
    ],
    ids=["image", "small_image", "tiny_image", "floats", "scalar"],
)
def test_pqn_chooses_layers_by_observation(
    shape: tuple[int, ...], dtype: str, expected: str
) -> None:
    model = make_model("pqn", Leaf(shape, np.dtype(dtype)), QHead(2))
    assert type(model.trunk).__name__ == expected
    assert model(torch.from_numpy(np.ones((3, *shape), dtype))).shape == (3, 2, 1)


def test_networks_of_small_images_have_one_convolution() -> None:
    """16 filters of 3 x 3 leave 8 x 8 of 10 x 10, then 128 units."""
    trunk = 4 * 9 * 16 + 16 + 16 * 64 * 128 + 128
    heads, norms, output = 128 * 6 + 6 + 128 + 1, 2 * 16 * 64 + 2 * 128, 128 * 6 + 6
    for model, size in (
        (make_model("minatar", Leaf((4, 10, 10), UINT8), 6), trunk + heads),
        (make_model("pqn", Leaf((4, 10, 10), UINT8), QHead(6)), trunk + norms + output),
    ):
        assert sum(each.numel() for each in model.parameters()) == size
