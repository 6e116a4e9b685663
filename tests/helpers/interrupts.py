"""Ctrl-C at a chosen moment of chosen functions, for tests of what it leaves behind."""

import dis
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

_LOOKS = {"CALL", "CALL_KW", "CALL_FUNCTION_EX", "RESUME", "JUMP_BACKWARD"}
"""behind these the interpreter looks for signals, and only there"""


def codes(*functions: Any) -> set[CodeType]:
    return {getattr(each, "__wrapped__", each).__code__ for each in functions}


@contextmanager
def interrupted(within: set[CodeType], at: int) -> Iterator[list[int]]:
    """Raise KeyboardInterrupt once within functions, at a moment counted from 0 over all of them.

    Moments are where Python would look for signals. Gives a list, whose one item is the number of
    those that have passed.
    """
    passed = [0]
    last: dict[FrameType, str] = {}
    names = {code: {i.offset: i.opname for i in dis.get_instructions(code)} for code in within}

    def local(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        if event == "opcode":
            before, last[frame] = last.get(frame), names[frame.f_code][frame.f_lasti]
            if before in _LOOKS:
                passed[0] += 1
                if passed[0] - 1 == at:
                    raise KeyboardInterrupt  # which ends tracing, too
        return local

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        if frame.f_code not in within:
            return None
        frame.f_trace_opcodes, last[frame] = True, "RESUME"
        return local

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield passed
    finally:
        sys.settrace(before)
