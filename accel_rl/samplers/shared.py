"""The memory that a sampler and its workers share, and what a worker is given at its start.

The memory is anonymous (``memfd_create``) and handed to the workers as a file descriptor: it has
no name in ``/dev/shm``, so nothing is left when processes are killed and no two runs collide.
"""

from __future__ import annotations

import mmap
import signal
import sys
from typing import Any, NamedTuple

import numpy as np

from accel_rl.rollout import Layout, Rollout, RolloutSpec, carve, layout_bytes
from accel_rl.samplers.base import Autoreset, SamplerConfig
from accel_rl.samplers.block import BlockArrays, Carry, EnvStates
from accel_rl.samplers.layout import EnvSlice
from accel_rl.samplers.orders import SharedArrays
from accel_rl.system import shared_memory

TELL_PLACE = getattr(signal, "SIGRTMAX", 64) - 1
"""the signal on which a worker writes into its report where it is; other systems have none"""

LOOK_SECONDS = 0.25
"""between two looks of a waiting server: for workers that are late, and whether it still waits"""

GRACE_SECONDS = 0.5
"""for environments to close after a failure, beside the time of a worker's longest order; more may
hang"""


class PoolSpec(NamedTuple):
    """All that both sides need to lay out the shared memory, and who steps which columns.

    In the `Setup` of a worker, ``slices`` are its own.
    """

    rollout: RolloutSpec
    num_workers: int
    num_groups: int
    slices: list[EnvSlice]


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
