"""Shared memory registered with CUDA, so that copies to and from a GPU need no staging.

Torch has no call for memory that it has not allocated, so this one is CUDA's own.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

_PORTABLE = 1  # for all of this process' GPUs


def register(memory: Tensor, device: torch.device) -> None:
    """Register ``memory``, until `unregister`; whole pages, of which no other array may be.

    Raises:
        RuntimeError: CUDA cannot.
    """
    with torch.cuda.device(device):
        error = _cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, _PORTABLE)
        try:
            torch.cuda.check_error(int(error))  # of the enum it would not tell the number
        except RuntimeError as told:
            with suppress(RuntimeError):  # CUDA tells it again at the next kernel, whatever that is
                torch.zeros(1, device=device)
            raise RuntimeError(
                f"CUDA could not register {memory.nbytes} bytes of shared memory ({told}); where "
                f"the limit of locked memory is too low, raise it (ulimit -l), or use device=cpu"
            ) from told


def unregister(memory: Tensor) -> None:
    """End that, when no copy is under way."""
    _cudart().cudaHostUnregister(memory.data_ptr())


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
