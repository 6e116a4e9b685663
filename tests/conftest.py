"""Fixtures for all tests."""

import gc
import os
import threading
from collections.abc import Iterator

import psutil
import pytest


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fails a test that leaves child processes, threads or named shared memory."""
    threads = threading.active_count()
    segments = _shared_memory_segments()
    yield
    gc.collect()
    children = [p for p in psutil.Process().children() if p.status() != psutil.STATUS_ZOMBIE]
    assert not children, f"child processes left: {[(p.pid, p.cmdline()) for p in children]}"
    assert threading.active_count() <= threads, f"threads left: {threading.enumerate()}"
    assert _shared_memory_segments() <= segments


def _shared_memory_segments() -> set[str]:
    return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
