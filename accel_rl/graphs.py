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
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

_NUM_WARM = 3  # calls before one is recorded, in which libraries set themselves up
_MOST_GRAPHS = 8  # of one function: each has results of its own
_STREAMS: dict[tuple[int, int], torch.cuda.Stream] = {}  # that record, by GPU and priority
_RECORDING = threading.Lock()  # of these streams
_LOGGER = logging.getLogger(__name__)

Kind = Literal["updates", "actions"]


class Fixed:
    """An argument whose tensors stay where they are from call to call, so that none is copied.

    Args:
        tree: The tensors, in any nesting.
    """

    def __init__(self, tree: Any) -> None:  # a leaf of trees, unlike tuples
        self.tree = tree

    def hold(self, tree: Any) -> Fixed:
        """Copy ``tree`` into the tensors here, or keep new ones if shapes differ; return this."""
        given, form = tree_flatten(tree)
        places, held_form = tree_flatten(self.tree)
        if held_form != form or list(map(_describe, places)) != list(map(_describe, given)):
            self.tree = tree_unflatten(
                [torch.empty_like(x) if isinstance(x, Tensor) else x for x in given], form
            )
            places = tree_leaves(self.tree)
        for place, each in zip(places, given, strict=True):
            if isinstance(place, Tensor) and place is not each:
                place.copy_(each.detach(), non_blocking=True)
        return self


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
        self.device = device
        self.is_required = is_required
        self.num_recorded = 0
        self._counts = {"updates": [0, 0], "actions": [0, 0]}  # by graphs, and in all
        self._counting = threading.Lock()

    def __deepcopy__(self, memo: Any) -> Graphs:
        return self  # which counts for all

    def recorded(
        self, function: Callable[..., Any], pool: Pool | None = None, kind: Kind = "updates"
    ) -> Recorded:
        """Return a function of trees of tensors and numbers, recorded for each of their shapes.

        Its results must be used before the next call of any function with the same pool. All
        calls must be in one stream.

        Args:
            function: What is to be recorded.
            pool: Memory of its graphs, which several functions may share.
            kind: For messages.
        """
        return Recorded(function, self, pool or Pool(), kind)

    def count(self, kind: Kind, *, is_replayed: bool) -> None:
        """Count one call, for `describe`."""
        with self._counting:
            self._counts[kind][0] += is_replayed
            self._counts[kind][1] += 1

    def describe(self) -> str:
        """Return in words the number of graphs and their share of calls."""
        shares = " and ".join(
            f"{100 * replayed // max(1, num)} % of {kind}"
            for kind, (replayed, num) in self._counts.items()
        )
        return f"{self.num_recorded} graphs, in {shares}"

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Enter the stream that records what is to run in streams like the current one.

        A graph's operations have the priority of the stream in which they were recorded. Torch has
        32 streams and then returns the same again, so there is one for each priority, for one
        thread at a time.
        """
        current = torch.cuda.current_stream(self.device)
        key = current.device.index, current.priority
        with _RECORDING:
            if key not in _STREAMS:
                _STREAMS[key] = torch.cuda.Stream(self.device, current.priority)  # type: ignore[no-untyped-call]
            stream = _STREAMS[key]
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                yield
            current.wait_stream(stream)

    def record(self, kind: Kind, run: Callable[[], Any], pool: Pool) -> Recording | None:
        """Record what ``run`` has the device do, within `aside`; None: it could not be recorded.

        Args:
            kind: For messages.
            run: Is called once.
            pool: Has the memory of the graph.

        Raises:
            ValueError: It could not, and is required.
        """
        graph = torch.cuda.CUDAGraph()
        try:
            with _recording(graph, pool.handle, self.device):
                result = run()
        except RuntimeError as error:
            pool.handle = torch.cuda.graph_pool_handle()  # torch takes no pool that it has given up
            reason = str(error).strip().partition("\n")[0]
            if self.is_required:
                raise ValueError(
                    f"cuda_graphs=on: {kind} cannot be recorded as a CUDA graph ({reason}); use "
                    f"cuda_graphs=auto, which then runs them as they are"
                ) from error
            _LOGGER.warning("%s run without a CUDA graph, which is slower: %s", kind, reason)
            return None
        self.num_recorded += 1
        return Recording(graph, result)


@dataclass
class Pool:
    """Memory of graphs in one stream, each of whose results is used up before the next replay."""

    handle: Any = field(default_factory=lambda: torch.cuda.graph_pool_handle())


class Recording(NamedTuple):
    """A graph, and the tensors in which each replay leaves its results."""

    graph: torch.cuda.CUDAGraph
    result: Any


@contextmanager
def _recording(graph: torch.cuda.CUDAGraph, pool: Any, device: torch.device) -> Iterator[None]:
    collects = gc.isenabled()
    gc.disable()  # what it frees while a stream records may call what CUDA then forbids
    try:
        # Other threads may wait meanwhile, for their own streams.
        graph.capture_begin(pool, capture_error_mode="thread_local")
        try:
            yield
            graph.capture_end()
        except BaseException:
            _give_up(graph, pool, device)
            raise
    finally:
        if collects:
            gc.enable()


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


@dataclass
class _Shape:
    """Copies of arguments of one shape, and their graph."""

    leaves: list[Any]
    num_calls: int = 0
    recording: Recording | None = None
    numbers: dict[int, float] = field(default_factory=dict)  # that the device has

    def stage(self, index: int, given: Any) -> None:
        """Copy one leaf to where the graph reads it."""
        if isinstance(given, Tensor):
            self.leaves[index].copy_(given, non_blocking=True)
        elif isinstance(given, float) and self.numbers.get(index) != given:
            self.leaves[index].fill_(given)  # by a kernel: a copy would make the host wait
            self.numbers[index] = given


@dataclass
class Recorded:
    """A function of `Graphs.recorded`."""

    function: Callable[..., Any]
    graphs: Graphs
    pool: Pool
    kind: Kind
    _shapes: dict[Hashable, _Shape] = field(default_factory=dict)
    _is_refused: bool = False

    def __call__(self, *arguments: Any) -> Any:
        leaves, tree = tree_flatten(arguments)
        key = tuple(map(_describe, leaves))
        shape = self._shapes.get(key)
        if shape is None and len(self._shapes) < _MOST_GRAPHS and not self._is_refused:
            places = [_place(each, self.graphs.device) for each in leaves]
            shape = self._shapes[key] = _Shape(places)
        if shape is None or (self._is_refused and shape.recording is None):
            # Its shapes change all the time, or it cannot be recorded.
            self.graphs.count(self.kind, is_replayed=False)
            given = [each.tree if isinstance(each, Fixed) else each for each in leaves]
            return self.function(*tree_unflatten(given, tree))
        for index, each in enumerate(leaves):
            shape.stage(index, each)
        result = None
        if shape.recording is None:
            result = self._run(shape, partial(self.function, *tree_unflatten(shape.leaves, tree)))
        self.graphs.count(self.kind, is_replayed=shape.recording is not None)
        if shape.recording is None:
            return result
        shape.recording.graph.replay()
        return shape.recording.result

    def _run(self, shape: _Shape, run: Callable[[], Any]) -> Any:
        """Run it as it is in the recording stream, or record it there after some such calls."""
        result = None
        current = torch.cuda.current_stream(self.graphs.device)
        shape.num_calls += 1
        with self.graphs.aside():
            if shape.num_calls > _NUM_WARM:
                shape.recording = self.graphs.record(self.kind, run, self.pool)
                self._is_refused = shape.recording is None
            if shape.recording is None:
                result = run()
                for each in tree_leaves(result):
                    if isinstance(each, Tensor):  # else the next one there may get its memory
                        each.record_stream(current)
        return result


def without_inference_mode(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return an agent's ``method`` without the inference mode that its decorator enters.

    Recordings outside of that mode cannot use tensors made in it.
    """
    inner = getattr(method, "__wrapped__", None)
    if inner is None:
        return method
    return torch.no_grad()(partial(inner, method.__self__))  # type: ignore[attr-defined]


def _describe(leaf: Any) -> Hashable:
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.stride(), leaf.dtype
    if isinstance(leaf, Fixed):
        parts = [each for each in tree_leaves(leaf.tree) if isinstance(each, Tensor)]
        return tuple((each.data_ptr(), each.shape, each.stride()) for each in parts)
    return float if isinstance(leaf, float) else leaf


def _place(leaf: Any, device: torch.device) -> Any:
    if isinstance(leaf, Tensor):
        return torch.empty_like(leaf)
    if isinstance(leaf, float):
        return torch.full((), leaf, dtype=torch.float64, device=device)
    return leaf.tree if isinstance(leaf, Fixed) else leaf
