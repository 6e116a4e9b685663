"""``evaluate``, ``play`` and ``plot`` as commands."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from refusals import rows, words
from saved_runs import trained

import accel_rl
from accel_rl.__main__ import main
from accel_rl.tools.output import check_output


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("catch") / "run", "env=catch")


BAD = """
evalute RUN | evalute is no command; evaluate?
sweeps seed=0,1 | sweeps is no command; sweep?
evaluate | evaluate takes one run directory 0 are
play a b | play takes one run directory 2 are
evaluate absent | no run directory absent
plot | no run is named
evaluate RUN num_step=3 | unknown option num_step; num_steps?
play RUN --seed 3 | without dashes: seed=VALUE
evaluate RUN seed=1 seed=2 | seed is given twice
evaluate RUN num_steps=few | num_steps=few must be: integer
plot RUN y=reward | unknown option y; there are trust, what, x, out
plot RUN x=hours | x=hours must be: steps|frames|minutes
"""


@pytest.mark.parametrize(("arguments", "said"), rows(BAD))
def test_bad_input_gives_one_message_and_exit_code_1(
    arguments: str, said: str, run_dir, capsys
) -> None:
    assert main([str(run_dir) if each == "RUN" else each for each in arguments.split()]) == 1
    err = capsys.readouterr().err
    assert re.match(words(f"error: {said}"), err)
    assert err.count("\n") == 1


def test_interrupted_tool_gives_the_exit_code_of_the_signal(run_dir, monkeypatch, capsys) -> None:
    def interrupt(*args: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("accel_rl.cli.tools.play", interrupt)
    assert main(["play", str(run_dir)]) == 143
    assert capsys.readouterr().err == "stopped by SIGTERM; nothing was written\n"


def test_directory_or_one_that_may_not_be_written_to_is_no_output(tmp_path, monkeypatch) -> None:
    (tmp_path / "a.png").mkdir()
    with pytest.raises(ValueError, match=r"a\.png is a directory; name a file"):
        check_output(tmp_path / "a.png", (".png",), overwrite=True)
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)  # root may everywhere
    with pytest.raises(ValueError, match=r"may not be written to; choose another"):
        check_output(tmp_path / "b.png", (".png",), overwrite=False)


def test_version_is_told_and_ends_of_processes_are_not_ignored_as_by_the_parent(capfd) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert main(["--version"]) == 0
        assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert capfd.readouterr().out == f"{accel_rl.__version__}\n"
