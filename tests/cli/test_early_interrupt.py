"""Ctrl-C that comes while a command loads, where something swallows the exception."""

import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest
from launched_runs import started

from accel_rl.__main__ import main
from accel_rl.cli.launcher import _start
from accel_rl.system.stopping import StopRequest, noting_interrupts


def interrupt_and_swallow() -> None:
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_swallowed_interrupt_stops_before_the_run_begins() -> None:
    with noting_interrupts():
        interrupt_and_swallow()
        with pytest.raises(KeyboardInterrupt), StopRequest():
            pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


SWALLOWED_BY_THE_FIRST_IMPORT = """
import os, runpy, signal, sys

class Interrupt:
    def __del__(self):  # where Python only prints an exception
        os.kill(os.getpid(), signal.SIGINT)

class Finder:
    def find_spec(self, name, *_):
        if name == "accel_rl.system.processes":
            Interrupt()

sys.meta_path.insert(0, Finder())
sys.argv = "accel_rl train env=catch num_workers=0 learners=1 total_steps=2000 run_dir=run".split()
runpy.run_module("accel_rl", run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
@pytest.mark.processes
def test_interrupt_that_the_first_import_swallows_ends_the_command(tmp_path) -> None:
    command = ("-c", SWALLOWED_BY_THE_FIRST_IMPORT)
    with started(*command, is_warm=False, cwd=tmp_path) as program:
        _, errors = program.communicate(timeout=100)
    assert program.returncode == 130, errors


@pytest.mark.processes
def test_learner_keeps_an_interrupt_that_comes_while_its_python_starts() -> None:
    store: Any = SimpleNamespace(address="none")
    learner = _start(["--version"], 0, 2, store)
    learner.send_signal(signal.SIGINT)
    assert learner.wait(100) == 130


def test_interrupt_of_an_earlier_command_does_not_stop_the_next() -> None:
    with noting_interrupts():
        interrupt_and_swallow()
    with pytest.raises(KeyboardInterrupt), noting_interrupts():
        signal.raise_signal(signal.SIGINT)
    with noting_interrupts(), StopRequest() as stop:
        assert not stop.is_asked()


def test_handler_of_the_host_stays() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with noting_interrupts():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_interrupt_that_a_loading_library_turns_into_another_error_ends_quietly(
    monkeypatch, capsys
) -> None:
    """As NumPy does: cannot load module more than once per process."""

    def load(*_: object) -> None:
        interrupt_and_swallow()
        raise ImportError("cannot load module more than once per process")

    monkeypatch.setattr("accel_rl.cli.run.run", load)
    assert main(["train", "env=catch"]) == 130
    assert capsys.readouterr() == ("", "")


def test_other_errors_of_loading_are_told(monkeypatch) -> None:
    def load(*_: object) -> None:
        raise ImportError("libgomp.so.1: cannot open shared object file")

    monkeypatch.setattr("accel_rl.cli.run.run", load)
    with pytest.raises(ImportError, match="libgomp"):
        main(["train", "env=catch"])
