"""Spaces: leaves, the views of structs, random values, and the way from and to Gymnasium."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from space_envs import PAIRS

from accel_rl.envs import EnvSpec
from accel_rl.spaces import (
    Leaf,
    as_bytes,
    discrete,
    dtype_of,
    from_gymnasium,
    has_allowed,
    leaves_of,
    mask_space,
    random_values,
    tensor_views,
    to_gymnasium,
    views,
    write_values,
    zeros,
)

DTYPES = [
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "float32", "float64"),
]
ALL = {dtype: Leaf((3, 5), np.dtype(dtype)) for dtype in DTYPES}
NESTED = {
    "odd": Leaf((7,), np.uint8),
    "in": {"one": Leaf((), np.int64), **ALL},
    "last": ALL["int8"],
}


def test_numbers_of_a_leaf_are_in_the_byte_order_of_this_machine() -> None:
    """Torch knows no other."""
    assert Leaf((2,), np.dtype(">f4")).dtype.isnative


@pytest.mark.parametrize("shape", [(0,), (1,), (3,), (4, 0), (2, 1), (3, 5), ()])
def test_views_of_structs_share_their_memory_and_their_numbers(shape: tuple[int, ...]) -> None:
    array = zeros(NESTED, *shape)
    rng = np.random.default_rng(0)
    tensors, arrays = tensor_views(NESTED, array), views(NESTED, array)
    for path, leaf in leaves_of(NESTED):
        tensor, view = tensors, arrays
        for name in path:
            tensor, view = tensor[name], view[name]
        view[...] = rng.integers(0, 2, (*shape, *leaf.shape))
        assert tensor.shape == view.shape == (*shape, *leaf.shape)
        assert str(tensor.dtype).removeprefix("torch.") == str(leaf.dtype)
        assert np.array_equal(tensor.numpy(), view)
        assert not view.size or tensor.data_ptr() == view.__array_interface__["data"][0]


def test_views_of_a_part_of_a_rollout_are_of_that_part() -> None:
    array = zeros(NESTED, 5, 6)
    array["in"]["float32"] = np.arange(5 * 6 * 15).reshape(5, 6, 3, 5)
    part = tensor_views(NESTED, array[3, 2:5])["in"]["float32"]
    assert np.array_equal(part.numpy(), array["in"]["float32"][3, 2:5])
    rows = torch.from_numpy(as_bytes(array))[1:4, 2:]
    assert np.array_equal(
        tensor_views(NESTED, rows)["in"]["float32"].numpy(), array["in"]["float32"][1:4, 2:]
    )


def test_leaves_begin_at_multiples_of_16_bytes() -> None:
    for dtype in (dtype_of(NESTED), dtype_of(NESTED)["in"]):
        assert dtype.fields is not None and dtype.itemsize % 16 == 0
        assert all(offset % 16 == 0 for _, offset, *_ in dtype.fields.values())
    assert dtype_of(ALL["int8"]) == np.int8


@pytest.mark.parametrize("name", PAIRS)
def test_space_holds_what_gymnasiums_holds(name: str) -> None:
    for space in PAIRS[name]:
        ours = from_gymnasium(space)
        back = to_gymnasium(ours)
        has_tuple = "Tuple" in str(space)
        assert has_tuple or isinstance(space, spaces.Box) or back == space
        rng = np.random.default_rng(0)
        for value in random_values(ours, rng, 50):
            for path, leaf in leaves_of(ours):
                found, theirs = value, back
                for key in path:
                    found, theirs = found[key], theirs[key]
                assert theirs.contains(np.asarray(found, leaf.dtype))


def test_random_actions_of_a_discrete_space_are_those_of_the_generator() -> None:
    drawn = random_values(discrete(5), np.random.default_rng(3), 100)
    assert drawn.tolist() == np.random.default_rng(3).integers(5, size=100).tolist()


def test_random_values_are_uniform_among_the_allowed_ones() -> None:
    leaf = Leaf((2,), np.int64, (0, 3), (2, 6))  # 3 and 4 values
    mask = np.array([[True, False, True, False, True, True, True]]).repeat(40_000, 0)
    drawn = random_values(leaf, np.random.default_rng(0), 40_000, mask)
    for column, values in ((0, (0, 2)), (1, (4, 5, 6))):
        found, counts = np.unique(drawn[:, column], return_counts=True)
        assert tuple(found) == values
        share = 1 / len(values)
        error = np.sqrt(share * (1 - share) / 40_000)
        assert np.abs(counts / 40_000 - share).max() < 4 * error
    assert has_allowed(leaf, mask[:1]).all()
    assert not has_allowed(leaf, np.array([[True, True, True, False, False, False, False]])).any()
    with pytest.raises(ValueError, match="action_mask allows no action"):
        random_values(leaf, np.random.default_rng(0), 1, np.zeros((1, 7), bool))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((10, np.float32), r"shape is 10; it must be a tuple of whole numbers above 0"),
        (((0,), np.float32), r"shape is \(0,\)"),
        (((2,), "number"), "dtype is 'number'; it must be the dtype of numbers"),
        (((2,), np.longdouble), "dtype is .*longdouble.*; it must be the dtype"),
        (((2,), np.int8, 300), "low is 300; it must be a number that int8 holds"),
        (((2,), np.int64, 0.5), "low is 0.5"),
        (((2,), np.float32, np.nan), "low is nan"),
        (((2,), np.float32, [1, 2, 3]), r"low is \[1, 2, 3\]; .* of shape \(2,\)"),
        (((), np.float32, 2, 1), "low=2.0 is above high=1.0"),
    ],
)
def test_leaf_that_cannot_be_is_one_error(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Leaf(*arguments)


@pytest.mark.parametrize(
    ("space", "counts"),
    [
        (spaces.Box(0, 3, (2,), np.uint8), [4, 4]),
        (spaces.Box(0, 255, (1,), np.uint8), [256]),
        (spaces.Box(-128, 127, (), np.int8), [256]),
        (spaces.MultiDiscrete([3, 4], dtype=np.uint16), [3, 4]),
        (spaces.Discrete(4, dtype=np.uint64), [4]),
        (spaces.Box(0, 2**32 - 1, (1,), np.uint32), None),
        (spaces.Box(-(2**63), 5, (1,), np.int64), None),
        (spaces.Box(0, 1, (1,), np.float32), None),
    ],
    ids=str,
)
def test_integers_are_counted_where_the_dtype_is_a_bound_too(
    space: spaces.Space[Any], counts: list[int] | None
) -> None:
    leaf = from_gymnasium(space)
    assert isinstance(leaf, Leaf) and leaf.counts == counts
    mask = mask_space(leaf)
    assert mask == (None if counts is None else Leaf((sum(counts),), np.bool_))


def test_one_integer_from_zero_is_a_plain_number_of_any_dtype() -> None:
    for dtype in (np.uint8, np.int8, np.uint64, np.int64):
        spec = EnvSpec(name="odd", observation=ALL["int8"], action=Leaf((), dtype, 0, 2))
        assert spec.action == discrete(3)
    spec = EnvSpec(name="odd", observation=ALL["int8"], action=Leaf((), np.int8))
    assert spec.action.dtype == np.int8  # from -128


def test_plain_properties_of_a_spec_that_is_not_plain_raise_by_name() -> None:
    spec = EnvSpec(name="reach", observation=NESTED, action=Leaf((2,), np.float32, -1, 1))
    for name in ("num_actions", "observation_shape", "observation_dtype"):
        with pytest.raises(ValueError, match="environment reach are"):
            getattr(spec, name)
    with pytest.raises(ValueError, match="PPO cannot use this environment: the actions of"):
        spec.check_plain("PPO")
    plain = EnvSpec(name="plain", observation=ALL["int8"], action=discrete(3))
    plain.check_plain("PPO")
    assert (plain.num_actions, plain.observation_shape) == (3, (3, 5))


@pytest.mark.parametrize("given", [np.float32, np.float64, np.float16])
def test_action_that_rounding_puts_beyond_a_bound_is_clipped(given: type[np.floating]) -> None:
    """``low + (high - low) * 1`` may exceed ``high``, and 0.3 as float32 is more than 0.3."""
    space = Leaf((2,), np.dtype(np.float64), -3.0, 0.3)
    out = np.zeros((1, 2))
    write_values(space, np.array([[0.3, -3.0]], given) * given(1 + np.finfo(given).eps), out)
    assert out.tolist() == [[min(0.3, float(given(0.3) * given(1 + np.finfo(given).eps))), -3.0]]
    with pytest.raises(ValueError, match=r"0\.31.*at most 0\.3"):
        write_values(space, np.array([[0.31, 0.0]], np.float32), out)
