"""CUDA graphs: what a GPU is to do in acting and in updates, recorded once and started at once.

A graph holds operations with the addresses of their tensors and nothing else. So each function that
is recorded gets its arguments in tensors that stay where they are, into which those of each call
are copied, and numbers as 0-d tensors. What it does beside operations on the device (counting,
choosing) happens while it is recorded, and not again: that belongs into its caller.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

_NUM_WARM = 3  # calls before one is recorded, in which libraries set themselves up
_STREAMS: dict[tuple[int, int], torch.cuda.Stream] = {}  # that record, by GPU and priority
_RECORDING = threading.Lock()  # of these streams
_LOGGER = logging.getLogger(__name__)

Kind = Literal["updates", "actions"]


class Fixed:
    """An argument whose tensors stay where they are from call to call, so that none is copied.

    Args:
        tree: The tensors, in any nesting.
        make: Makes the argument from the parts of ``tree``, within the graph. None: it is ``tree``.
        kind: What else decides how ``make`` works: other kinds have other graphs.
    """

    def __init__(self, tree: Any, make: Callable[..., Any] | None = None, kind: Any = None) -> None:
        self.tree, self._make, self._kind = tree, make, kind  # a leaf of trees, unlike tuples
        self.key = self._describe()

    @property
    def value(self) -> Any:
        """The argument."""
        return self.tree if self._make is None else self._make(*self.tree)

    def hold(self, tree: Any) -> Fixed:
        """Copy ``tree`` into the tensors here, or keep new ones if shapes differ; return this."""
        given, form = tree_flatten(tree)
        places, held_form = tree_flatten(self.tree)
        if held_form != form or list(map(_key, places)) != list(map(_key, given)):
            places = [torch.empty_like(x) if isinstance(x, Tensor) else x for x in given]
            self.tree = tree_unflatten(places, form)
            self.key = self._describe()
        for place, each in zip(places, given, strict=True):
            if isinstance(place, Tensor):
                place.copy_(each.detach(), non_blocking=True)
        return self

    def _describe(self) -> Hashable:
        parts = [each for each in tree_leaves(self.tree) if isinstance(each, Tensor)]
        return self._make, self._kind, *((each.data_ptr(), _key(each)) for each in parts)


class Graphs:
    """Records acting and whole updates on ``device``, a GPU.

    Args:
        device: The GPU.
        is_required: What cannot be recorded is an error. Otherwise it runs as it is, which is said
            once.

    Attributes:
        num_recorded: Graphs recorded so far.
    """

    def __init__(self, device: torch.device, *, is_required: bool = True) -> None:
        self.device, self.is_required, self.num_recorded = device, is_required, 0
        self._counts: Counter[tuple[Kind, bool]] = Counter()  # of calls, by graphs or not
        self._counting = threading.Lock()

    def __deepcopy__(self, memo: Any) -> Graphs:
        return self  # which counts for all

    def recorded(
        self, function: Callable[..., Any], kind: Kind = "updates", most: int | None = 8
    ) -> Recorded:
        """Return a function of trees of tensors and numbers, recorded for each of their shapes.

        Its results must be used before its next call. All calls must be in one stream.

        Args:
            function: What is to be recorded.
            kind: For messages.
            most: Graphs, each of which has results of its own. None: any number.
        """
        return Recorded(function, self, kind, most)

    def count(self, kind: Kind, is_replayed: bool) -> None:
        """Count one call, for `describe`."""
        with self._counting:
            self._counts[kind, is_replayed] += 1

    def describe(self) -> str:
        """Return in words the number of graphs and their share of calls."""
        shares = []
        for kind in get_args(Kind):
            replayed, num = self._counts[kind, True], self._counts[kind, False]
            shares.append(f"{100 * replayed // max(1, replayed + num)} % of {kind}")
        return f"{self.num_recorded} graphs, in {' and '.join(shares)}"


class _Shape:
    """Places of arguments of one shape, and their graph with its results."""

    def __init__(self) -> None:
        self.places: list[Any] = []
        self.numbers: dict[int, float] = {}  # that the device has
        self.num_calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.result: Any = None


class Recorded:
    """A function of `Graphs.recorded`. If it cannot be recorded, it alone runs as it is."""

    def __init__(
        self, function: Callable[..., Any], graphs: Graphs, kind: Kind, most: int | None
    ) -> None:
        self._function, self._graphs, self._kind, self._most = function, graphs, kind, most
        self._shapes: dict[Hashable, _Shape] = {}
        self._pool: Any = None  # memory of all its graphs
        self._is_refused = False

    def __call__(self, *arguments: Any) -> Any:
        leaves, tree = tree_flatten(arguments)

        def run(given: list[Any]) -> Any:
            values = [each.value if isinstance(each, Fixed) else each for each in given]
            return self._function(*tree_unflatten(values, tree))

        shape = self._find(tuple(map(_key, leaves)))
        if shape is None:
            return run(leaves)
        places = shape.places
        if not places:
            number = partial(torch.zeros, (), dtype=torch.float64, device=self._graphs.device)
            for each in leaves:
                place = number() if isinstance(each, float) else each
                places.append(torch.empty_like(each) if isinstance(each, Tensor) else place)
        for index, each in enumerate(leaves):
            if isinstance(each, Tensor):
                places[index].copy_(each, non_blocking=True)
            elif isinstance(each, float) and shape.numbers.get(index) != each:
                places[index].fill_(each)  # by a kernel: a copy would make the host wait
                shape.numbers[index] = each
        return self._run(shape, partial(run, places))

    def by_key(self, key: Hashable, run: Callable[[], Any]) -> Any:
        """Return ``run()``, which finds its tensors itself and is recorded for each ``key``."""
        shape = self._find(key)
        return run() if shape is None else self._run(shape, run)

    def _find(self, key: Hashable) -> _Shape | None:
        """Return what is known of ``key``, or None if it runs as it is."""
        shape = self._shapes.get(key)
        if shape is None and (self._most is None or len(self._shapes) < self._most):
            shape = self._shapes[key] = _Shape()
        if shape is None or (self._is_refused and shape.graph is None):
            self._graphs.count(self._kind, False)
            return None
        return shape

    def _run(self, shape: _Shape, run: Callable[[], Any]) -> Any:
        """Replay it, or run it in the recording stream, or record it there after such calls."""
        if shape.graph is None:
            shape.num_calls += 1
            with _recording_stream(self._graphs.device) as current:
                if shape.num_calls > _NUM_WARM:
                    self._record(shape, run)
                if shape.graph is None:
                    shape.result = run()
                    for each in tree_leaves(shape.result):
                        if isinstance(each, Tensor):  # else the next one there gets its memory
                            each.record_stream(current)
        self._graphs.count(self._kind, shape.graph is not None)
        if shape.graph is None:
            result, shape.result = shape.result, None
            return result
        shape.graph.replay()
        return shape.result

    def _record(self, shape: _Shape, run: Callable[[], Any]) -> None:
        graphs, graph, collects = self._graphs, torch.cuda.CUDAGraph(), gc.isenabled()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        gc.disable()  # what it frees while a stream records may call what CUDA then forbids
        try:
            # Other threads may wait meanwhile, for their own streams.
            graph.capture_begin(self._pool, capture_error_mode="thread_local")
            try:
                shape.result = run()
                graph.capture_end()
            except BaseException:
                _give_up(graph, self._pool, graphs.device)
                raise
        except RuntimeError as error:
            self._is_refused = True  # torch takes no pool that it has given up
            reason = str(error).strip().partition("\n")[0]
            if graphs.is_required:
                raise ValueError(
                    f"cuda_graphs=on: {self._kind} cannot be recorded as a CUDA graph ({reason}); "
                    f"use cuda_graphs=auto, which then runs them as they are"
                ) from error
            what = f"{self._kind} run without a CUDA graph, which is slower"
            _LOGGER.warning("%s: %s", what, reason)
        else:
            shape.graph = graph
            graphs.num_recorded += 1
        finally:
            if collects:
                gc.enable()


@contextmanager
def _recording_stream(device: torch.device) -> Iterator[torch.cuda.Stream]:
    """Enter the stream that records what is to run in streams like the current one, and return it.

    A graph's operations have the priority of the stream in which they were recorded. Torch has 32
    streams and then returns the same again, so there is one for each priority, for one thread at a
    time.
    """
    current = torch.cuda.current_stream(device)
    key = current.device.index, current.priority
    with _RECORDING:
        if key not in _STREAMS:
            _STREAMS[key] = torch.cuda.Stream(device, current.priority)  # type: ignore[no-untyped-call]
        stream = _STREAMS[key]
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            yield current
        current.wait_stream(stream)


def _give_up(graph: torch.cuda.CUDAGraph, pool: Any, device: torch.device) -> None:
    """End a recording that failed, so that the process can go on without it."""
    with suppress(RuntimeError):
        graph.capture_end()
        return
    # An operation that cannot be recorded ends the recording in CUDA. Torch keeps its own state of
    # it: its generator would refuse to draw, and its memory would free nothing of several streams.
    # Its state of pinned memory stays: it matters only if a recording takes pinned memory.
    index = torch.cuda.current_device() if device.index is None else device.index
    generator = torch.cuda.default_generators[index]
    generator.graphsafe_set_state(generator.clone_state().graphsafe_get_state())
    with suppress(AttributeError, RuntimeError):  # a version of torch that does this itself
        torch._C._cuda_endAllocateToPool(index, pool)
    with suppress(AttributeError, RuntimeError):
        torch._C._cuda_releasePool(index, pool)


def _key(leaf: Any) -> Hashable:
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.stride(), leaf.dtype
    if isinstance(leaf, Fixed):
        return leaf.key
    return float if isinstance(leaf, float) else leaf
