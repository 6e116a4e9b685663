"""Shapes and bytes of a replay memory, and the memory that they are taken from."""

from __future__ import annotations

import logging
import mmap
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import torch
from torch import Tensor

from accel_rl.models import PreviousInputs
from accel_rl.spaces import Leaf, Space, leaves_of, size_of
from accel_rl.system.topology import free_memory

_LOGGER = logging.getLogger(__name__)
_UPDATE_COPIES = 12  # of a batch's observations
# A step beside its frame and action, in 16 bytes, which one copy writes and one gather reads.
STEP = np.dtype(
    [
        ("final", np.int64),  # the number of its final observation, counted from 0; -1: it has none
        ("reward", np.float32),
        ("terminated", np.bool_),
        ("truncated", np.bool_),
        ("valid", np.bool_),
        ("age", np.uint8),  # frames before this one in its stack that are not blank
    ]
)


@dataclass(frozen=True, kw_only=True)
class SequenceSpec:
    """Sequences that are drawn from a replay: ``burn_in`` steps, then ``length`` to learn from.

    One begins every ``length / 2`` steps, rounded up, so that they overlap by half, as in R2D2.
    ``state_size``: numbers of the recurrent state that is stored where one begins. ``previous``:
    what the network is told besides observations; None: nothing.
    """

    burn_in: int
    length: int
    state_size: int
    previous: PreviousInputs | None = None

    @property
    def interval(self) -> int:
        """Steps between the beginnings of two."""
        return -(-self.length // 2)

    @property
    def stored_size(self) -> int:
        """Numbers that are stored where one begins: the state, and what the network is told."""
        return self.state_size + (0 if self.previous is None else self.previous.size)

    @property
    def num_steps(self) -> int:
        """Steps of one."""
        return self.burn_in + self.length


@dataclass(frozen=True, kw_only=True)
class ReplaySpec:
    """Shapes and sizes of a replay memory.

    ``size``: transitions in all, rounded up to a multiple of ``num_envs``. ``observation``: its
    space; where ``frame_stack`` is above 1 it is one array, whose first axis is the stack, newest
    last. ``action``: its space. ``horizon``: steps of each environment that come at a time.
    ``sequences``: what is drawn; None: single steps. ``batch_size``: of an update, for which its
    device has memory left.

    Raises:
        ValueError: the ring is too short for that, or the stack too long.
    """

    size: int
    num_envs: int
    horizon: int
    observation: Space
    action: Space
    frame_stack: int = 1
    n_step: int = 1
    gamma: float = 0.99
    sequences: SequenceSpec | None = None
    batch_size: int = 0

    def __post_init__(self) -> None:
        if self.frame_stack > 256:  # ``age`` is a byte
            raise ValueError(
                f"frame_stack is {self.frame_stack}; a replay rebuilds stacks of up to 256 frames"
            )
        if self.size < self.fewest:
            raise ValueError(
                f"buffer_size is {self.size}; with {self.needs} it must be at least {self.fewest}"
            )

    @property
    def fewest(self) -> int:
        """Steps of all environments without which there may be nothing to draw."""
        steps = self.horizon + self.n_step + self.frame_stack
        if self.sequences is not None:
            steps += self.sequences.num_steps + self.sequences.interval
        return steps * self.num_envs

    @property
    def needs(self) -> str:
        """Why these are so many, for messages."""
        spec, parts = self.sequences, [f"{self.num_envs} environments"]
        parts += [f"rollouts of {self.horizon} steps", f"{self.n_step}-step returns"]
        if spec is not None:
            parts.append(f"sequences of {spec.burn_in} + {spec.length} steps")
        return f"{', '.join(parts)} and stacks of {self.frame_stack} frames"

    @property
    def update_bytes(self) -> int:
        """Bytes that updates take of a GPU, as a multiple of a batch's observations in float32.

        CatDQN's take 4.2 times as much, for those before a graph is recorded and for the graph.
        """
        return _UPDATE_COPIES * self.batch_size * 4 * size_of(self.observation)

    @property
    def num_slots(self) -> int:
        """``S``, for each environment; whole intervals between sequences."""
        unit = 1 if self.sequences is None else self.sequences.interval
        return -(-self.size // (self.num_envs * unit)) * unit

    @cached_property
    def frame(self) -> Space:
        """The space of what a slot holds of an observation."""
        if self.frame_stack == 1:
            return self.observation
        assert isinstance(self.observation, Leaf), "EnvSpec refuses stacks in mappings"
        return Leaf(self.observation.shape[1:], self.observation.dtype)

    @cached_property
    def num_finals(self) -> int:
        """Final observations that are kept: in 64 MiB, or all that there can be."""
        num_steps = self.num_slots * self.num_envs
        return min(num_steps, max(self.horizon * self.num_envs, 2**26 // self._frame_bytes))

    @property
    def nbytes(self) -> int:
        """Bytes of the memory, priorities left out."""
        num_steps = self.num_slots * self.num_envs
        step_bytes = STEP.itemsize + _bytes_of(self.action)
        state_bytes = 0
        if self.sequences is not None:
            step_bytes += 1  # whether an episode begins
            state_bytes = num_steps // self.sequences.interval * self.sequences.stored_size * 4
        frames_bytes = (num_steps + self.num_finals) * self._frame_bytes
        return num_steps * step_bytes + frames_bytes + state_bytes

    @property
    def _frame_bytes(self) -> int:
        return _bytes_of(self.frame)


def _bytes_of(space: Space) -> int:
    return sum(prod(leaf.shape) * leaf.dtype.itemsize for _, leaf in leaves_of(space))


def runs_of(start: int, stop: int, num_slots: int) -> Iterator[tuple[int, int, int]]:
    """Divide the steps ``start`` to ``stop`` of a ring into one run of slots, or two.

    Yields:
        The first step counted from ``start``, its slot, and the number of steps.
    """
    first = start % num_slots
    fits = min(stop - start, num_slots - first)
    if fits:
        yield 0, first, fits
    if fits < stop - start:
        yield fits, 0, stop - start - fits


def check_free_memory(
    spec: ReplaySpec, device: torch.device, num_learners: int = 1, num_local: int = 1
) -> None:
    """Raises ValueError unless ``device`` has memory for a replay, and a GPU for updates, too.

    ``num_learners``: of whose replay that is one part; the machine must hold ``num_local`` of them.
    """
    if device.type == "cuda":
        num_local = 1  # what others have is not free: they take it at once
    if spec.nbytes * num_local > _free(spec, device):
        raise replay_too_large(spec, device, num_learners, num_local)


def replay_device(spec: ReplaySpec, device: torch.device) -> torch.device:
    """Return ``device``, or the CPU if a GPU has too little free memory for the replay."""
    if device.type != "cuda" or spec.nbytes <= _free(spec, device):
        return device
    _LOGGER.warning(
        "the replay takes %.1f GB, more than %s has free; it is in the memory of the CPU, which is "
        "slower",
        spec.nbytes / 1e9,
        device,
    )
    return torch.device("cpu")


def _free(spec: ReplaySpec, device: torch.device) -> int:
    """Bytes that a replay may take: of a GPU all but a tenth, or what an update needs."""
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        return max(0, free - max(free // 10, spec.update_bytes))
    return free_memory()


def replay_too_large(
    spec: ReplaySpec, device: torch.device, num_learners: int, num_local: int = 1
) -> ValueError:
    """Return the error of a replay that is too large."""
    free, nbytes, size = _free(spec, device), spec.nbytes, spec.size
    fits = num_learners * int(size * free / (nbytes * num_local) * 0.9)
    what = f"a replay of buffer_size={size}"
    if num_learners > 1:
        what = f"each of {num_learners} learners' parts of the replay"
    shared = f" for {num_local} of them" if num_local > 1 else ""
    return ValueError(
        f"{what} takes {nbytes / 1e9:.1f} GB, and {device} has {free / 1e9:.1f} GB free for it"
        f"{shared}; use buffer_size={fits} or less"
    )


def zeros_in_huge_pages(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return ``torch.zeros`` on the CPU, in pages of 2 MiB where Linux grants them.

    A gather of frames from random places waits for the processor to find each page. It finds nearly
    all of these in its cache of addresses. ``shape`` is not empty.
    """
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(shape, dtype=dtype)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        memory = mmap.mmap(-1, prod(shape) * dtype.itemsize, flags=flags)
    except OSError:  # there is not as much
        return torch.zeros(shape, dtype=dtype)  # which says how much was wanted
    with suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
