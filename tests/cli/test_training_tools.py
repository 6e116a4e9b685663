"""``evaluate``, ``play`` and ``plot`` as commands."""

import json
import os
import re
import runpy
import shutil
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from refusals import rows, words
from rich.console import Console
from saved_runs import trained

import accel_rl
from accel_rl.__main__ import main
from accel_rl.cli.tools import OPTIONS
from accel_rl.tools.output import check_output, show_progress

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("catch") / "run", "env=catch")


def test_evaluate_prints_a_table_and_says_where_the_file_is(run_dir, tmp_path, capsys) -> None:
    out = tmp_path / "scores.json"
    options = ["num_steps=2e2", "num_envs=2", "num_workers=0", f"out={out}"]
    assert main(["evaluate", str(run_dir), *options]) == 0
    printed = capsys.readouterr().out
    assert "216 steps in 2 environments" in printed
    assert f"written: {out}" in printed
    assert json.loads(out.read_text())["num_games"] == 24  # nine steps each


@pytest.mark.parametrize(
    ("changed", "options", "end"),
    [
        ({"is_over": True}, [], "game over"),
        ({"is_truncated": True}, [], "cut off by the time limit"),
        ({}, [], "not over"),
        ({"is_over": True}, ["greedy=true"], "game over, greedy"),
    ],
)
def test_play_prints_the_score_and_the_end_and_says_where_the_film_is(
    changed: dict[str, bool], options: list[str], end: str, monkeypatch, capsys
) -> None:
    game = SimpleNamespace(path="a.mp4", score=3.5, num_steps=1_234, is_over=False)
    game = SimpleNamespace(**vars(game) | {"is_truncated": False} | changed)
    monkeypatch.setattr("accel_rl.cli.tools.play", lambda *_: game)
    assert main(["play", "run", *options]) == 0
    assert capsys.readouterr().out == f"score 3.5 after 1,234 steps, {end}\nwritten: a.mp4\n"


def test_plot_says_which_runs_of_the_same_seed_are_left_out(
    run_dir, tmp_path, capsys, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    copies = [shutil.copytree(run_dir, f"copy-{number}") for number in range(2)]
    assert main(["plot", str(run_dir), *copies]) == 0
    err = capsys.readouterr().err
    assert err.startswith("left out, since newer runs have the same options and seed: ")
    assert err.count(",") == 2


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


def test_script_and_command_give_the_same_help(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["launch/play.py", "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(REPOSITORY / "launch" / "play.py"), run_name="__main__")
    text = capsys.readouterr().out
    assert main(["play", "--help"]) == 0
    assert capsys.readouterr().out == text
    assert "accel_rl play RUN" in text


@pytest.mark.parametrize("tool", OPTIONS)
def test_help_lists_the_options_of_each_tool(tool: str, capsys) -> None:
    assert main([tool, "--help"]) == 0
    printed = capsys.readouterr().out
    assert f"accel_rl {tool} RUN" in printed
    assert "trust=false  (true|false)" in printed


def test_directory_or_one_that_may_not_be_written_to_is_no_output(tmp_path, monkeypatch) -> None:
    (tmp_path / "a.png").mkdir()
    with pytest.raises(ValueError, match=r"a\.png is a directory; name a file"):
        check_output(tmp_path / "a.png", (".png",), overwrite=True)
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)  # root may everywhere
    with pytest.raises(ValueError, match=r"may not be written to; choose another"):
        check_output(tmp_path / "b.png", (".png",), overwrite=False)


def test_progress_elsewhere_is_a_line_now_and_then(monkeypatch) -> None:
    monkeypatch.setattr("accel_rl.tools.output.LINE_SECONDS", 0.0)
    console = Console(width=80, force_terminal=False)
    with console.capture() as capture, show_progress(console, "steps", 8000) as show:
        show(4000)
        show(8001)
    first, last = capture.get().splitlines()
    assert first == "steps: 4,000 of 8,000" and "the last games" in last


def test_version_is_told_and_ends_of_processes_are_not_ignored_as_by_the_parent(capfd) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert main(["--version"]) == 0
        assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert capfd.readouterr().out == f"{accel_rl.__version__}\n"
