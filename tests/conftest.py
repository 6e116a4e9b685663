"""Fixtures for all tests."""

import gc
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

# Read when torch is loaded: threads of one test must not spin on cores that another needs.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch

# Programs that tests start find what tests share, and test modules that options name.
_FOLDERS = [str(each) for each in Path(__file__).parent.glob("[!_]*") if each.is_dir()]
_FOLDERS = [each for each in _FOLDERS if not each.endswith("emulated_gpu")]
_GIVEN = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
os.environ["PYTHONPATH"] = os.pathsep.join([*_GIVEN, *_FOLDERS])

# Ignored under nohup, it would be so in all processes that tests start and send it to.
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True, scope="session")
def key_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests, and processes that they start, sign with a key of their own, not the developer's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Torch computes in one thread here, as two of these processes share the cores.

    Where ``OMP_NUM_THREADS`` is set it says how many there are. Programs that tests start, and
    learning within them, have as many as always.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


@pytest.fixture
def one_torch_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of torch spin while they wait, which other processes of a test machine pay for."""
    monkeypatch.setattr("accel_rl.training.torch_setup.available_cpus", lambda: [0])


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fails a test that leaves child processes or threads."""
    before = _resources()
    yield
    if _resources() - before:
        gc.collect()  # what only a cycle holds is not left behind
    assert not _resources() - before


@pytest.fixture(autouse=True, scope="module")
def no_gpu(request: pytest.FixtureRequest) -> Iterator[None]:
    """Modules of tests that are not for a GPU find none, nor do processes that they start."""
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("gpu") is None and torch.cuda.is_available():
            patch.setenv("CUDA_VISIBLE_DEVICES", "")
            patch.setattr(torch.cuda, "is_available", lambda: False)
            patch.setattr(torch.cuda, "device_count", lambda: 0)
        yield


def _resources() -> set[str]:
    """Child processes by pid, threads by name."""
    tasks = Path("/proc/self/task")
    children = [pid for task in tasks.iterdir() for pid in _read(task / "children").split()]
    threads = [
        f"thread {thread.name}"
        for thread in threading.enumerate()
        # Of CUDA's own, once it has run Python code: Python never hears of its end.
        if not isinstance(thread, threading._DummyThread)
    ]
    return {*(f"process {pid}" for pid in children), *threads}


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[_SEGMENTS] = _segments()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails where named shared memory is left; once for all, since tests run beside each other."""
    is_worker = hasattr(session.config, "workerinput")
    if not is_worker and (left := _segments() - session.config.stash[_SEGMENTS]):
        print(f"\nleft in /dev/shm: {', '.join(sorted(left))}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


_SEGMENTS = pytest.StashKey[set[str]]()


def _segments() -> set[str]:
    """Those of torch and of Python's multiprocessing; other programs have theirs there, too."""
    names = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    return {name for name in names if name.startswith(("torch_", "psm_", "pym-", "sem."))}


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""  # the thread has ended
