"""A Gymnasium environment that goes wrong in or after its third step: one function for a fault.

The line of each fault has the comment ``# here``, which messages are to name. The tables below the
faults have what samplers say of them.
"""

import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

FAULTS: dict[str, Callable[[], Any]] = {}
"""what the third step does, by name; it returns in its place what is not None"""
IN_RESET: set[str] = set()
"""faults of the reset after the third step, which ends the episode"""
IN_CLOSE: set[str] = set()
"""faults of `close`, after three steps"""


def fault(function: Callable[[], Any]) -> Callable[[], Any]:
    FAULTS[function.__name__] = function
    return function


def fault_of_reset(function: Callable[[], Any]) -> Callable[[], Any]:
    IN_RESET.add(function.__name__)
    return fault(function)


def fault_of_close(function: Callable[[], Any]) -> Callable[[], Any]:
    IN_CLOSE.add(function.__name__)
    return fault(function)


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape or 3, np.float32)


class Faulty(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, name: str) -> None:
        self.name, self.num_steps = name, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if self.num_steps == 3 and self.name in IN_RESET:
            FAULTS[self.name]()
        return zeros(), {}

    def step(self, action: int) -> Any:
        self.num_steps += 1
        is_third, is_later = self.num_steps == 3, self.name in IN_RESET | IN_CLOSE
        returned = FAULTS[self.name]() if is_third and not is_later else None
        ends = is_third and self.name in IN_RESET
        return (zeros(), 0.0, ends, False, {}) if returned is None else returned

    def close(self) -> None:
        if self.num_steps >= 3 and self.name in IN_CLOSE:
            FAULTS[self.name]()


class IgnoresSeeds(Faulty):
    def reset(self) -> Any:  # type: ignore[override]
        return zeros(), {}


@fault
def nothing() -> None:
    pass


@fault
def raises() -> None:
    raise RuntimeError("the simulator broke")  # here


@fault
def raises_without_text() -> None:
    class SilentError(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")  # here

    raise SilentError


@fault
def raises_interrupt() -> None:
    raise KeyboardInterrupt  # here


@fault
def raises_what_is_no_exception() -> None:
    raise GeneratorExit  # here


@fault
def recurses() -> None:
    recurses()  # here


@fault
def exits() -> None:
    sys.exit(0)  # here


@fault
def exits_at_once() -> None:
    os._exit(0)


@fault
def segfaults() -> None:
    ctypes.string_at(0)  # here


@fault
def aborts() -> None:
    ctypes.PyDLL(None).abort()  # here


@fault
def divides_by_zero_in_c() -> None:
    os.kill(os.getpid(), signal.SIGFPE)  # here


@fault
def hangs() -> None:
    time.sleep(600)  # here


@fault
def hangs_in_c() -> None:
    ctypes.PyDLL(None).sleep(600)  # here


@fault
def stops_itself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@fault
def takes_all_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, resource.RLIM_INFINITY))
    bytearray(16 << 30)  # here


@fault
def takes_all_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    open("/dev/null")  # here


@fault
def closes_descriptors() -> None:
    os.closerange(3, 4_096)  # a long run of tests has large numbers


@fault
def closes_standard_descriptors() -> None:
    os.closerange(0, 3)
    os.write(1, b"index")  # here


@fault
def asks() -> None:
    input()  # here


@fault
def prints() -> None:
    print("chatter " * 1_000)
    os.write(1, b"raw chatter\n")


@fault
def starts_thread() -> None:
    threading.Thread(target=time.sleep, args=(600,)).start()


@fault
def starts_program() -> None:
    _note(subprocess.Popen(["sleep", "600"]))


@fault
def starts_session_and_raises() -> None:
    _note(subprocess.Popen(["sleep", "600"], start_new_session=True))
    raise RuntimeError("the simulator broke")  # here


@fault
def changes_directory() -> None:
    os.chdir("/")


@fault
def is_slow() -> None:
    time.sleep(0.3)


@fault
def handles_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


@fault
def returns_nan_reward() -> Any:
    return zeros(), float("nan"), False, False, {}


@fault
def returns_infinite_reward() -> Any:
    return zeros(), float("inf"), False, False, {}


@fault
def returns_text_as_reward() -> Any:
    return zeros(), "1", False, False, {}


@fault
def returns_array_as_reward() -> Any:
    return zeros(), zeros(2), False, False, {}


@fault
def returns_large_reward() -> Any:
    return zeros(), -1e300, False, False, {}


@fault
def returns_another_shape() -> Any:
    return zeros(4), 0.0, False, False, {}


@fault
def changes_its_space() -> Any:
    Faulty.observation_space = spaces.Box(-1, 1, (4,), np.float32)
    return zeros(4), 0.0, False, False, {}


@fault
def returns_another_dtype() -> Any:
    return np.zeros(3, complex), 0.0, False, False, {}


@fault
def returns_objects() -> Any:
    return np.array([None] * 3), 0.0, False, False, {}


@fault
def returns_ragged_lists() -> Any:
    return [[1], [2, 3]], 0.0, False, False, {}


@fault
def returns_four_values() -> Any:
    return zeros(), 0.0, False, {}


@fault
def returns_text_as_flag() -> Any:
    return zeros(), 0.0, "no", False, {}


@fault
def returns_nan_observation() -> Any:
    return np.full(3, np.nan, np.float32), 0.0, False, False, {}


@fault
def returns_infinite_observation() -> Any:
    return np.full(3, np.inf, np.float32), 0.0, False, False, {}


@fault_of_reset
def raises_in_reset() -> None:
    raise RuntimeError("no next episode")  # here


@fault_of_reset
def hangs_in_reset() -> None:
    time.sleep(600)  # here


@fault_of_reset
def resets_slowly() -> None:
    time.sleep(0.3)


@fault_of_close
def raises_in_close() -> None:
    raise RuntimeError("it cannot be closed")  # here


@fault_of_close
def hangs_in_close() -> None:
    time.sleep(600)  # here


@fault_of_close
def closes_slowly() -> None:
    time.sleep(0.3)
    with open(os.environ["PIDS"], "a") as file:
        file.write("closed")


TOLD = {
    "raises": "RuntimeError: the simulator broke",
    "raises_without_text": "ValueError: no text",
    "recurses": "RecursionError",
    "exits": "SystemExit: 0",
    "asks": "EOFError",
    "starts_session_and_raises": "RuntimeError",
    "returns_nan_reward": "returned the reward nan",
    "returns_infinite_reward": "returned the reward inf",
    "returns_text_as_reward": r"it returned StepResult\(reward='1', .* is no StepResult",
    "returns_array_as_reward": r"it returned StepResult\(reward=array.* is no StepResult",
    "returns_large_reward": "returned the reward -inf",
    "returns_another_shape": r"shape \(4,\) from step; its observation space says \(3,\)",
    "changes_its_space": r"shape \(4,\) from step; its observation space says \(3,\)",
    "returns_another_dtype": "dtype complex128 .* says float32",
    "returns_objects": "dtype object .* says float32",
    "returns_ragged_lists": "ValueError: setting an array element",
    "returns_four_values": "it returned 4 values",
    "returns_text_as_flag": "terminated of type str",
    "raises_in_reset": "failed in reset: RuntimeError: no next episode",
}
"""faults that both samplers tell, with what they say"""
ONLY_A_WORKER = {
    "raises_interrupt": "KeyboardInterrupt",
    "raises_what_is_no_exception": "GeneratorExit",
    "segfaults": r"signal 11 \(Segmentation fault\)",
    "aborts": r"signal 6 \(Aborted\)",
    "divides_by_zero_in_c": r"signal 8 \(Floating point exception\)",
    "hangs": r"step_timeout_seconds=0\.7; its simulator hangs",
    "hangs_in_c": r"step_timeout_seconds=0\.7; its simulator hangs",
    "hangs_in_reset": r"step_timeout_seconds=0\.7; its simulator hangs",
    "takes_all_memory": "MemoryError",
    "takes_all_descriptors": "Too many open files",
    "closes_standard_descriptors": "Bad file descriptor",
}
"""faults that would end, stop or spoil the process that has them"""
WITHOUT_PLACE = {
    "exits_at_once": "exit status 0 and without a report: an environment ended the process",
    "closes_descriptors": "exit status 1 and without a report: .*closed files that are not its own",
    "stops_itself": "its simulator hangs, or needs more time",
}
HARMLESS = ("nothing", "prints", "starts_thread", "starts_program", "changes_directory")
HARMLESS = (*HARMLESS, "is_slow", "handles_signals", "resets_slowly", "closes_slowly")
HARMLESS = (*HARMLESS, "returns_nan_observation", "returns_infinite_observation")
WARNED = {
    "raises_in_close": "failed in close: RuntimeError: it cannot be closed",
    "hangs_in_close": "did not close its environments in time",
}
"""faults after all results are there, of which a worker warns"""


def line_of(name: str) -> int | None:
    """The line that the message about a fault names, which has ``# here``; None: it names none."""
    code = FAULTS[name].__code__
    lines = Path(__file__).read_text().splitlines()
    first = code.co_firstlineno  # of the decorator
    for number in range(first, min(first + 10, len(lines))):
        if "# here" in lines[number]:
            return number + 1
        if not lines[number]:
            break
    return None


def _note(program: subprocess.Popen[bytes]) -> None:
    with open(os.environ["PIDS"], "a") as file:
        file.write(f"{program.pid}\n")
