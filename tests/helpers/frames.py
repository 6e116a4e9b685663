"""The functions of accel_rl on a path, counted by a profile hook."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import accel_rl

_PACKAGE = str(Path(accel_rl.__file__).parent)


def frames_of(call: Callable[[], object]) -> list[str]:
    """Return the functions of accel_rl that ``call`` enters in this thread, as ``file:name``.

    A generator counts each time it goes on.
    """
    entered: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(_PACKAGE):
            entered.append(f"{Path(code.co_filename).name}:{code.co_name}")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return entered
