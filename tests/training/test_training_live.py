"""The live panel with its curve; in a notebook lines."""

import io
import math

import pytest
from rich.cells import cell_len
from rich.console import Console

from accel_rl.training.live import LivePanel, curve, make_progress
from accel_rl.training.progress import Bottleneck, PlainLines, Status, TimeSplit


def status(steps: int = 1000, score: float = 3.0) -> Status:
    return Status(
        steps=steps,
        since_steps=0,
        planned_steps=10_000,
        frame_skip=1,
        seconds=10.0,
        steps_per_second=100.0 + steps,
        num_episodes=5,
        scores={
            "episode_return_raw_mean": score,
            "episode_return_raw_min": 0.0,
            "episode_return_raw_max": 9.0,
        },
        split=TimeSplit(0.4, 0.22, 0.35, 0.03, 0.7),
        bottleneck=Bottleneck("simulators", 0.4, "num_workers=none steps in parallel"),
    )


def terminal(width: int = 80, height: int = 24) -> Console:
    environment = {"TERM": "xterm"}
    file = io.TextIOWrapper(io.BytesIO(), "utf-8")
    return Console(file=file, width=width, height=height, force_terminal=True, _environ=environment)


@pytest.mark.parametrize(("width", "height", "lines"), [(80, 24, 18), (200, 50, 18), (80, 15, 9)])
def test_panel_fills_the_terminal_with_a_curve_and_leaves_lines_for_messages(
    width: int, height: int, lines: int
) -> None:
    console = terminal(width, height)
    progress = make_progress(console, "catch", 4)
    assert isinstance(progress, LivePanel)
    for step in range(1, 9):
        progress.show(status(100 * step, score=math.nan if step < 3 else step / 10))
    progress.close()
    copy = Console(file=io.StringIO(), width=width, height=height)
    copy.print(progress._live.renderable)
    drawn = copy.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert {cell_len(each) for each in drawn} == {width}
    assert len(drawn) == lines
    text = "\n".join(drawn)
    assert "num_workers=none" in text and "this is the first of 4" in text
    assert ("score, 0 to 0.8" in text) == (height > 15)


def test_terminal_without_unicode_gets_no_curve() -> None:
    console = terminal()
    console.file.reconfigure(encoding="ascii", errors="replace")  # type: ignore[attr-defined]
    progress = LivePanel(console, "catch")
    progress.show(status())
    progress.close()
    console.file.flush()
    drawn = console.file.buffer.getvalue()  # type: ignore[attr-defined]
    assert b"1000 of 10.0k steps" in drawn and b"score, 0 to" not in drawn


@pytest.mark.parametrize(
    ("points", "text"),
    [
        ([(0, 0.0), (30, 3.0)], "score, 0 to 3\n  ▃█\n ▅██"),
        ([(10, 2.0), (30, 2.0)], "score, 0 to 2\n████\n████"),
        ([(10, -4.0), (30, -2.0)], "score, -4 to 0\n    \n  ▄█"),
        ([(10, 0.0)], "score, 0 to 0\n    \n    "),
    ],
    ids=["rising", "constant", "below_0", "one_of_0"],
)
def test_curve_is_over_steps_from_0_and_scores_from_0(
    points: list[tuple[int, float]], text: str
) -> None:
    assert curve(points, 4, 2).plain == text


def test_curve_of_a_long_run_has_its_first_and_last_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accel_rl.training.live._MOST_POINTS", 16)
    progress = LivePanel(terminal(), "catch")
    for steps in range(100):
        progress.show(status(steps, float(steps)))
    assert progress._scores[0] == (0, 0.0) and progress._scores[-1] == (99, 99.0)
    assert 8 <= len(progress._scores) < 16
    progress.close()


def test_notebook_gets_lines() -> None:
    assert isinstance(make_progress(Console(force_jupyter=True), "catch"), PlainLines)
