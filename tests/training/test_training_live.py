"""The live panel: curves, cores and keys; in a notebook HTML."""

import io
import math
import os
import pty
import signal
import sys
import termios
import types

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.panel import Panel

from accel_rl.cli.launcher import _Watch
from accel_rl.keys import Keys
from accel_rl.system.stopping import StopRequest
from accel_rl.system.topology import CorePlan
from accel_rl.training.live import History, LivePanel, NotebookPanel, braille, make_progress
from accel_rl.training.progress import Bottleneck, Status, TimeSplit

PLAN = CorePlan(((0,), (1,)), (0, 1))
KEYS_IN_TERMINAL = """
import sys, time
from contextlib import closing
from accel_rl.keys import Keys
from accel_rl.system.stopping import StopRequest
with closing(Keys()) as keys, StopRequest(keys.close, asks=lambda: "q" in keys.read()) as stop:
    stop.hold()
    print("ready", keys.are_read, flush=True)
    while not stop.is_asked():
        time.sleep(0.01)
        if "raise" in sys.argv:
            raise RuntimeError
    print("stopped by", stop.received.name, flush=True)
    while "ignore" in sys.argv:
        time.sleep(0.01)
"""


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
        bottleneck=Bottleneck("simulators", 0.4, "serial=false steps them in parallel"),
    )


def terminal(width: int = 80, height: int = 24) -> Console:
    environment = {"TERM": "xterm"}
    file = io.TextIOWrapper(io.BytesIO(), "utf-8")
    return Console(file=file, width=width, height=height, force_terminal=True, _environ=environment)


def plain(console: Console, drawn: object) -> list[str]:
    copy = Console(file=io.StringIO(), width=console.width, height=console.height)
    copy.print(drawn)
    return copy.file.getvalue().splitlines()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("width", "height", "lines"), [(80, 24, 13), (200, 50, 18), (80, 16, 8)])
def test_panel_fills_the_terminal_with_curves_and_leaves_lines_for_messages(
    width: int, height: int, lines: int
) -> None:
    console = terminal(width, height)
    progress = make_progress(console, "catch", PLAN, 4)
    assert isinstance(progress, LivePanel)
    for step in range(1, 9):
        progress.show(status(100 * step, score=math.nan if step < 3 else step / 10))
    drawn = plain(console, progress._render(status(), ""))
    progress.close()
    assert {cell_len(each) for each in drawn} == {width}
    assert len(drawn) == lines
    text = "\n".join(drawn)
    assert "serial=false" in text
    if height > 16:
        assert "score, 0.3 to 0.8" in text and "steps/s, 200 to 900" in text
        assert "first of 4 learners on CPUs 0-1, 2 workers on CPUs 0-1" in text


def test_terminal_without_unicode_gets_no_curves() -> None:
    console = terminal()
    console.file.reconfigure(encoding="ascii", errors="replace")  # type: ignore[attr-defined]
    progress = LivePanel(console, "catch")
    progress.show(status())
    progress.close()
    console.file.flush()
    drawn = console.file.buffer.getvalue()  # type: ignore[attr-defined]
    assert b"1000 of 10.0k steps" in drawn and b"cores" not in drawn


def test_braille_draws_a_rising_line_from_the_lower_left_to_the_upper_right() -> None:
    assert braille([0.0, 7.0], 4, 2) == ["⠀⠀⡠⠊", "⡠⠊⠀⠀"]
    assert braille([5.0], 2, 1) == ["⠤⠤"]


def test_history_keeps_the_whole_run_in_few_values() -> None:
    history = History()
    for number in range(10_000):
        history.add(float(number))
        history.add(math.nan)
    values = history.values()
    assert 256 <= len(values) <= 512 and values == sorted(values)
    assert values[0] == 0 and values[-1] == 9999


class Typed(Keys):
    """Keys that a test types."""

    def __init__(self, typed: str) -> None:
        super().__init__(-1)
        self._typed = typed

    def read(self) -> str:
        typed, self._typed = self._typed, ""
        return typed


def test_p_pauses_the_drawing_and_p_goes_on() -> None:
    console = terminal()
    progress = LivePanel(console, "catch")
    progress.show(status())

    def length() -> int:
        console.file.flush()
        return len(console.file.buffer.getvalue())  # type: ignore[attr-defined]

    progress._keys = Typed("p")
    assert not progress.is_stop_asked()
    before = length()
    assert b"paused" in console.file.buffer.getvalue()  # type: ignore[attr-defined]
    progress.show(status(2000))
    assert length() == before
    progress._keys = Typed("P")
    assert not progress.is_stop_asked()
    assert length() > before
    progress.close()


def test_q_asks_to_stop_as_ctrl_c_does() -> None:
    progress = LivePanel(terminal(), "catch")
    stop = StopRequest(asks=progress.is_stop_asked)
    assert not stop.is_asked()
    progress._keys = Typed("xq")
    assert stop.is_asked() and stop.received == signal.SIGINT and not stop.is_own
    progress._keys = Typed("q")
    assert stop.is_asked()  # a second one ends nothing
    progress.close()


def test_launcher_stops_all_learners_for_q_and_tells_the_first_of_p() -> None:
    sent: list[tuple[int, int]] = []
    learners = [
        types.SimpleNamespace(send_signal=lambda number, rank=rank: sent.append((rank, number)))
        for rank in range(2)
    ]
    watch = _Watch(learners, None, False, -1, Typed(""))  # type: ignore[arg-type]
    watch._follow("p")
    watch._follow("q")
    watch._follow("q")
    assert sent == [(0, signal.SIGURG), (0, signal.SIGINT), (1, signal.SIGINT)]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("typed", "argument", "code"),
    [
        ("q", "", 0),
        ("\x03", "", 0),
        ("\x03\x03", "ignore", -signal.SIGINT),
        ("", "raise", 1),
    ],
    ids=["q", "ctrl_c", "ctrl_c_twice", "exception"],
)
def test_terminal_has_its_settings_back_after_every_end(
    typed: str, argument: str, code: int
) -> None:
    child, terminal = pty.fork()  # which is in the foreground of a new terminal
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-c", KEYS_IN_TERMINAL, argument])

    def read_until(text: str) -> None:
        read = ""
        while text not in read:
            read += os.read(terminal, 1024).decode()

    def settings() -> tuple[bool, bool]:
        flags = termios.tcgetattr(terminal)[3]
        return bool(flags & termios.ECHO), bool(flags & termios.ICANON)

    assert settings() == (True, True)
    read_until("ready True")
    if typed:
        assert settings() == (False, False)
        os.write(terminal, typed[0].encode())
        read_until("stopped by SIGINT")
        os.write(terminal, typed[1:].encode())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code
    assert settings() == (True, True)
    os.close(terminal)


def test_no_keys_are_read_from_a_terminal_in_whose_foreground_others_are() -> None:
    master, terminal = pty.openpty()
    before = termios.tcgetattr(terminal)
    keys = Keys(terminal)
    os.write(master, b"q\n")
    assert not keys.are_read and keys.read() == ""
    keys.close()
    assert termios.tcgetattr(terminal) == before
    os.close(master)
    os.close(terminal)


def test_panel_in_a_notebook_is_html_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, drawn: Panel) -> None:
            shown[-1] = drawn._repr_mimebundle_([], [])["text/html"]

    def display(drawn: Panel, display_id: bool = False) -> Handle:
        assert display_id
        shown.append(drawn._repr_mimebundle_([], [])["text/html"])
        return Handle()

    module = types.SimpleNamespace(display=display)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(display=module))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    progress = make_progress(Console(force_jupyter=True), "<catch>", PLAN)
    assert isinstance(progress, NotebookPanel)
    progress.show(status(1000))
    progress.show(status(2000))
    progress.close()
    assert len(shown) == 1 and "<span" in shown[0]
    assert "&lt;catch&gt;" in shown[0] and "2000 of 10.0k steps" in shown[0]
