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

    All but ``life`` and the eventfds are memory.
    """

    setup: int  # pickled `Setup`
    report: int  # error or place of the worker, written by it
    life: int  # read end of its own life pipe
    memory: int  # the shared memory
    factory: int  # pickled factory of the environments, the same for all workers
    wake: int  # eventfd: number of new orders
    started: int  # eventfd: its environments are reset
    states: int  # states of its environments, written by it on request


class Setup(NamedTuple):
    """The start message of a worker."""

    worker: int
    spec: PoolSpec
    config: SamplerConfig
    autoreset: Autoreset | None  # as in `Block`
    seed: int
    restart: int
    cpus: tuple[int, ...]
    niceness: int  # by how much it yields to the policy, if that runs on the workers' cores
    awake_seconds: float | None  # of looking for the next order before sleeping; None: read signals
    start_rows: list[int]  # of each group's first observations; `WAIT_FOR_RESET`: after a reset
    states: EnvStates  # to continue from instead
    countdown: dict[int, int | None]  # eventfds of its groups, for `count_down`
    ready: dict[int, int]  # eventfds of its groups, for `count_down`


def create_memory(spec: PoolSpec) -> int:
    """Return a descriptor of new, zeroed shared memory for ``spec``; freed with its last holder."""
    size = spec.rollout.nbytes + layout_bytes(_layout(spec))
    return shared_memory.create("accel_rl", size)


def map_memory(spec: PoolSpec, descriptor: int) -> SharedArrays:
    """Return views of the shared memory behind ``descriptor``, in either process."""
    buffer = mmap.mmap(descriptor, 0)  # as long as it is
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
