"""``evaluate``, ``play`` and ``plot`` as commands."""

import json
import os
import runpy
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from saved_runs import trained

import accel_rl
from accel_rl.__main__ import TOOLS, main
from accel_rl.tools.output import check_output, show_progress

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("catch") / "run", "env=catch")


def test_evaluate_prints_a_table_and_says_where_the_file_is(run_dir, tmp_path, capsys) -> None:
    out = tmp_path / "scores.json"
    options = ["num_steps=2e2", "num_envs=2", "serial=true", f"out={out}"]
    assert main(["evaluate", str(run_dir), *options]) == 0
    printed = capsys.readouterr().out
    assert "216 steps in 2 environments" in printed
    assert f"written: {out}" in printed
    assert json.loads(out.read_text())["num_games"] == 24  # nine steps each


def test_play_prints_the_score_and_says_where_the_film_is(run_dir, capsys) -> None:
    assert main(["play", str(run_dir)]) == 0
    printed = capsys.readouterr().out
    assert "after 9 steps, game over" in printed
    assert f"written: {run_dir}/game.mp4" in printed


@pytest.mark.parametrize(
    ("env", "max_steps", "words"),
    [
        ("test_training_play:Cut", 3, "after 2 steps, cut off by the time limit\n"),
        ("saved_runs:Pay", 2, "after 2 steps, not over\n"),
    ],
    ids=["time limit", "end of the film"],
)
def test_play_says_how_the_game_ended(env, max_steps, words, tmp_path, capsys) -> None:
    run_dir = trained(tmp_path / "run", f"env={env}")
    assert main(["play", str(run_dir), f"max_steps={max_steps}"]) == 0
    assert words in capsys.readouterr().out


def test_play_says_that_the_policy_was_greedy(run_dir, capsys) -> None:
    assert main(["play", str(run_dir), "greedy=true", "overwrite=true"]) == 0
    assert "after 9 steps, game over, greedy\n" in capsys.readouterr().out


def test_plot_prints_a_table_and_says_where_the_picture_is(
    run_dir, tmp_path, capsys, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plot", str(run_dir), "x=frames"]) == 0
    printed = capsys.readouterr().out
    assert "catch, a2c" in printed
    assert "written: learning_curves.png" in printed
    assert (tmp_path / "learning_curves.png").exists()


def test_plot_says_which_runs_of_the_same_seed_are_left_out(
    run_dir, tmp_path, capsys, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    copies = [shutil.copytree(run_dir, f"copy-{number}") for number in range(2)]
    assert main(["plot", str(run_dir), *copies]) == 0
    err = capsys.readouterr().err
    assert err.startswith("left out, since newer runs have the same options and seed: ")
    assert err.count(",") == 2


def test_plot_of_measurements_says_where_the_picture_is(tmp_path, capsys, monkeypatch) -> None:
    measured = trained(tmp_path / "run", "env=catch", "log_norms=true")
    monkeypatch.chdir(tmp_path)
    assert main(["plot", str(measured), "what=norms"]) == 0
    assert "written: norms.png" in capsys.readouterr().out
    assert (tmp_path / "norms.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evalute", "RUN"], "evalute is no command; did you mean evaluate?"),
        (["sweeps", "seed=0,1"], "sweeps is no command; did you mean sweep?"),
        (["evaluate"], "evaluate takes one run directory, as in runs/pong-a2c-0-...; 0 are given"),
        (["play", "a", "b"], "play takes one run directory, as in runs/pong-a2c-0-...; 2 are"),
        (["evaluate", "absent"], "there is no run directory absent; name one that training"),
        (["plot", "absent"], "there is no run directory absent; name one that training"),
        (["plot"], "no run is named; name run directories"),
        (["evaluate", "RUN", "num_step=3"], "unknown option num_step; did you mean num_steps?"),
        (["play", "RUN", "--seed", "3"], "options are written without dashes: seed=VALUE"),
        (["evaluate", "RUN", "seed=1", "seed=2"], "seed is given twice"),
        (["evaluate", "RUN", "num_steps=few"], "num_steps=few is not valid; it must be: integer"),
        (
            ["plot", "RUN", "y=reward"],
            "unknown option y; there are what, x, out, overwrite, trust\n",
        ),
        (["plot", "RUN", "x=hours"], "x=hours is not valid; it must be: steps|frames|minutes"),
        (["play", "RUN", "out=/proc"], "out=/proc must end in .mp4 or .gif"),
        (["play", "RUN", "out=/dev/null/a.gif"], "there is no directory /dev/null; make it first"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_gives_one_message_and_exit_code_1(
    arguments: list[str], message: str, run_dir, capsys
) -> None:
    given = [str(run_dir) if each == "RUN" else each for each in arguments]
    assert main(given) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


def test_file_that_cannot_be_written_gives_one_message(
    run_dir, tmp_path, capsys, monkeypatch
) -> None:
    out = tmp_path / "scores.json"
    monkeypatch.setattr("secrets.token_hex", lambda _: "0")
    (tmp_path / ".scores.json.0.part").mkdir()  # in the way of the temporary file
    options = ["num_steps=20", "num_envs=2", "serial=true", f"out={out}"]
    assert main(["evaluate", str(run_dir), *options]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert str(out) in err


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
    assert "python launch/play.py RUN" in text


@pytest.mark.parametrize("tool", TOOLS)
def test_help_lists_the_options_of_each_tool(tool: str, capsys) -> None:
    assert main([tool, "--help"]) == 0
    printed = capsys.readouterr().out
    assert f"python launch/{tool}.py RUN" in printed
    assert "trust=false  (true|false)" in printed


def test_directory_is_no_output(tmp_path) -> None:
    (tmp_path / "a.png").mkdir()
    with pytest.raises(ValueError, match=r"a\.png is a directory; name a file"):
        check_output(tmp_path / "a.png", (".png",), overwrite=True)


def test_directory_that_may_not_be_written_to_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)  # root may everywhere
    with pytest.raises(ValueError, match=r"may not be written to; choose another"):
        check_output(tmp_path / "a.png", (".png",), overwrite=False)


def test_progress_in_a_terminal_is_a_bar_that_goes_away() -> None:
    console = Console(force_terminal=True, width=80, color_system=None)
    with console.capture() as capture, show_progress(console, "steps", 8) as show:
        show(4)
    assert "steps" in capture.get()
    assert "50%" in capture.get()


def test_progress_of_games_behind_the_last_step_is_told_as_such() -> None:
    console = Console(force_terminal=True, width=80, color_system=None)
    with console.capture() as capture, show_progress(console, "steps", 8) as show:
        show(9)
    assert "the last games" in capture.get()
    assert "100%" in capture.get()


def test_progress_elsewhere_is_a_line_now_and_then(monkeypatch) -> None:
    monkeypatch.setattr("accel_rl.tools.output.LINE_SECONDS", 0.0)
    console = Console(width=80, force_terminal=False)
    with console.capture() as capture, show_progress(console, "steps", 8000) as show:
        show(4000)
        show(8001)
    said = "steps: 4,000 of 8,000\nsteps: all 8,000; the last games are played to their end\n"
    assert capture.get() == said


def test_version_is_told(capfd) -> None:
    assert main(["--version"]) == 0
    assert capfd.readouterr().out == f"{accel_rl.__version__}\n"
