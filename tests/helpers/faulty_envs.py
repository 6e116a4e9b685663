"""A Gymnasium environment that goes wrong in or after its third step: one function for a fault.

The line of each fault has the comment ``# here``, which messages are to name.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces


class Fault(NamedTuple):
    """``act`` returns what the step returns in place of its own, if not None.

    ``kind``: "told" by both samplers, with ``says``; "worker": only by a worker, as it would end,
    stop or spoil the process that has it; "unplaced": likewise, without file and line; "allowed";
    "warned" of, once all results are there.
    """

    act: Callable[[], Any]
    kind: str
    says: str
    when: str


FAULTS: dict[str, Fault] = {}
HANGS = r"step_timeout_seconds=0\.7; its simulator hangs"


def fault(kind: str, says: str = "", when: str = "step") -> Callable[..., Any]:
    """``when``: in which method after the third step; that step ends the episode for a reset."""

    def note(function: Callable[[], Any]) -> Callable[[], Any]:
        FAULTS[function.__name__] = Fault(function, kind, says, when)
        return function

    return note


class Faulty(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, name: str) -> None:
        self.fault, self.num_steps = FAULTS[name], 0

    def act(self, when: str) -> Any:
        return self.fault.act() if self.num_steps == 3 and self.fault.when == when else None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.act("reset")
        return ZEROS, {}

    def step(self, action: int) -> Any:
        self.num_steps += 1
        returned = self.act("step")
        ends = self.num_steps == 3 and self.fault.when == "reset"
        return (ZEROS, 0.0, ends, False, {}) if returned is None else returned

    def close(self) -> None:
        if self.num_steps >= 3 and self.fault.when == "close":
            self.fault.act()


class IgnoresSeeds(Faulty):
    def reset(self) -> Any:  # type: ignore[override]
        return ZEROS, {}


@fault("allowed")
def nothing() -> None:
    pass


@fault("told", "RuntimeError: the simulator broke")
def raises() -> None:
    raise RuntimeError("the simulator broke")  # here


@fault("told", "ValueError: no text")
def raises_without_text() -> None:
    class SilentError(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")  # here

    raise SilentError


@fault("told", "failed in reset: RuntimeError: no next episode", "reset")
def raises_in_reset() -> None:
    raise RuntimeError("no next episode")  # here


@fault("worker", "KeyboardInterrupt")
def raises_interrupt() -> None:
    raise KeyboardInterrupt  # here


@fault("told", "SystemExit: 0")
def exits() -> None:
    sys.exit(0)  # here


@fault("worker", r"signal 11 \(Segmentation fault\)")
def segfaults() -> None:
    ctypes.string_at(0)  # here


@fault("worker", HANGS)
def hangs_in_c() -> None:
    ctypes.PyDLL(None).sleep(600)  # here


@fault("worker", HANGS, "reset")
def hangs_in_reset() -> None:
    time.sleep(600)  # here


@fault("unplaced", "its simulator hangs, or needs more time")
def stops_itself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@fault("unplaced", "exit status 1 and without a report: .*closed files that are not its own")
def closes_descriptors() -> None:
    os.closerange(3, 4_096)  # a long run of tests has large numbers


@fault("worker", "Bad file descriptor")
def closes_standard_descriptors() -> None:
    os.closerange(0, 3)
    os.write(1, b"index")  # here


@fault("told", "EOFError")
def asks() -> None:
    input()  # here


@fault("allowed")
def starts_program() -> None:
    _note(subprocess.Popen(["sleep", "600"]))


@fault("told", "RuntimeError")
def starts_session_and_raises() -> None:
    _note(subprocess.Popen(["sleep", "600"], start_new_session=True))
    raise RuntimeError("the simulator broke")  # here


@fault("allowed")
def handles_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


@fault("warned", "failed in close: RuntimeError: it cannot be closed", "close")
def raises_in_close() -> None:
    raise RuntimeError("it cannot be closed")  # here


@fault("warned", "did not close its environments in time", "close")
def hangs_in_close() -> None:
    time.sleep(600)  # here


@fault("allowed", when="close")
def closes_slowly() -> None:
    time.sleep(0.3)
    with open(os.environ["PIDS"], "a") as file:
        file.write("closed")


ZEROS = np.zeros(3, np.float32)
NO_NUMBER = r"it returned a reward of type str; it must be one number"
OTHER_SHAPE = r"shape \(4,\) from step; its observation space says \(3,\)"
for _name, _says, *_returned in (
    ("nan_reward", "returned the reward nan", ZEROS, float("nan"), False, False, {}),
    ("large_reward", "returned the reward -inf", ZEROS, -1e300, False, False, {}),
    ("text_as_reward", NO_NUMBER, ZEROS, "1", False, False, {}),
    ("another_shape", OTHER_SHAPE, np.zeros(4, np.float32), 0.0, False, False, {}),
    ("another_dtype", "complex128 .* says float32", np.zeros(3, complex), 0.0, False, False, {}),
    ("four_values", "it returned 4 values", ZEROS, 0.0, False, {}),
    ("text_as_flag", "terminated of type str", ZEROS, 0.0, "no", False, {}),
    ("nan_observation", "", np.full(3, np.nan, np.float32), 0.0, False, False, {}),
):
    _act = lambda returned=tuple(_returned): returned  # noqa: E731
    FAULTS[f"returns_{_name}"] = Fault(_act, "told" if _says else "allowed", _says, "step")


def line_of(name: str) -> int | None:
    """The line that the message about a fault names, which has ``# here``; None: it names none."""
    code = FAULTS[name].act.__code__
    lines = Path(__file__).read_text().splitlines()
    for number in range(code.co_firstlineno, min(code.co_firstlineno + 10, len(lines))):
        if "# here" in lines[number]:
            return number + 1
        if not lines[number]:
            break
    return None


def _note(program: subprocess.Popen[bytes]) -> None:
    with open(os.environ["PIDS"], "a") as file:
        file.write(f"{program.pid}\n")
