"""Importing this gives torch emulated GPUs: `torch.cuda` over the library of `build.py`.

Only what accel_rl and its tests use. NCCL is gloo, by way of the CPU.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.storage import _StorageBase

NUM_STREAMS = 32
_BYTES = 8 << 30


def _load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("device", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_device = _load(os.environ["EMULATED_GPU"])
_numbers: dict[tuple[int, int, int], int] = {}  # of streams, by device, priority and count
_num_given: Counter[tuple[int, int]] = Counter()
_is_initialized = False


def _index(device: Any = None) -> int:
    if not isinstance(device, int | None):
        device = torch.device(device).index
    return _device.current_device() if device is None else device


class Stream:
    """Of each device and priority there are `NUM_STREAMS`, which are given in turns, as in torch.

    ``number``: of a stream that there is already; 0 is each device's default stream. Priorities
    change nothing.
    """

    def __init__(self, device: Any = None, priority: int = 0, *, number: int | None = None) -> None:
        self.device = torch.device("cuda", _index(device))
        if number is None:
            key = self.device.index, priority
            count = _num_given[key] % NUM_STREAMS
            _num_given[key] += 1
            number = _numbers.setdefault((*key, count), len(_numbers) + 1)
        self._number = number

    @property
    def priority(self) -> int:
        return next((key[1] for key, number in _numbers.items() if number == self._number), 0)

    def synchronize(self) -> None:
        _device.host_waits(self.device.index, self._number)

    def wait_stream(self, stream: Stream) -> None:
        _device.stream_waits(self.device.index, self._number, stream.device.index, stream._number)

    def make_current(self) -> None:
        _device.exchange_device(self.device.index)
        _device.set_stream(self.device.index, self._number)


def current_stream(device: Any = None) -> Stream:
    index = _index(device)
    return Stream(index, number=_device.current_stream(index))


@contextmanager
def stream(stream: Stream) -> Iterator[None]:
    device, before = _device.current_device(), current_stream(stream.device)
    stream.make_current()
    try:
        yield
    finally:
        before.make_current()
        _device.exchange_device(device)


class Event:
    """Over only when the host has waited for its stream; each use of memory takes a millisecond."""

    def __init__(self, enable_timing: bool = False) -> None:
        self._key, self._number = (0, 0), 0

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or current_stream()
        self._key = stream.device.index, stream._number
        self._number = _device.num_uses(*self._key)

    def query(self) -> bool:
        return _device.has_waited(*self._key, self._number)

    def elapsed_time(self, end: Event) -> float:
        if not (self.query() and end.query()):
            raise RuntimeError("CUDA error: device not ready")
        return float(end._number - self._number)


class CUDAGraph:
    """Begins and ends to record in the current stream, and replays there."""

    def __init__(self) -> None:
        self._graph: Any = _device.Graph()

    def register_generator_state(self, generator: torch.Generator) -> None:
        self._graph.register_generator(generator)

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        if _device.current_stream(_index()) == 0:
            raise RuntimeError("CUDA graphs must be captured on a non-default stream")
        if _generators[_index()].is_left:
            raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")
        self._graph.begin()

    def capture_end(self) -> None:
        generator = _generators[_index()]
        generator.is_left = True
        self._graph.end()  # raises, if something was refused
        generator.is_left = False

    def replay(self) -> None:
        self._graph.replay()

    def reset(self) -> None:
        self._graph = _device.Graph()


def _initialize() -> None:
    global _is_initialized
    _is_initialized = True


def _set_device(device: Any) -> None:
    _initialize()
    _device.exchange_device(_index(device))


def _synchronize(device: Any = None) -> None:
    for number in range(len(_numbers) + 1):
        _device.host_waits(_index(device), number)


def _check_error(error: int) -> None:
    if error:
        raise RuntimeError(f"CUDA error {error}")


def _properties(device: Any = None) -> SimpleNamespace:
    index = _index(device)
    return SimpleNamespace(
        pci_domain_id=0, pci_bus_id=index, pci_device_id=0, uuid=f"emulated {index}"
    )


def _sync_debug_mode(mode: str | int) -> None:
    _device.forbid_waits(mode in ("error", 2))


class DefaultGenerator:
    """A device's own generator, which a recording that fails leaves unusable, as in CUDA."""

    def __init__(self) -> None:
        self.is_left = False

    def clone_state(self) -> DefaultGenerator:
        return DefaultGenerator()

    def graphsafe_get_state(self) -> DefaultGenerator:
        return self

    def graphsafe_set_state(self, state: DefaultGenerator) -> None:
        self.is_left = state.is_left


_generators = tuple(DefaultGenerator() for _ in range(_device.device_count()))

_pools = itertools.count(1)

vars(torch.cuda).update(
    default_generators=_generators,
    is_available=lambda: True,
    is_initialized=lambda: _is_initialized,
    _lazy_init=_initialize,
    device_count=_device.device_count,
    current_device=_device.current_device,
    set_device=_set_device,
    _exchange_device=_device.exchange_device,
    _maybe_exchange_device=_device.exchange_device,
    get_device_name=lambda device=None: "emulated",
    get_device_properties=_properties,
    is_bf16_supported=lambda *_: True,
    mem_get_info=lambda device=None: (_BYTES // 2, _BYTES),
    manual_seed_all=lambda seed: None,
    synchronize=_synchronize,
    get_sync_debug_mode=lambda: 2 * _device.forbids_waits(),
    set_sync_debug_mode=_sync_debug_mode,
    Stream=Stream,
    stream=stream,
    current_stream=current_stream,
    Event=Event,
    CUDAGraph=CUDAGraph,
    graph_pool_handle=lambda: (0, next(_pools)),
    is_current_stream_capturing=_device.is_recording,
    num_launches=_device.num_launches,
    reset_peak_memory_stats=lambda device=None: _device.reset_most_memory(_index(device)),
    max_memory_reserved=lambda device=None: _device.most_memory(_index(device)),
    cudart=lambda: SimpleNamespace(
        cudaHostRegister=lambda memory, size, flags: _device.register_memory(memory, size),
        cudaHostUnregister=_device.unregister_memory,
    ),
    check_error=_check_error,
)


def _tensor_of(storage: Any) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _moving(real: Any) -> Any:
    def to(self: Any, *, device: Any, non_blocking: bool = False) -> Any:
        if "cuda" in (self.device.type, torch.device(device).type):
            return _tensor_of(self).to(device).untyped_storage()
        return real(self, device=device, non_blocking=non_blocking)

    return to


def _cloning(real: Any) -> Any:
    def clone(self: Any) -> Any:
        on_gpu = self.device.type == "cuda"
        return _tensor_of(self).clone().untyped_storage() if on_gpu else real(self)

    return clone


def _record_stream(tensor: Tensor, stream: Stream) -> None:
    _device.record_stream(tensor, stream.device.index, stream._number)


Tensor.record_stream = _record_stream
# A torch without CUDA makes no storage there of itself.
_StorageBase.to = _moving(_StorageBase.to)
_StorageBase.clone = _cloning(_StorageBase.clone)


def _by_way_of_the_cpu(real: Any) -> Any:
    def collective(tensor: Tensor, *arguments: Any, **options: Any) -> Any:
        if not tensor.is_cuda:
            return real(tensor, *arguments, **options)
        on_cpu = tensor.cpu()
        real(on_cpu, *arguments, **options)
        tensor.copy_(on_cpu)

    return collective


def _through_gloo(real: Any) -> Any:
    return lambda backend=None, **options: real("gloo", **options)


dist.init_process_group = _through_gloo(dist.init_process_group)
for _name in ("all_reduce", "broadcast"):
    setattr(dist, _name, _by_way_of_the_cpu(getattr(dist, _name)))
