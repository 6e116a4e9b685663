"""Flat parameters: views that last, for any memory format, and named copies of them."""

import numpy as np
import pytest
import torch
from flat_views import check_views
from torch import nn
from torch.nn import functional as F

from accel_rl.models import make_model
from accel_rl.parallel import FlatParameters
from accel_rl.spaces import Leaf

pytestmark = pytest.mark.numeric


def make_image_model() -> nn.Module:
    torch.manual_seed(0)
    return make_model("a3c", Leaf((2, 40, 44), np.dtype(np.uint8)), 3)


IMAGES = torch.randint(0, 256, (4, 2, 40, 44), generator=torch.Generator().manual_seed(1)).byte()


def test_parameters_become_views_with_the_same_values_and_strides() -> None:
    model, untouched = make_image_model(), make_image_model()
    flat = FlatParameters(model)
    for p, q in zip(model.parameters(), untouched.parameters(), strict=True):
        assert torch.equal(p, q)
        assert p.stride() == q.stride()
    assert not model.convs[1].weight.is_contiguous()  # type: ignore[union-attr, operator]
    flat.parameter.zero_()
    assert all((p == 0).all() for p in model.parameters())


def test_flat_gradient_is_the_gradient_of_an_ordinary_model() -> None:
    model, ordinary = make_image_model(), make_image_model()
    flat = FlatParameters(model)
    for m in (model, ordinary):
        output = m(IMAGES)
        (F.log_softmax(output.logits, 1)[:, 0].sum() + output.value.square().sum()).backward()
    for (name, grad), p in zip(
        flat.to_named(flat.gradient).items(), ordinary.parameters(), strict=True
    ):
        torch.testing.assert_close(grad, p.grad, msg=name)


def test_views_survive_training_steps_and_gradients_are_cleared() -> None:
    model = make_image_model()
    flat = FlatParameters(model)
    for _ in range(3):
        flat.zero_gradient()
        assert all(p.grad is None or (p.grad == 0).all() for p in model.parameters())
        model(IMAGES).value.square().sum().backward()
        flat.parameter.add_(flat.gradient, alpha=-1e-3)
    check_views(flat)
    assert flat.gradient.abs().sum() > 0


def test_named_round_trip_across_memory_formats_keeps_parameters() -> None:
    model = make_image_model()
    before = FlatParameters(model)
    named = before.to_named(before.parameter)
    before.parameter.zero_()  # which copies do not follow
    assert all(tensor.is_contiguous() for tensor in named.values())
    plain = make_image_model()
    for p in plain.parameters():
        p.data = torch.zeros_like(p, memory_format=torch.contiguous_format)
    flat = FlatParameters(plain)
    flat.from_named_(flat.parameter, named)
    for p, q in zip(plain.parameters(), make_image_model().parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.slow
def test_names_are_those_of_a_network_that_is_not_compiled() -> None:
    compiled = torch.compile(nn.Linear(2, 3), backend="eager")
    models = nn.Sequential(nn.Linear(2, 3)), nn.Sequential(compiled)
    assert [list(FlatParameters(each).layout) for each in models] == [["0.weight", "0.bias"]] * 2


def test_what_does_not_fit_is_refused() -> None:
    flat = FlatParameters(make_image_model())
    other = FlatParameters(make_model("a3c", Leaf((2, 40, 44), np.dtype(np.uint8)), 5))
    with pytest.raises(ValueError, match=r"differ in policy\.bias, policy\.weight"):
        flat.from_named_(flat.parameter, other.to_named(other.parameter))
    with pytest.raises(ValueError, match="2 kinds of dtype and device"):
        FlatParameters(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()))
    model = nn.Linear(2, 2)
    model.weight.data = torch.zeros(2, 4)[:, ::2]
    with pytest.raises(ValueError, match="parameter weight has gaps"):
        FlatParameters(model)


def test_layers_are_the_modules_with_their_own_parameters_in_the_flat_tensor() -> None:
    model = make_image_model()
    flat = FlatParameters(model)
    layers = flat.layers()
    assert list(layers) == ["convs.0", "convs.1", "hidden", "policy", "value"]
    for name, stretch in layers.items():
        flat.parameter.zero_()
        flat.parameter[stretch] = 1.0
        for other, p in model.named_parameters():
            assert (p == float(other.rsplit(".", 1)[0] == name)).all(), (name, other)
