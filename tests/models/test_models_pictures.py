"""Pictures: their space says where the channels are and what scales them, whatever their dtype."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary
from numpy.typing import NDArray
from refusals import words

from accel_rl.envs import make_env_factory
from accel_rl.envs.gymnasium_env import GymnasiumEnv
from accel_rl.models import QHead, make_model
from accel_rl.models.image import ConvSpec, ImageNetwork, Picture, PixelConv, picture_of
from accel_rl.models.joined import JoinedNetwork
from accel_rl.spaces import Leaf, from_gymnasium

pytestmark = pytest.mark.numeric


@pytest.mark.parametrize(
    ("shape", "channels", "height", "width", "is_last"),
    [
        ((4, 84, 84), 4, 84, 84, False),
        ((84, 84, 4), 4, 84, 84, True),
        ((10, 10, 6), 6, 10, 10, True),
        ((64, 64, 1), 1, 64, 64, True),
        ((1, 28, 28), 1, 28, 28, False),
        ((12, 64, 64), 12, 64, 64, False),
        ((96, 96, 12), 12, 96, 96, True),
        ((12, 10, 10), 12, 10, 10, False),
        ((32, 32, 48), 48, 32, 32, True),
        ((4, 104, 80), 4, 104, 80, False),
        ((210, 160, 3), 3, 210, 160, True),
        ((2, 1, 1), 2, 1, 1, False),
    ],
)
def test_axis_of_channels_is_found_by_comparing_sizes(
    shape: tuple[int, ...], channels: int, height: int, width: int, is_last: bool
) -> None:
    for dtype in (np.uint8, np.float32):
        found = picture_of(Leaf(shape, np.dtype(dtype)))
        assert found is not None and found[:4] == (channels, height, width, is_last)


@pytest.mark.parametrize("shape", [(10, 10, 10), (10, 20, 10), (20, 10, 30), (1, 1, 1)])
def test_axis_that_cannot_be_told_is_refused_unless_it_is_declared(shape: tuple[int, ...]) -> None:
    a, b, c = shape
    readings = f"{b} x {c} with {a} channels first {a} x {b} with {c} channels last"
    leaf = Leaf(shape, np.dtype(np.uint8))
    with pytest.raises(ValueError, match=words(f"{readings} metadata Leaf model=mlp")):
        make_model("auto", leaf, 2)
    with pytest.raises(ValueError, match=words(readings)):
        JoinedNetwork({"camera": leaf}, 2)
    make_model("mlp", leaf, 2)
    first, last = (
        picture_of(Leaf(shape, np.dtype(np.uint8), channels=channels))  # type: ignore[arg-type]
        for channels in ("first", "last")
    )
    assert first == Picture(a, b, c) and last == Picture(c, a, b, True)
    with pytest.raises(ValueError, match="channels is 'middle'; it must be first, last or None"):
        Leaf(shape, np.dtype(np.uint8), channels="middle")  # type: ignore[arg-type]


class Board(gymnasium.Env[Any, Any]):
    observation_space: Any = Box(0, 1, (10, 10, 10), np.uint8)
    action_space = Discrete(2)


@pytest.mark.parametrize("space", [Board.observation_space, Dict(a=Board.observation_space)])
def test_gymnasium_environments_declare_it_in_their_metadata(space: Any) -> None:
    env = Board()
    env.observation_space, env.metadata = space, {"channels": "last"}
    found = GymnasiumEnv(lambda: gymnasium.Wrapper(env), "board").spec.observation
    leaf = found if isinstance(found, Leaf) else found["a"]
    assert isinstance(leaf, Leaf) and leaf.channels == "last"


def test_games_of_minatar_declare_it() -> None:
    pytest.importorskip("minatar")
    env = make_env_factory("minatar/seaquest")(0)
    assert picture_of(env.spec.observation) == Picture(10, 10, 10)  # type: ignore[arg-type]


RGBD = np.broadcast_to(np.array([255, 255, 255, 10], np.float32), (8, 8, 4))


@pytest.mark.parametrize(
    ("space", "scale", "offset"),
    [
        (Box(0, 255, (3, 8, 8), np.uint8), 1 / 255, 0),
        (Box(0, 255, (3, 8, 8), np.float32), 1 / 255, 0),
        (Box(0, 255, (3, 8, 8), np.int64), 1 / 255, 0),
        (Box(0, 1, (3, 8, 8), np.uint8), 1, 0),
        (Box(10, 20, (3, 8, 8), np.uint8), 1 / 10, 10),
        (Box(0, 1, (3, 8, 8), np.float32), 1, 0),
        (Box(-1, 1, (3, 8, 8), np.float64), 1 / 2, -1),
        (Box(-np.inf, np.inf, (3, 8, 8)), 1, 0),
        (Box(0, np.inf, (3, 8, 8)), 1, 0),
        (Box(-1e9, 1e9, (3, 8, 8)), 1, 0),
        (MultiBinary((3, 8, 8)), 1, 0),
        (Box(np.zeros_like(RGBD), RGBD), (1 / 255, 1 / 255, 1 / 255, 1 / 10), 0),
        (Box(-RGBD, RGBD), (1 / 510, 1 / 510, 1 / 510, 1 / 20), (-255, -255, -255, -10)),
    ],
    ids=str,
)
def test_bounds_decide_the_scale(space: Any, scale: Any, offset: Any) -> None:
    picture = picture_of(from_gymnasium(space))  # type: ignore[arg-type]
    assert picture is not None
    assert picture.scale == pytest.approx(scale, rel=1e-15) and picture.offset == offset
    conv = PixelConv(picture, ConvSpec(2, 3, 1, 1)).double()
    array: NDArray[Any] = np.stack([space.sample() for _ in range(2)])
    if array.dtype.kind == "f":
        array = array.clip(-1e3, 1e3)
    first = array.transpose(0, 3, 1, 2) if picture.is_channels_last else array
    columns = [np.reshape(each, (-1, 1, 1)) for each in (offset, scale)]
    scaled = torch.from_numpy((first - columns[0]) * columns[1]).double()
    expected = torch.nn.functional.conv2d(scaled, conv.weight, conv.bias, padding=1)
    torch.testing.assert_close(conv(torch.from_numpy(array)), expected, rtol=1e-6, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(conv(torch.from_numpy(array)), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["a3c", "impala", "pqn"])
def test_layout_and_dtype_of_a_picture_change_nothing(name: str) -> None:
    """The same picture as bytes and as floats, its channels first and last."""
    pixels = np.random.default_rng(0).integers(256, size=(2, 3, 44, 44)).astype(np.uint8)
    outputs = []
    for array, high in (
        (pixels, 255),
        (pixels.transpose(0, 2, 3, 1).copy(), 255),
        (pixels.transpose(0, 2, 3, 1).astype(np.float32), 255),
        ((pixels / 255).astype(np.float32), 1),
    ):
        torch.manual_seed(0)
        model = make_model(
            name, Leaf(array.shape[1:], array.dtype, 0, high), QHead(4) if name == "pqn" else 4
        )
        output = model(torch.from_numpy(array))
        outputs.append(output if name == "pqn" else output.logits)
    for other in outputs[1:]:
        torch.testing.assert_close(other, outputs[0], rtol=1e-4, atol=1e-5)


def test_leaf_of_a_mapping_is_read_as_one_array_is() -> None:
    leaf = Leaf((84, 84, 3), np.dtype(np.float32), 0, 255)
    model = JoinedNetwork({"camera": leaf, "speed": Leaf((2,), np.dtype(np.float32))}, 2)
    trunk = model.trunks[0]
    assert isinstance(trunk, ImageNetwork)
    alone = make_model("a3c", leaf, 2)
    assert isinstance(alone, ImageNetwork)
    alone.load_state_dict(trunk.state_dict(), strict=False)
    image = torch.rand(2, 84, 84, 3) * 255
    torch.testing.assert_close(trunk.features(image), alone.features(image))
