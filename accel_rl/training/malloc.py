"""A setting of the C library's allocator that learning on the CPU runs faster with."""

from __future__ import annotations

import ctypes
import platform

# From <malloc.h>.
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_MAX = -4

_TOP_PAD_BYTES = 64 * 2**20


def tune_malloc() -> bool:
    """Keep freed memory in this process, instead of giving it back and faulting it in again.

    By default glibc maps each large block anew and unmaps it when freed; a network's activations
    are such blocks, and touching their pages for the first time costs more than computing with
    them. It lasts for the life of the process, so it is for our own training process only: nothing
    calls it on import. Returns whether anything was set: on other C libraries nothing is.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = (
        (_M_MMAP_MAX, 0),
        (_M_TRIM_THRESHOLD, 2**31 - 1),
        (_M_TOP_PAD, _TOP_PAD_BYTES),
    )
    return all(mallopt(option, value) == 1 for option, value in settings)
