"""Count what a reader walks through in one run: functions before the first step, frames to a part.

``python -m benchmarks.speed.walk [-v] [OPTION=VALUE ...]`` trains once, in a temporary directory,
and prints counts. Left out are what a module does on import, class bodies, lambdas and
comprehensions. ``-v`` prints the names, too.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import accel_rl

PACKAGE = str(Path(accel_rl.__file__).parent) + os.sep
OPTIONS = "algo=a2c env=catch num_workers=0 num_envs=8 total_steps=80 checkpoint_interval=40"
PARTS = {
    "RolloutSampler.collect": "a rollout",
    "a2c_loss": "the loss",
    "RMSProp.step_": "the update rule",
    "MetricsWriter.write": "a row of metrics",
    "write_whole": "a checkpoint",
}
"""functions whose first calls in the loop are looked at"""

Place = tuple[str, str]


class Walk:
    """A profile hook: the functions before the first rollout, and the way to each of `PARTS`."""

    def __init__(self) -> None:
        self.before: set[Place] = set()
        self.ways: dict[str, list[Place]] = {}
        self._num_imports = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE):
            return
        if code.co_name == "<module>":
            self._num_imports += {"call": 1, "return": -1}.get(event, 0)
        if event != "call" or self._num_imports:
            return
        name = code.co_qualname
        if name in PARTS and name not in self.ways and (self.ways or name == next(iter(PARTS))):
            self.ways[name] = way_to(frame)
        if not self.ways and code.co_name.isidentifier():
            self.before.add(place(frame))


def place(frame: FrameType) -> Place:
    """Return the file and the qualified name of what ``frame`` runs."""
    return frame.f_code.co_filename.removeprefix(PACKAGE), frame.f_code.co_qualname


def way_to(frame: FrameType | None) -> list[Place]:
    """Return the functions of accel_rl on the stack, outermost first."""
    way = []
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            way.append(place(frame))
        frame = frame.f_back
    return way[::-1]


def main(arguments: list[str]) -> None:
    is_long = "-v" in arguments
    options = [each for each in arguments if each != "-v"] or OPTIONS.split()
    from accel_rl.__main__ import main as command

    walk = Walk()
    with tempfile.TemporaryDirectory() as folder:
        sys.setprofile(walk)
        try:
            command(["train", *options, f"run_dir={folder}/run"])
        finally:
            sys.setprofile(None)
    files = Counter(file for file, _ in walk.before)
    print(f"{len(walk.before)} functions in {len(files)} files before the first step")
    for file, number in sorted(files.items()) if is_long else ():
        print(f"  {number:3d} {file}: {', '.join(sorted(n for f, n in walk.before if f == file))}")
    for name, way in walk.ways.items():
        print(f"{len(way):3d} frames to {PARTS[name]}: {' > '.join(each for _, each in way)}")


if __name__ == "__main__":
    main(sys.argv[1:])
