"""Copies of arrays to the device, for GA3C's threads.

The number of samples differs each time. A CUDA graph has one shape and reads the same memory each
time, so for graphs batches are filled up to a few sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

Put = Callable[[Mapping[str, NDArray[Any]]], dict[str, Tensor]]
"""Brings arrays to a device."""

_FEWEST_ROWS = 8


def padded_size(num_rows: int) -> int:
    """Return the next power of two, at least 8."""
    return max(_FEWEST_ROWS, 1 << (num_rows - 1).bit_length())


class Places:
    """Memory on ``device`` for arrays of at most ``most`` rows, the same each time.

    Args:
        most: Maximum number of rows.
        device: A GPU.
    """

    def __init__(self, most: int, device: torch.device) -> None:
        self._most = padded_size(most)
        self._device = device
        self._places: dict[str, Tensor] = {}

    def put(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
        """Return tensors of the `padded_size` of the longest of ``arrays``, ``[n, ...]`` each.

        Rows behind an array are what earlier ones have left there, and at the start 1 or, of whole
        numbers, 0: numbers that any formula takes. The host does not wait.
        """
        size = padded_size(max(map(len, arrays.values())))
        return {name: self._put(name, array)[:size] for name, array in arrays.items()}

    def _put(self, name: str, array: NDArray[Any]) -> Tensor:
        given = torch.from_numpy(array)
        if name not in self._places:
            fill = 1 if given.is_floating_point() else 0
            shape = (self._most, *given.shape[1:])
            self._places[name] = torch.full(shape, fill, dtype=given.dtype, device=self._device)
        place = self._places[name]
        place[: len(array)].copy_(given.pin_memory(), non_blocking=True)
        return place


def to_device(device: torch.device, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    """Return ``arrays`` on ``device``: on the CPU as they are, else copies from pinned memory.

    The device may read the copies while the host goes on.
    """
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    if device.type == "cpu":
        return tensors
    return {name: x.pin_memory().to(device, non_blocking=True) for name, x in tensors.items()}
