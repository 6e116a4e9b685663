"""Fixtures for all tests."""

import gc
import os
import platform
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from zlib import crc32

# Read when torch is loaded: threads of one test must not spin on cores that another needs.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import psutil
import pytest
import torch
import warm

# Programs that tests start find what tests share, and test modules that options name.
_FOLDERS = [str(each) for each in Path(__file__).parent.glob("[!_]*") if each.is_dir()]
_FOLDERS = [each for each in _FOLDERS if not each.endswith("emulated_gpu")]
_GIVEN = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
os.environ["PYTHONPATH"] = os.pathsep.join([*_GIVEN, *_FOLDERS])

pytest_plugins = ["costs"]
platform.platform()  # which starts a program the first time, in whatever test that is

# A parent may ignore them, as nohup and the shell of a background job do; then all processes that
# tests start and send them to would ignore them.
for _signal in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(_signal, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)


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


@pytest.fixture
def warm_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeps in this process have runs that are forks of a process that has loaded torch."""
    names = {**vars(subprocess), "Popen": warm.Popen}
    monkeypatch.setattr("accel_rl.sweeps.queue.subprocess", SimpleNamespace(**names))


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fails a test that leaves child processes or threads, and kills these processes."""
    before = _resources()
    yield
    if _resources() - before:
        gc.collect()  # what only a cycle holds is not left behind
    if left := _resources() - before:
        for each in left:
            if each.startswith("process "):
                _kill_tree(int(each.removeprefix("process ")))
        pytest.fail(f"left behind: {', '.join(sorted(left))}")


@pytest.fixture(autouse=True, scope="module")
def no_gpu(request: pytest.FixtureRequest) -> Iterator[None]:
    """Modules of tests that are not for a GPU find none, nor do processes that they start."""
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("gpu") is None and torch.cuda.is_available():
            patch.setenv("CUDA_VISIBLE_DEVICES", "")
            patch.setattr(torch.cuda, "is_available", lambda: False)
            patch.setattr(torch.cuda, "device_count", lambda: 0)
        yield


def _kill_tree(pid: int) -> None:
    with suppress(psutil.NoSuchProcess):
        processes = [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]
        for each in processes:
            each.kill()
        psutil.wait_procs(processes, timeout=10)


def _resources() -> set[str]:
    """Child processes by pid, threads by name."""
    tasks = Path("/proc/self/task")
    children = [pid for task in tasks.iterdir() for pid in _read(task / "children").split()]
    children += map(str, warm.running)
    threads = [
        f"thread {thread.name}"
        for thread in threading.enumerate()
        # Of CUDA's own, once it has run Python code: Python never hears of its end.
        if not isinstance(thread, threading._DummyThread)
    ]
    return {*(f"process {pid}" for pid in children), *threads}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", metavar="N/M", help="run the tests of one of M parts: 1/M to M/M")
    parser.addoption("--first-numeric", action="store_true", help="of numeric tests, first cases")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("nightly") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(900))  # much work, and the machine may be busy
    if config.getoption("first_numeric"):
        numeric = [item for item in reversed(items) if item.get_closest_marker("numeric")]
        items[:] = {item.nodeid.partition("[")[0]: item for item in numeric}.values()
    if part := config.getoption("part"):
        number, parts = (int(each) for each in part.split("/"))
        items[:] = [item for item in items if crc32(item.nodeid.encode()) % parts == number - 1]


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[_SEGMENTS] = _segments()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails where named shared memory is left; once for all, since tests run beside each other."""
    is_worker = hasattr(session.config, "workerinput")
    if not is_worker and (left := _segments() - session.config.stash[_SEGMENTS]):
        print(f"\nleft in /dev/shm: {', '.join(sorted(left))}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    elif session.config.getoption("part") and session.exitstatus == _NO_TESTS:
        session.exitstatus = pytest.ExitCode.OK  # a part may have none


_NO_TESTS = pytest.ExitCode.NO_TESTS_COLLECTED
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
