"""Fixtures for all tests."""

import gc
import importlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Read when torch is loaded: threads of one test must not spin on cores that another needs.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest

# Ignored under nohup, it would be so in all processes that tests start and send it to.
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fails a test that leaves child processes, threads or named shared memory."""
    before = _resources()
    yield
    if _resources() - before:
        gc.collect()  # what only a cycle holds is not left behind
    assert not _resources() - before


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of ``benchmarks``, as the scripts there do."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[1] / "benchmarks"))
    return importlib.import_module


def _resources() -> set[str]:
    """Child processes by pid, threads by name, shared memory by file."""
    tasks = Path("/proc/self/task")
    children = [pid for task in tasks.iterdir() for pid in _read(task / "children").split()]
    threads = [f"thread {thread.name}" for thread in threading.enumerate()]
    segments = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    return {*(f"process {pid}" for pid in children), *threads, *segments}


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""  # the thread has ended
