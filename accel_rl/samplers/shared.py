"""The memory that a sampler and its workers share, and the words by which they take turns.

The memory is anonymous (``memfd_create``) and handed to the workers as a file descriptor: it has
no name in ``/dev/shm``, so nothing is left when processes are killed and no two runs collide.
"""

from __future__ import annotations

import mmap
import os
import platform
import signal
import sys
import threading
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from accel_rl.rollout import Layout, Rollout, RolloutSpec, carve, layout_bytes
from accel_rl.samplers.base import Autoreset, SamplerConfig
from accel_rl.samplers.block import BlockArrays, Carry, EnvStates
from accel_rl.system import shared_memory

STEP = 1
RESET = 2
CLOSE = 3
GET_STATE = 4
CALL = 5

WAIT_FOR_RESET = -1

TIMEOUTS = dict.fromkeys((STEP, GET_STATE), "step_timeout_seconds") | dict.fromkeys(
    (RESET, CLOSE, CALL), "reset_timeout_seconds"
)
"""the option that limits the time for each order"""

ORDERS_STORES = platform.machine().lower() in ("x86_64", "amd64", "i686")
"""whether this processor lets others see what a thread writes in the order of its writing"""

TELL_PLACE = getattr(signal, "SIGRTMAX", 64) - 1
"""the signal on which a worker writes into its report where it is; other systems have none"""

LOOK_SECONDS = 0.25
"""between two looks of a waiting server: for workers that are late, and whether it still waits"""

GRACE_SECONDS = 0.5
"""for environments to close after a failure, beside the time of a worker's longest order; more may
hang"""


class PoolSpec(NamedTuple):
    """All that both sides need to lay out the shared memory, and who steps which columns.

    ``columns[worker][group]`` is the worker's slice of that group, empty where it has none.
    """

    rollout: RolloutSpec
    columns: list[list[range]]

    @property
    def num_workers(self) -> int:
        return len(self.columns)

    @property
    def num_groups(self) -> int:
        return len(self.columns[0])


class SharedArrays(NamedTuple):
    """Views of the shared memory.

    ``command``, ``row``, ``sequence``: ``[G]``, written by the server before it wakes a group: do
    ``command`` at ``row``, as its ``sequence``-th order. ``done``: ``[W, G]``, the sequence that a
    worker has carried out for a group, written by the worker. Orders are numbered, so a signal too
    many or too few cannot put the two sides out of step. ``has_started``: ``[W]``, the worker's
    environments are reset. ``first_steps``: ``[W]``, random first steps that they have taken.
    ``busy_seconds``: ``[W]``, time spent in simulators.
    ``longest_seconds``: ``[W]``, time of the longest order so far. ``is_awake``: ``[W]``, the
    worker looks at ``sequence`` by itself and needs no signal. ``done_at``: ``[W]``, when it
    had carried out its last order, by `time.perf_counter`. All by the worker, except that the pool
    notes in ``done_at`` when a worker has started, and in ``done`` what needs no answer.

    The server reads results of a worker after it has read an eventfd that the worker wrote after
    them: the kernel's lock orders the two, on processors that reorder stores, too (ARM). There a
    worker is never ``is_awake``, and takes an order only after it has read its eventfd.
    """

    block: BlockArrays
    command: NDArray[np.int64]
    row: NDArray[np.int64]
    sequence: NDArray[np.int64]
    done: NDArray[np.int64]
    has_started: NDArray[np.bool_]
    first_steps: NDArray[np.int64]
    busy_seconds: NDArray[np.float64]
    longest_seconds: NDArray[np.float64]
    done_at: NDArray[np.float64]
    is_awake: NDArray[np.uint8]


class Descriptors(NamedTuple):
    """File descriptors that a worker inherits.

    ``setup``: memory with the pickled `Setup`. ``report``: memory, where it says why it failed.
    ``life``: read end of its own life pipe. ``memory``: the shared memory. ``factory``: memory
    with the pickled factory of the environments, the same for all workers. ``wake``: eventfd, the
    number of orders that have come. ``started``: eventfd, its environments are reset. ``states``:
    memory of its own, where it leaves the states of its environments when asked.
    """

    setup: int
    report: int
    life: int
    memory: int
    factory: int
    wake: int
    started: int
    states: int


class Setup(NamedTuple):
    """What a worker is told at its start.

    ``niceness``: by how much it yields to the policy, if that runs on the workers' cores.
    ``awake_seconds``: how long it looks for the next order before it sleeps; None: it takes an
    order only after it has read its signal.
    ``start_rows[group]`` is the observation row that its first observations go to, or
    `WAIT_FOR_RESET` if they come with the next reset of what waits. ``states``: what environments
    go on from instead. ``countdown`` and ``ready``: of each of its groups, for `count_down`.
    ``autoreset``: as in `Block`.
    """

    worker: int
    spec: PoolSpec
    config: SamplerConfig
    autoreset: Autoreset | None
    seed: int
    restart: int
    cpus: tuple[int, ...]
    niceness: int
    awake_seconds: float | None
    start_rows: list[int]
    states: EnvStates
    countdown: dict[int, int | None]
    ready: dict[int, int]


def create_memory(spec: PoolSpec) -> int:
    """A file descriptor of new, zeroed shared memory for ``spec``; it dies with its last holder."""
    size = spec.rollout.nbytes + layout_bytes(_layout(spec))
    return shared_memory.create("accel_rl", size)


def map_memory(spec: PoolSpec, descriptor: int) -> SharedArrays:
    """Views of the shared memory behind ``descriptor``, in either process."""
    size = spec.rollout.nbytes + layout_bytes(_layout(spec))
    buffer = mmap.mmap(descriptor, size)
    arrays = carve(_layout(spec), buffer, offset=spec.rollout.nbytes)
    carry = Carry(arrays.pop("carry_observation"), arrays.pop("carry_is_fresh"))
    rollout = Rollout.from_buffer(spec.rollout, buffer)
    orders, info = arrays.pop("reset_order"), arrays.pop("reset_info")
    return SharedArrays(BlockArrays(spec.rollout, rollout, carry, orders, info), **arrays)


def dumps(value: object) -> bytes:
    """Pickle ``value`` for another process, with what the main module defines.

    That is another module there. In a process of multiprocessing its name is ``__mp_main__``.
    """
    import cloudpickle  # workers start sooner without

    if multiprocessing_main := sys.modules.get("__mp_main__"):
        cloudpickle.register_pickle_by_value(multiprocessing_main)
    pickled: bytes = cloudpickle.dumps(value)
    return pickled


def count_down(countdown: int | None, ready: int) -> None:
    """Take one from ``countdown``; the worker that finds none left says that the group is ready.

    So the server wakes once for a group and not once for each of its workers. Both are eventfds.
    The only worker of a group has no ``countdown``.
    """
    if countdown is None or not take(countdown):
        os.eventfd_write(ready, 1)


def fence() -> None:
    """Let others see what this thread has written before it reads on (with `ORDERS_STORES`)."""
    threading.Lock().acquire()  # an atomic exchange; of one that no other thread can hold


def take(eventfd: int) -> bool:
    """Take what a non-blocking eventfd holds (one, of a semaphore); False if it is empty."""
    try:
        os.eventfd_read(eventfd)
    except BlockingIOError:
        return False
    return True


def _layout(spec: PoolSpec) -> Layout:
    W, G = spec.num_workers, spec.num_groups
    int64, boolean = np.dtype(np.int64), np.dtype(np.bool_)
    rollout = spec.rollout
    observation, dtype = rollout.layout()["observation"]
    info, info_dtype = rollout.layout()["info"]
    layout: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {
        "carry_observation": (observation[1:], dtype),
        "carry_is_fresh": ((rollout.B,), boolean),
        "reset_order": ((rollout.B,), int64),
        "reset_info": (info[1:], info_dtype),
        "command": ((G,), int64),
        "row": ((G,), int64),
        "sequence": ((G,), int64),
        "done": ((W, G), int64),
        "has_started": ((W,), boolean),
        "first_steps": ((W,), int64),
        "busy_seconds": ((W,), np.dtype(np.float64)),
        "longest_seconds": ((W,), np.dtype(np.float64)),
        "done_at": ((W,), np.dtype(np.float64)),
        "is_awake": ((W,), np.dtype(np.uint8)),
    }
    return layout
