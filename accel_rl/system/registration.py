"""Shared memory registered with CUDA, so that copies to and from a GPU need no staging.

Torch has no call for memory that it has not allocated, so this one is CUDA's own.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

_LOGGER = logging.getLogger(__name__)
_PORTABLE = 1  # for all of this process' GPUs


def register(memory: Tensor, device: torch.device) -> bool:
    """Register ``memory``: whole pages, with no other array on them.

    If CUDA cannot, as in some containers, a warning says so. Copies then take longer, since they
    wait for each other.

    Returns:
        Whether it is registered. Then call `unregister` in the end.
    """
    with torch.cuda.device(device):
        error = _cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, _PORTABLE)
        try:
            torch.cuda.check_error(int(error))  # of the enum it would not tell the number
        except RuntimeError as told:
            with suppress(RuntimeError):  # CUDA tells it again at the next kernel, whatever that is
                torch.zeros(1, device=device)
            _LOGGER.warning(
                "copies to and from the GPU take longer, since CUDA could not register %d bytes of "
                "shared memory (%s); where the limit of locked memory is too low, raise it "
                "(ulimit -l)",
                memory.nbytes,
                told,
            )
            return False
    return True


def unregister(memory: Tensor) -> None:
    """Unregister ``memory``. No copy may be in progress."""
    _cudart().cudaHostUnregister(memory.data_ptr())


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
