"""Memory in pages of 2 MiB, for gathers from all over gigabytes of it.

A gather of frames from random places waits for the processor to find each page; with those of
2 MiB in place of 4 KiB it finds nearly all of them in its cache of addresses.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from math import prod

import torch
from torch import Tensor


def zeros_in_huge_pages(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Like ``torch.zeros`` on the CPU, ``shape`` not empty; where Linux grants it in huge pages."""
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
