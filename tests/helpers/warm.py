"""Python programs as forks of one process that has loaded torch and accel_rl.

Loading both takes 2 seconds of processor time, a short run 0.2. The first program starts the
process that forks. This process is no child of the tests and ends when they end. Learners and runs
of sweeps are forks of the program that starts them.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import platform
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
import types
from contextlib import suppress
from functools import cache
from typing import Any, NoReturn

_HIGH = 300
"""descriptors from here on are passed while the lower ones are put in order"""
_FORKED = ("accel_rl", "accel_rl.sweeps.child")
"""modules that programs start as processes of their own"""

running: set[int] = set()
"""process ids of programs whose end nobody has waited for"""


class Popen(subprocess.Popen[Any]):
    """`subprocess.Popen` of a command that begins with ``sys.executable``.

    The program has a session of its own. ``seconds`` is the processor time that it took with all
    that it has waited for, known at its end.
    """

    seconds = 0.0

    def _execute_child(  # type: ignore[override]
        self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *others
    ) -> None:
        assert args[0] == sys.executable and preexec_fn is None
        pipes = others[3:9]
        request = {
            "arguments": [str(each) for each in args[1:]],
            "environment": dict(os.environ if env is None else env),
            "folder": str(cwd or os.getcwd()),
            "passed": list(pass_fds),
        }
        end, other_end = socket.socketpair()
        with other_end:
            given = [*_standard(pipes), *pass_fds, other_end.fileno()]
            socket.send_fds(_warm_process(), [json.dumps(request).encode()], given)
        self._end = end
        self.pid = json.loads(end.recv(1000))
        running.add(self.pid)
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None:
            if not select.select([self._end], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode, self.seconds = json.loads(self._end.recv(1000))
            self._end.close()
            running.discard(self.pid)
            if costs := sys.modules.get("costs"):
                costs.add(self.seconds, 1)
        return self.returncode

    def _internal_poll(self, *_: object, **__: object) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self._wait(0.0)
        return None


def _standard(pipes: Any) -> list[int]:
    """The standard descriptors of a child, by the pipes that `subprocess.Popen` has made."""
    read, _, _, written, _, errors = pipes
    return [number if each == -1 else each for number, each in enumerate((read, written, errors))]


@cache
def _warm_process() -> socket.socket:
    ours, other = socket.socketpair(type=socket.SOCK_SEQPACKET)
    environment = {name: each for name, each in os.environ.items() if name != "PYTHONPATH"}
    with other:
        subprocess.run(
            [sys.executable, "-P", __file__, str(other.fileno())],
            pass_fds=[other.fileno()],
            stdin=subprocess.DEVNULL,
            env=environment,
            check=True,
        )
    atexit.register(ours.close)
    return ours


def _serve(requests: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork for each request until the tests end. Returns in the forks: what each is to be."""
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    forks: dict[int, tuple[int, socket.socket]] = {}  # by the descriptor that tells of its end
    while True:
        for descriptor, _ in poll.poll():
            if descriptor in forks:
                pid, end = forks.pop(descriptor)
                poll.unregister(descriptor)
                os.close(descriptor)
                _, status, usage = os.wait4(pid, 0)
                told = [os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime]
                with end, suppress(OSError):
                    end.send(json.dumps(told).encode())
                continue
            message, given, _, _ = socket.recv_fds(requests, 2**18, 30)
            if not message:  # the tests have ended
                for pid, _ in forks.values():
                    os.kill(pid, signal.SIGKILL)
                os._exit(0)
            end = socket.socket(fileno=given.pop())
            pid = os.fork()
            if pid == 0:
                for each in (requests, end, *(other for _, other in forks.values())):
                    each.detach()  # `_become` closes them
                return json.loads(message), given
            for each in given:
                os.close(each)
            with suppress(OSError):
                end.send(json.dumps(pid).encode())
            descriptor = os.pidfd_open(pid)
            forks[descriptor] = (pid, end)
            poll.register(descriptor, select.POLLIN)


def _become(request: dict[str, Any], given: list[int]) -> None:
    """Make of this fork what a new process would be."""
    os.setsid()
    high = [fcntl.fcntl(each, fcntl.F_DUPFD, _HIGH) for each in given]
    os.closerange(0, _HIGH)
    for number, each in zip([0, 1, 2, *request["passed"]], high, strict=True):
        os.dup2(each, number)
    os.closerange(_HIGH, 2**16)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    signal.set_wakeup_fd(-1)
    for each in signal.valid_signals() - {signal.SIGINT}:
        if callable(signal.getsignal(each)):
            signal.signal(each, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin = open(0, closefd=False)
    sys.stdout = open(1, "w", closefd=False)
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)

    import torch

    from accel_rl.training import torch_setup

    torch_setup._forked_pids.clear()  # torch has no threads yet
    if threads := os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(int(threads))


def _run(arguments: list[str], base: list[str]) -> None:
    """Run ``python ARGUMENTS`` here. ``base``: ``sys.path`` without folders of the user."""
    is_safe = arguments[0] == "-P"
    kind, *rest = arguments[is_safe:]
    given = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    first = os.path.dirname(os.path.abspath(kind)) if kind not in ("-c", "-m") else os.getcwd()
    sys.path[:] = [*([] if is_safe else [first]), *given, *base]
    sys.path_importer_cache.clear()
    if kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), sys.modules["__main__"].__dict__)
    elif kind == "-m":
        sys.argv = rest
        os.execv = lambda _, command: _run(command[1:], base)  # type: ignore[assignment,return-value]
        sys.modules.pop(f"{rest[0]}.__main__", None)  # runpy warns of it
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [kind, *rest]
        runpy.run_path(kind, run_name="__main__")


def _run_in_fork(arguments: list[str], base: list[str]) -> NoReturn:
    """Run ``python ARGUMENTS`` here, and end this process without destroying its objects."""
    code = 1
    try:
        _run(arguments, base)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(code)


def _fork_programs(base: list[str]) -> None:
    """Let this process start the modules in `_FORKED` by forks of itself."""

    class Fork(subprocess.Popen[Any]):
        def _execute_child(  # type: ignore[override]
            self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *others
        ) -> None:
            if args[:3] != [sys.executable, "-P", "-m"] or args[3] not in _FORKED:
                first = (args, executable, preexec_fn, close_fds, pass_fds, cwd, env)
                super()._execute_child(*first, *others)
                return
            pipes = others[3:9]
            self.pid = os.fork()
            if self.pid == 0:
                request = {"environment": dict(env), "folder": os.getcwd(), "passed": [*pass_fds]}
                _become(request, [*_standard(pipes), *pass_fds])
                _run_in_fork([str(each) for each in args[1:]], base)
            self._child_created = True
            self._close_pipe_fds(*pipes)

    subprocess.Popen = Fork  # type: ignore[misc]


def _main() -> None:
    if os.fork():
        os._exit(0)  # so that the tests have no child
    os.setsid()
    base = list(sys.path)
    import gc
    from importlib import import_module

    for name in (
        *("cli.run", "cli.tools", "ga3c.run", "runs.tables", "runs.figures", "sweeps.command"),
        *("sweeps.child", "tools.evaluate", "training.train"),
    ):
        import_module(f"accel_rl.{name}")
    for name in ("matplotlib.figure", "matplotlib.backends.backend_agg", "ale_py", "cv2"):
        import_module(name)
    from PIL import Image

    Image.preinit()
    platform.platform()
    gc.freeze()
    request, given = _serve(socket.socket(fileno=int(sys.argv[1])))
    _become(request, given)
    _fork_programs(base)
    _run_in_fork(request["arguments"], base)


if __name__ == "__main__":
    _main()
