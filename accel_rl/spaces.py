"""Spaces: which arrays one observation or one action is made of.

A space is one `Leaf`, or a mapping from names to spaces. Values of a single leaf are plain arrays.
Values of a mapping are arrays of one structured dtype, `dtype_of`, so that an array ``[T, B]`` of
them is sliced, copied, reset and saved like any other array, and its leaves are views of it:
``observation["camera"]`` is ``[T, B, *shape]``.

An **action mask** says which integer actions are allowed. It is the leaf ``action_mask`` of an
observation, with one entry for each value of each integer of the action, one integer after the
other: ``[n]`` for one integer with ``n`` values, ``[n_1 + ... + n_k]`` for ``k`` integers. Actions
that are a mapping have a mapping of masks, in which leaves without a mask are left out.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

LEAF_BYTES = 16  # every leaf of a structured dtype begins at a multiple of it
ACTION_MASK = "action_mask"
OBSERVATION = "observation"
"""the name of a single leaf to which a mask was added"""


@dataclass(frozen=True)
class Leaf:
    """One array of numbers or booleans.

    Attributes:
        shape: of one value; ``()`` is a scalar.
        dtype: numbers or booleans of at most 8 bytes.
        low: the smallest values, inclusive: one number, or one for each element, flat. None: no
            limit.
        high: the largest values, in the same form.
        is_clipped: True: floats beyond the bounds are allowed, and left to the environment.
        channels: which axis of a picture has its channels, ``first`` or ``last``. None: its sizes
            say it.

    Raises:
        ValueError: a shape, dtype or bound that cannot be.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    low: Any = None
    high: Any = None
    is_clipped: bool = False
    channels: Literal["first", "last"] | None = None

    def __post_init__(self) -> None:
        for name, convert, required in (
            ("shape", _shape, "a tuple of whole numbers above 0, such as (10,)"),
            ("dtype", _dtype, "the dtype of numbers or booleans of up to 8 bytes, as np.float32"),
            ("low", self._bound, _BOUND),
            ("high", self._bound, _BOUND),
        ):
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, convert(value))
            except (OverflowError, TypeError, ValueError):
                text = f"{name} is {value!r}; it must be {required.format(self)}"
                raise ValueError(text) from None
        if self.channels not in (None, "first", "last"):
            raise ValueError(f"channels is {self.channels!r}; it must be first, last or None")
        low, high = self.bounds
        if low is not None and high is not None and (low > high).any():
            raise ValueError(f"low={self.low} is above high={self.high}; it must not be")

    def _bound(self, value: Any) -> Any:
        """Return one number if all are equal, else a flat tuple; None if nothing is bounded."""
        if value is None or self.dtype.kind == "b":
            return None
        array = np.asarray(value)
        if array.dtype.kind not in "biuf" or (array != array).any():
            raise ValueError
        if array.size == prod(self.shape):
            array = array.reshape(self.shape)
        array = np.broadcast_to(array, self.shape)
        limits: tuple[float, float] = (-np.inf, np.inf)
        if self.dtype.kind == "f":
            array = array.astype(self.dtype)
        else:
            limits = (np.iinfo(self.dtype).min, np.iinfo(self.dtype).max)
            if array.min() < limits[0] or array.max() > limits[1] or (array % 1).any():
                raise ValueError
            array = array.astype(self.dtype)
        first = array.flat[0].item()
        if (array != first).any():
            return tuple(array.ravel().tolist())
        return None if first in limits else first

    @property
    def ends(self) -> tuple[Any, Any]:
        """Bounds ``low`` and ``high``; for integers without a bound those of the dtype."""
        low, high = self.low, self.high
        if self.dtype.kind in "iu":
            own = np.iinfo(self.dtype)
            return (own.min if low is None else low), (own.max if high is None else high)
        return low, high

    @cached_property
    def bounds(self) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
        """The `ends` as arrays of the leaf's shape and dtype, or None."""
        low, high = (
            None
            if end is None
            else np.broadcast_to(np.asarray(end, self.dtype), prod(self.shape)).reshape(self.shape)
            for end in self.ends
        )
        return low, high

    @cached_property
    def limits(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The bounds of floats, of the leaf's shape, infinite where there is none.

        Bounds near the largest number of the dtype are none: their width cannot be computed with.
        """
        largest = float(np.finfo(self.dtype).max) / 8
        low, high = (
            np.full(self.shape, missing) if bound is None else bound.astype(np.float64)
            for bound, missing in zip(self.bounds, (-np.inf, np.inf), strict=True)
        )
        return np.where(low > -largest, low, -np.inf), np.where(high < largest, high, np.inf)

    @cached_property
    def units(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Start and unit of a policy over floats: the middle of the bounds, and half their width.

        Equal bounds have the unit 1. Floats without both bounds, too; they start at 0, or 1 away
        from their only bound.
        """
        low, high = self.limits
        is_bounded = np.isfinite(low) & np.isfinite(high)
        first, last = np.where(is_bounded, low, 0.0), np.where(is_bounded, high, 0.0)
        middle = np.where(is_bounded, first / 2 + last / 2, np.clip(0.0, low + 1, high - 1))
        half = last / 2 - first / 2
        return middle, np.where(half > 0, half, 1.0)

    @cached_property
    def counts(self) -> list[int] | None:
        """The number of values of each element, flat; None unless integers of less than 2**32."""
        low, high = self.bounds
        if self.dtype.kind not in "iu" or low is None or high is None:
            return None
        pairs = zip(low.ravel().tolist(), high.ravel().tolist(), strict=True)
        counts = [last - first + 1 for first, last in pairs]
        return counts if max(counts) < 2**32 else None

    @cached_property
    def num_values(self) -> int | None:
        """The number of values of one bounded integer; None for anything else."""
        return None if self.shape or self.counts is None else self.counts[0]


Space: TypeAlias = "Leaf | Mapping[str, Space]"


def discrete(n: int) -> Leaf:
    """The space of the integers ``0 .. n - 1``."""
    return Leaf((), np.dtype(np.int64), 0, positive(n) - 1)


# ---- arrays of a space ---------------------------------------------------------------------------


def shape_of(space: Space) -> tuple[int, ...]:
    """Return the shape of one value in arrays of `dtype_of`; a struct is a scalar."""
    return space.shape if isinstance(space, Leaf) else ()


def dtype_of(space: Space) -> np.dtype[Any]:
    """Return the dtype of a leaf, or the structured dtype of a mapping.

    Leaves begin at multiples of 16 bytes, and the size is one too, so that the bytes of an array
    can be viewed as numbers of any leaf, by torch as well.
    """
    if isinstance(space, Leaf):
        return space.dtype
    formats: list[Any] = []
    offsets, end = [], 0
    for each in space.values():
        dtype = np.dtype((dtype_of(each), shape_of(each)))
        formats.append(dtype)
        offsets.append(end)
        end += -(-dtype.itemsize // LEAF_BYTES) * LEAF_BYTES
    names = list(space)
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": end})


def zeros(space: Space, *shape: int) -> NDArray[Any]:
    """Return an array of ``shape`` values of ``space``, all zero, padding included."""
    return np.zeros((*shape, *shape_of(space)), dtype_of(space))


def as_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return a view of an array of structs, ``[...]``, as its bytes, ``[..., itemsize]``."""
    size = array.dtype.itemsize
    rows = array.reshape(1) if array.ndim == 0 else array
    return rows.view(np.uint8).reshape(*array.shape, size)


def views(space: Space, array: NDArray[Any]) -> Any:
    """Return views of the leaves of ``array``: the array itself, or a dict of views."""
    return map_leaves(lambda _, each: each, space, array)


def tensor_views(space: Space, array: NDArray[Any] | Tensor) -> Any:
    """Return tensors of the leaves, which share their memory: one tensor, or a dict of tensors.

    Args:
        array: as in `views`; or a tensor, of numbers for a leaf, of bytes as in `as_bytes` for a
            mapping.
    """
    import torch

    if isinstance(array, np.ndarray):
        array = torch.from_numpy(array if isinstance(space, Leaf) else as_bytes(array))
    return array if isinstance(space, Leaf) else _tensors(space, array, 0)


def _tensors(space: Mapping[str, Space], data: Tensor, offset: int) -> dict[str, Any]:
    import torch

    fields = dtype_of(space).fields
    assert fields is not None
    found: dict[str, Any] = {}
    for name, each in space.items():
        begin = offset + fields[name][1]
        if not isinstance(each, Leaf):
            found[name] = _tensors(each, data, begin)
            continue
        size = each.dtype.itemsize
        numbers = data.view(getattr(torch, each.dtype.name))
        chosen = numbers[..., begin // size : begin // size + prod(each.shape)]
        found[name] = chosen.reshape((*data.shape[:-1], *each.shape))  # of one axis: still a view
    return found


# ---- values of a space ---------------------------------------------------------------------------


def leaves_of(space: Space, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Leaf]]:
    """Yield the leaves and the names that lead to each."""
    if isinstance(space, Leaf):
        yield path, space
        return
    for name, each in space.items():
        yield from leaves_of(each, (*path, name))


def size_of(space: Space) -> int:
    """Return how many numbers a value of the space has, those of all leaves together."""
    return sum(prod(leaf.shape) for _, leaf in leaves_of(space))


def map_leaves(change: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Return what ``change`` returns for a leaf, or a dict of these for a mapping of leaves.

    Args:
        change: called with a leaf of ``tree``, and the leaves at the same place in ``others``.
        tree: a leaf, such as an array, a tensor or a `Leaf`; or a mapping of names to trees.
        others: trees with the same names.
    """
    if isinstance(tree, Mapping):
        return {
            name: map_leaves(change, each, *(other[name] for other in others))
            for name, each in tree.items()
        }
    return change(tree, *others)


def first_leaf(tree: Any) -> Any:
    """Return the first leaf of a leaf or a mapping of leaves."""
    while isinstance(tree, Mapping):
        tree = next(iter(tree.values()))
    return tree


def follow(value: Any, path: tuple[str, ...]) -> Any:
    """Return what lies at ``path`` in a struct or mapping."""
    for name in path:
        value = value[name]
    return value


def write_values(
    space: Space, given: Any, out: NDArray[Any], what: str = "action", first: int = 0
) -> None:
    """Check ``given``, ``[n, ...]`` values of ``space``, and write them to ``out``.

    Args:
        given: an array, tensor or list; for a mapping, a mapping of these or a structured array.
        out: ``[n, *shape_of(space)]`` of `dtype_of`.
        what: the word for a value in messages.
        first: for one integer: the smallest allowed value, which becomes 0 in ``out``.
    """
    if isinstance(space, Leaf):  # with few calls: it is done in each step
        array = given if type(given) is np.ndarray else to_array(given, what)
        if array.shape != out.shape:
            raise ValueError(
                f"got {what}s of shape {array.shape} for {len(out)} observations; there must be "
                f"one for each, shape {out.shape}"
            )
        if space.num_values is None:
            _write_leaf(space, array, out, what)
        else:
            _write_integer(space, array, out, what, first)
        return
    for name, path, leaf, value in match_values(space, given, what):
        write_values(leaf, value, follow(out, path), name)


def match_values(
    space: Space, given: Any, what: str, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, tuple[str, ...], Leaf, Any]]:
    """Yield the name of each leaf, the path to it, the leaf, and its part of ``given``."""
    if isinstance(space, Leaf):
        yield what, path, space, given
        return
    if isinstance(given, tuple) and list(space) == [str(i) for i in range(len(given))]:
        given = dict(zip(space, given, strict=True))
    names = given.dtype.names if isinstance(given, np.ndarray) else given
    if not isinstance(names, Mapping | tuple) or set(names) != set(space):
        found = f"{type(given).__name__} {list(names) if names is not None else ''}".strip()
        raise ValueError(
            f"got {what}s of type {found:.200}; they must be a mapping with the keys {list(space)}"
        )
    for name, each in space.items():
        yield from match_values(each, given[name], f"{what}[{name!r}]", (*path, name))


def _write_integer(
    leaf: Leaf, array: NDArray[Any], out: NDArray[Any], what: str, first: int
) -> None:
    n, low = leaf.num_values, first or leaf.low
    low = leaf.ends[0] if low is None else low
    assert n is not None
    if array.dtype.kind not in "iu":
        raise ValueError(
            f"got {what}s of dtype {array.dtype}; they must be integers in {low} .. {low + n - 1}"
        )
    if leaf.low == 0 and out.dtype == np.int64:
        out[:] = array
        if first:
            out -= first
        # As unsigned integers, negative actions are larger than any allowed one: one pass finds
        # both.
        if not out.size or out.view(np.uint64).max() < n:
            return
    wrong = (array < low) | (array >= low + n)
    for value in array[wrong].tolist():
        raise ValueError(f"got the {what} {value}; {what}s must be in {low} .. {low + n - 1}")
    out[:] = array


def _write_leaf(leaf: Leaf, array: NDArray[Any], out: NDArray[Any], what: str) -> None:
    allowed = {"f": "biuf", "b": "b"}.get(leaf.dtype.kind, "biu")
    if array.dtype.kind not in allowed:
        raise ValueError(
            f"got {what}s of dtype {array.dtype}; they must be {describe(leaf)}, which are "
            f"{'integers' if leaf.dtype.kind in 'iu' else 'booleans'}"
        )
    slack = 0.0
    if leaf.dtype.kind == "f":
        dtypes = [each for each in (array.dtype, leaf.dtype) if each.kind == "f"]
        slack = _ROUNDING_STEPS * max(float(np.finfo(each).eps) for each in dtypes)
        array = array.astype(leaf.dtype, copy=False)  # a bound is of this precision, too
        if not np.isfinite(array).all():
            bad = array[~np.isfinite(array)].flat[0]
            raise ValueError(f"got the {what} {bad}; it must be finite")
    out[...] = array if leaf.is_clipped else _check_bounds(leaf, array, what, slack)


def _check_bounds(leaf: Leaf, array: NDArray[Any], what: str, slack: float) -> NDArray[Any]:
    """Return ``array``, clipped where it is beyond a bound by rounding alone.

    Args:
        slack: rounding error of a value, relative to the larger bound.
    """
    low, high = leaf.bounds
    inside = array
    for bound, nearest in ((low, np.maximum), (high, np.minimum)):
        if bound is not None:
            inside = nearest(inside, bound)
    outside = inside != array
    if slack and outside.any():
        ends = [np.abs(each) for each in (low, high) if each is not None]
        scale = np.maximum.reduce([np.where(np.isfinite(each), each, 0) for each in ends])
        outside &= np.abs(array - inside) > slack * scale
    if outside.any():
        bad = tuple(np.argwhere(outside)[0])
        place = list(map(int, bad[array.ndim - len(leaf.shape) :]))
        at = f" at {place}" if place else ""
        word = "at least" if array[bad] < inside[bad] else "at most"
        raise ValueError(
            f"got the {what} {array[bad]}{at}; it must be {word} {inside[bad]}: clip it there"
        )
    return inside


def to_array(given: Any, what: str) -> NDArray[Any]:
    """Return an array, a tensor on any device, or a list of numbers, as an array."""
    if hasattr(given, "detach"):  # a tensor of torch's
        given = given.detach().cpu()
    try:
        array = np.asarray(given)
    except (RuntimeError, TypeError, ValueError) as error:  # torch's, and NumPy's
        raise ValueError(f"got {what}s that are no array: {error}") from error
    if array.dtype.hasobject:
        raise ValueError(f"got {what}s that are no array: {given!r:.200}")
    return array


def describe(space: Space) -> str:
    """Return a space in words, for messages."""
    if isinstance(space, Leaf):
        low, high = (f"{bound:.80}" for bound in map(str, space.ends))
        if space.num_values is not None:
            return f"integers {low} .. {high}"
        bounds = "" if space.low is space.high is None else f" from {low} to {high}"
        return f"{space.dtype} of shape {list(space.shape)}{bounds}"
    return "{" + ", ".join(f"{name}: {describe(each)}" for name, each in space.items()) + "}"


# ---- masks and random values ---------------------------------------------------------------------


def mask_space(action: Space) -> Space | None:
    """Return the space of masks of ``action``; None if it has no bounded integers."""
    if isinstance(action, Leaf):
        if action.counts is None or sum(action.counts) > _MOST_MASKED:
            return None
        return Leaf((sum(action.counts),), np.dtype(np.bool_))
    masks = {name: mask_space(each) for name, each in action.items()}
    found = {name: mask for name, mask in masks.items() if mask is not None}
    return found or None


def without_mask(observation: Any) -> Any:
    """Return the part of observations, or of their space, for networks: all but the action mask.

    If only ``observation`` is left of a mapping, return that leaf.
    """
    if not isinstance(observation, Mapping) or ACTION_MASK not in observation:
        return observation
    rest = {name: each for name, each in observation.items() if name != ACTION_MASK}
    return rest[OBSERVATION] if list(rest) == [OBSERVATION] else rest


def check_mask(action: Space, mask: Space) -> None:
    """Raise ValueError unless ``mask`` is a space of masks of ``action``, or of some of it."""
    expected = mask_space(action)
    if isinstance(expected, Leaf) and isinstance(mask, Leaf):
        if mask.shape == expected.shape and mask.dtype.kind in "biu":
            return
    elif isinstance(expected, Mapping) and isinstance(mask, Mapping) and set(mask) <= set(expected):
        assert isinstance(action, Mapping)
        for name, each in mask.items():
            check_mask(action[name], each)
        return
    needed = "left out" if expected is None else describe(expected)
    raise ValueError(
        f"{ACTION_MASK} is {describe(mask)}, and actions are {describe(action)}; it must be "
        f"{needed}"
    )


def has_allowed(action: Space, mask: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where every integer of an action has an allowed value, ``[n]``."""
    if not isinstance(action, Leaf):
        assert mask.dtype.names is not None
        parts = [has_allowed(action[name], mask[name]) for name in mask.dtype.names]
        everywhere: NDArray[np.bool_] = np.logical_and.reduce(parts)
        return everywhere
    assert action.counts is not None
    begins = np.cumsum([0, *action.counts[:-1]])
    is_allowed: NDArray[np.bool_] = np.logical_or.reduceat(mask != 0, begins, axis=1)
    return np.asarray(is_allowed.all(1))


def random_values(
    space: Space, rng: np.random.Generator, n: int, mask: NDArray[Any] | None = None
) -> NDArray[Any]:
    """Draw ``n`` values of ``space``, uniformly between the bounds.

    A float without a bound on one side is exponential from the other, without any bound normal.
    One that is clipped is normal, too, around the middle of its bounds.

    Args:
        mask: ``[n, ...]``, masks; None: everything is allowed.
    """
    out = zeros(space, n)
    _draw(space, rng, out, mask)
    return out


def _draw(space: Space, rng: np.random.Generator, out: NDArray[Any], mask: Any) -> None:
    if not isinstance(space, Leaf):
        masked = () if mask is None else mask.dtype.names
        for name, each in space.items():
            _draw(each, rng, out[name], mask[name] if name in masked else None)
    elif mask is not None:
        _draw_allowed(space, rng, out, mask != 0)
    elif space.dtype.kind == "f":
        out[...] = _draw_floats(space, rng, out.shape)
    elif space.dtype.kind == "b":
        out[...] = rng.integers(2, size=out.shape)
    else:
        low, high = space.ends
        if isinstance(low, tuple) or isinstance(high, tuple):
            low, high = space.bounds
        out[...] = rng.integers(low, high, out.shape, space.dtype.type, endpoint=True)


def _draw_floats(
    leaf: Leaf, rng: np.random.Generator, shape: tuple[int, ...]
) -> NDArray[np.float64]:
    low, high = (np.broadcast_to(bound, shape) for bound in leaf.limits)
    has_low, has_high = np.isfinite(low), np.isfinite(high)
    first, last = np.where(has_low, low, 0.0), np.where(has_high, high, 0.0)
    share, size = rng.random(shape), rng.exponential(size=shape)
    normal = rng.normal(size=shape)
    if leaf.is_clipped:
        middle, half = leaf.units
        return middle + half * normal
    drawn = np.where(has_low & has_high, first + share * (last - first), normal)
    drawn = np.where(has_low & ~has_high, first + size, drawn)
    drawn = np.where(has_high & ~has_low, last - size, drawn)
    return np.clip(drawn, low, high)


def _draw_allowed(
    leaf: Leaf, rng: np.random.Generator, out: NDArray[Any], mask: NDArray[np.bool_]
) -> None:
    """Draw one of the allowed values of each integer, all equally likely."""
    assert leaf.counts is not None and leaf.bounds[0] is not None
    flat, low = out.reshape(len(out), -1), leaf.bounds[0].ravel()
    begin = 0
    for i, count in enumerate(leaf.counts):
        allowed = mask[:, begin : begin + count]
        begin += count
        number = allowed.sum(1)
        if not number.all():
            raise ValueError(NOTHING_ALLOWED)
        chosen = rng.integers(number)
        flat[:, i] = low[i] + (allowed.cumsum(1) > chosen[:, None]).argmax(1)


NOTHING_ALLOWED = (
    f"its {ACTION_MASK} allows no action; each integer of an action needs an allowed value in "
    f"every observation that does not end an episode"
)


# ---- Gymnasium -----------------------------------------------------------------------------------


def from_gymnasium(space: Any) -> Space:
    """Return the space of a Gymnasium space; a tuple is a mapping with the keys "0", "1", ...

    Raises:
        ValueError: a kind of space that is not supported, or no array of numbers.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Box):
        return Leaf(space.shape, space.dtype, space.low, space.high)
    if isinstance(space, spaces.Discrete):
        first = int(space.start)
        return Leaf((), np.dtype(space.dtype), first, first + int(space.n) - 1)
    if isinstance(space, spaces.MultiDiscrete):
        last = space.start + (space.nvec - 1)
        return Leaf(space.nvec.shape, np.dtype(space.dtype), space.start, last)
    if isinstance(space, spaces.MultiBinary):
        return Leaf(space.shape, np.dtype(space.dtype), 0, 1)
    if isinstance(space, spaces.Tuple):
        return _mapping({str(i): each for i, each in enumerate(space.spaces)})
    if isinstance(space, spaces.Dict):
        return _mapping(dict(space.spaces))
    kind = type(space).__name__
    raise ValueError(
        f"{kind} spaces are not supported; use Box, Discrete, MultiDiscrete, MultiBinary, Dict or "
        f"Tuple, or wrap the environment in one that has such a space"
    )


def _mapping(parts: Mapping[Any, Any]) -> Space:
    if not parts:
        raise ValueError("a space without entries is not supported; leave it out")
    found: dict[str, Space] = {}
    for name, each in parts.items():
        if not isinstance(name, str) or not name:
            raise ValueError(f"the key {name!r} of a Dict space is no text; use names")
        try:
            found[name] = from_gymnasium(each)
        except ValueError as error:
            raise ValueError(f"[{name!r}]: {error}") from None
    return found


def with_channels(space: Space, env: Any) -> Space:
    """Return ``space`` with the channels of pictures where ``env.metadata["channels"]`` says."""
    metadata = getattr(env, "metadata", None)
    channels = metadata.get("channels") if isinstance(metadata, Mapping) else None

    def declared(leaf: Leaf) -> Leaf:
        return replace(leaf, channels=channels) if len(leaf.shape) == 3 else leaf

    found: Space = map_leaves(declared, space)
    return found


def map_gymnasium(change: Callable[[Any, Any], Any], space: Any, value: Any) -> Any:
    """Return a value of a Gymnasium space, made of what ``change`` returns for its leaves.

    ``change`` is called with the space of a leaf and its part of ``value``, an array or structs.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        parts = space.spaces.items()
        return {name: map_gymnasium(change, each, value[name]) for name, each in parts}
    if isinstance(space, spaces.Tuple):
        pairs = enumerate(space.spaces)
        return tuple(map_gymnasium(change, each, value[str(i)]) for i, each in pairs)
    return change(space, value)


def to_gymnasium(space: Space) -> Any:
    """Return a Gymnasium space that holds the values of ``space``."""
    from gymnasium import spaces

    if not isinstance(space, Leaf):
        return spaces.Dict({name: to_gymnasium(each) for name, each in space.items()})
    low, high = space.bounds
    if space.counts is not None and max(space.counts) < _MOST_MASKED and space.dtype == np.int64:
        assert low is not None
        if not space.shape:
            return spaces.Discrete(space.counts[0], start=space.low)
        counts = np.reshape(space.counts, space.shape)
        return spaces.MultiDiscrete(counts, start=low)
    if space.dtype == np.int8 and (space.low, space.high) == (0, 1) and space.shape:
        return spaces.MultiBinary(space.shape if len(space.shape) > 1 else space.shape[0])
    if space.dtype.kind == "f":
        limits: tuple[Any, Any] = (-np.inf, np.inf)
    else:
        limits = (0, 1)  # of booleans: integers have bounds
    least, most = (limit if b is None else b for b, limit in zip((low, high), limits, strict=True))
    return spaces.Box(least, most, space.shape, space.dtype.type)


# ---- checks --------------------------------------------------------------------------------------

_MOST_MASKED = 2**20
_ROUNDING_STEPS = 8
"""by which an action may be beyond a bound: ``low + (high - low) * 1`` may exceed ``high``"""
_BOUND = "a number that {0.dtype} holds, or an array of them of shape {0.shape}"


def check_space(space: Any) -> Space:
    """Return ``space`` with plain dicts for mappings."""
    if isinstance(space, Leaf):
        return space
    if not isinstance(space, Mapping) or not space:
        raise ValueError("it is neither a Leaf nor a mapping of them")
    if not all(isinstance(name, str) and name for name in space):
        raise ValueError("its names are no texts")
    return {name: check_space(each) for name, each in space.items()}


def positive(value: Any) -> int:
    """Return a whole number above 0, and raise TypeError or ValueError for anything else."""
    if operator.index(value) < 1:
        raise ValueError
    return operator.index(value)


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(map(positive, value))


def _dtype(value: Any) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(value).newbyteorder("=")  # also of a type, such as np.float32
    if dtype.kind not in "biuf" or dtype.itemsize > 8:  # torch knows none
        raise ValueError
    return dtype
