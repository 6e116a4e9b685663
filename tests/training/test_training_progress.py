"""The live panel, plain lines and the summary; where the time goes and what limits it."""

import io
import logging
import math
import re
import signal
from pathlib import Path

import pytest
from rich.console import Console

from accel_rl.cli.parse import parse_arguments
from accel_rl.samplers import SamplerTimes
from accel_rl.training.progress import (
    LivePanel,
    PlainLines,
    ProgressHandler,
    Status,
    curve,
    line,
    make_progress,
    summary,
)
from accel_rl.training.time_split import Bottleneck, Reading, TimeSplit, find_bottleneck

ESCAPE = "\x1b"
LEARNING = TimeSplit(0, 0.1, 0.9, 0, 0.1)


def status(**changes: object) -> Status:
    values: dict = {
        "steps": 1_260_000,
        "since_steps": 0,
        "planned_steps": 25_000_000,
        "frame_skip": 4,
        "seconds": 423.4,
        "steps_per_second": 3_012.3,
        "num_episodes": 12_345,
        "scores": {
            "episode_return_raw_mean": 123_456.789,
            "episode_return_raw_min": -20.0,
            "episode_return_raw_max": 999_999.0,
        },
        "split": TimeSplit(0.4, 0.22, 0.35, 0.03, 0.7),
        "bottleneck": Bottleneck("simulators", 0.4, "more CPU cores would help"),
    }
    return Status(**(values | changes))


def render(renderable: object, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(renderable)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


NO_SCORE = {"num_episodes": 0, "scores": {"episode_return_raw_mean": math.nan}}
NO_STEP = {"steps": 0, "steps_per_second": 0.0, "bottleneck": Bottleneck("simulators", 0.0, "")}


@pytest.mark.parametrize(
    ("changes", "stopped_by", "is_cut", "said", "unsaid"),
    [
        ({}, signal.SIGTERM, False, "stopped by SIGTERM; with resume=runs/x", ""),
        ({}, None, False, "finished", "resume"),
        ({"since_steps": 9_000}, None, False, "frames/s since the resume at 9,000 steps", ""),
        (NO_SCORE, None, False, "no episode has finished: too few steps, or does the", ""),
        (NO_SCORE | NO_STEP, None, True, "ended after max_minutes, before its first", "limit"),
        ({"frame_skip": 1}, None, False, "steps/s", "frames"),
    ],
    ids=["stopped", "finished", "resumed", "no_score", "no_step", "no_frames"],
)
def test_summary_says_how_the_run_ended(changes, stopped_by, is_cut, said, unsaid) -> None:
    lines = render(summary(status(**changes), Path("runs/x"), 1, stopped_by, is_cut), 80)
    text = " ".join("\n".join(lines).split())
    assert all(part in text for part in said.split("; "))
    assert not unsaid or unsaid not in text


@pytest.mark.parametrize("color", [{}, {"NO_COLOR": "1"}, {"CI": "true", "GITHUB_ACTIONS": "1"}])
def test_in_a_file_there_are_lines_without_escape_codes(color: dict, monkeypatch) -> None:
    for name, value in color.items():
        monkeypatch.setenv(name, value)
    console = Console(file=io.StringIO(), width=80)
    progress = make_progress(console, "x")
    assert isinstance(progress, PlainLines)
    progress.show(status())
    progress.say("[a] message")
    progress.close()
    assert console.file.getvalue() == f"{line(status())}\n[a] message\n"  # type: ignore[attr-defined]


def test_in_a_terminal_the_panel_is_drawn_over_itself_and_the_cursor_comes_back() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, _environ={"TERM": "xterm"})
    progress = make_progress(console, "pong, a2c, seed 0")
    assert isinstance(progress, LivePanel)
    progress.show(status())
    progress.say("worker 3 was replaced")
    progress.show(status(steps=2_000_000))
    progress.close()
    text = console.file.getvalue()  # type: ignore[attr-defined]
    hidden, shown = f"{ESCAPE}[?25l", f"{ESCAPE}[?25h"
    assert text.rindex(shown) > text.rindex(hidden)
    assert "worker 3 was replaced" in text
    assert "2.00M of 25.00M" in re.sub(rf"{ESCAPE}\[[0-9;?]*[a-zA-Z]", "", text)


@pytest.mark.parametrize(
    ("steps", "scores", "text"),
    [
        ([0, 30], [0.0, 3.0], "3┤  ▃█\n0┤ ▅██"),
        ([10, 30], [2.0, 2.0], "2┤████\n0┤████"),
        ([10, 30], [-4.0, -2.0], " 0┤    \n-4┤  ▄█"),
        ([10], [0.0], "1┤    \n0┤    "),
    ],
    ids=["rising", "constant", "below_0", "one_of_0"],
)
def test_curve_is_over_steps_from_0_and_scores_from_0(
    steps: list[int], scores: list[float], text: str
) -> None:
    lines = curve("score", steps, scores, text.index("┤") + 5, 2).plain.split("\n")
    assert (lines[0], "\n".join(lines[1:3])) == ("score", text)
    assert lines[3].endswith(f"{steps[-1]} steps")


def test_from_the_first_second_on_random_first_steps_are_shown_and_nothing_is_red() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, _environ={"TERM": "xterm"})
    progress = LivePanel(console, "catch")
    progress.prepare(0, 16_000)
    assert "simulators start" in "\n".join(render(progress._live.renderable, 80))
    progress.prepare(4_000, 16_000)
    assert "4000 of about 16.0k" in "\n".join(render(progress._live.renderable, 80))
    progress.show(status())
    console.width = 9  # as after a change of the window
    progress.show(status())
    progress.close()
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert not re.search(rf"{ESCAPE}\[(\d+;)*31m|249;38;114", text)


def test_warnings_of_the_library_reach_the_display() -> None:
    console = Console(file=io.StringIO(), width=80)
    handler = ProgressHandler(PlainLines(console))
    handler.emit(logging.makeLogRecord({"msg": "%d workers", "args": (3,), "levelname": "WARNING"}))
    assert console.file.getvalue() == "warning: 3 workers\n"  # type: ignore[attr-defined]


def test_time_split_is_what_passed_between_two_readings() -> None:
    before = Reading(10.0, *SamplerTimes(waiting=2.0, policy=3.0, simulating=5.0), 4.0)
    after = Reading(20.0, *SamplerTimes(waiting=6.0, policy=4.0, simulating=12.0), 8.0)
    nan = math.nan
    expected = (0.4, 0.1, 0.4, 0.1, 0.7, 0, 0, nan, 0)
    assert TimeSplit.between(before, after) == pytest.approx(expected, nan_ok=True)
    # 30 seconds more, of which 30 in an evaluation
    later = after._replace(wall=50.0, evaluating=30.0, logging=0.5, saving=1.0)
    # learning had a core in half of its 4 seconds, and two CPUs were idle all the time
    later = later._replace(core=3.0, idle=20.0)
    expected = (0.4, 0.1, 0.4, 0.1, 0.7, 0.05, 0.1, 0.5, 2.0)
    assert TimeSplit.between(before._replace(core=1.0), later) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("split", "name", "share"),
    [
        (TimeSplit(0.6, 0.2, 0.1, 0.1, 0.75), "simulators", 0.6),
        (TimeSplit(0.0, 0.7, 0.2, 0.1, 0.3), "inference", 0.4),  # 0.3 of it is hidden anyway
        (TimeSplit(0.05, 0.55, 0.4, 0.0, 0.55), "learning", 0.4),  # inference hides but for 0.05
        (TimeSplit(0.1, 0.1, 0.2, 0.6, 0.1), "learning", 0.2),  # the rest was not measured
        (TimeSplit(0.1, 0.1, 0.2, 0.6, 0.1, logging=0.4), "logging", 0.4),
        (TimeSplit(0.1, 0.1, 0.2, 0.6, 0.1, 0.2, saving=0.4), "checkpoints", 0.4),
    ],
    ids=["simulators", "inference", "learning", "rest", "logging", "checkpoints"],
)
def test_bottleneck_is_what_would_save_most(split: TimeSplit, name: str, share: float) -> None:
    found = find_bottleneck(split, parse_arguments(["env=catch"]), on_gpu=False)
    assert found.name == name
    assert found.share == pytest.approx(share)


@pytest.mark.parametrize(
    ("split", "options", "on_gpu", "hint"),
    [
        (TimeSplit(0.9, 0.05, 0.05, 0, 0.9, idle=1), "num_workers=0", False, "num_workers=none"),
        (TimeSplit(0.9, 0.05, 0.05, 0, 0.9, idle=1), "", False, "larger num_envs"),
        (TimeSplit(0.9, 0.05, 0.05, 0, 0.9), "", False, "more CPU cores"),
        (TimeSplit(0.9, 0.05, 0.05, 0, 0.9), "num_workers=0", False, "more CPU cores"),
        (TimeSplit(0, 0.9, 0.1, 0, 0.1), "", False, "larger num_envs, or a GPU"),
        (LEARNING, "algo=a2c", False, "larger num_envs, or a GPU"),
        (LEARNING, "algo=ppo", False, "fewer epochs or a larger minibatch_size"),
        (LEARNING, "algo=dqn", False, "smaller training_intensity"),
        (LEARNING._replace(idle=1), "algo=a2c", False, "overlap=true"),
        (LEARNING._replace(idle=1), "algo=a2c num_workers=0", False, "learners=2 num_workers=0"),
        (LEARNING._replace(idle=1), "algo=dqn num_workers=0", False, "training_intensity"),
        (TimeSplit(0, 0.9, 0.1, 0, 0.1), "", True, "larger num_envs"),
        (LEARNING, "algo=ppo", True, "overlap=true"),
        (LEARNING, "algo=ppo overlap=true", True, "precision=tf32"),
        (LEARNING, "algo=ppo overlap=true precision=tf32", True, "a smaller model"),
        (LEARNING, "algo=a2c overlap=true precision=tf32", True, "larger num_envs"),
        (LEARNING, "algo=ga3c", True, "precision=tf32"),
        (TimeSplit(0, 0, 0, 1, 0, logging=1), "", True, "larger log_interval"),
        (TimeSplit(0, 0, 0, 1, 0, saving=1), "", True, "larger checkpoint_interval"),
    ],
)
def test_hint_says_what_to_change(split, options, on_gpu, hint) -> None:
    config = parse_arguments(["env=catch", *options.split()])
    assert re.search(hint, find_bottleneck(split, config, on_gpu=on_gpu).hint)


@pytest.mark.parametrize(("flags", "hint"), [("sse avx512_bf16", "bfloat16"), ("sse", "epochs")])
def test_bfloat16_helps_games_where_the_processor_has_it(flags, hint, monkeypatch) -> None:
    monkeypatch.setattr("accel_rl.training.time_split.cpu_info", lambda name: flags)
    found = find_bottleneck(LEARNING, parse_arguments(["algo=ppo", "env=pong"]), on_gpu=False)
    assert hint in found.hint
