"""Regions of acting and learning that are captured on a CPU: compiled once, run in a few passes.

On a GPU whole graphs are recorded instead, see `accel_rl.graphs`. A region is a function of tensors
without communication, backward pass or data that decides what happens next. Captured, its shapes
and flags are constants and its numbers are not: each new shape compiles anew, a new learning rate
does not.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


class Compiled(NamedTuple):
    """What compiled acting, losses and rule of an algorithm were measured to take on a CPU.

    Attributes:
        seconds: By how much the start of a run takes longer.
        share: Share of the time of an iteration, simulators not counted, that they save.
        per_million: Seconds that a million steps take uncompiled, simulators not counted.
    """

    seconds: float
    share: float
    per_million: float


class Capture:
    """How regions are run on ``device``: as they are, or captured by ``backend`` of torch.compile.

    ``backend``: ``inductor``, a compiler; None: no region is captured.
    """

    def __init__(self, device: torch.device, backend: str | None = "inductor") -> None:
        self._device = device
        self._backend = backend

    def __call__(self, region: Callable[P, R]) -> Callable[P, R]:
        """``region`` itself, or what does the same captured.

        Captured, it finds a 0-d tensor of float64 in place of each argument that is a float, so
        that this may change; what never does belongs into a closure. Results without gradient are
        the caller's own; one with gradient is to be used up before the next region runs.
        """
        if self._backend is None:
            return region
        compiled: Callable[..., R] = torch.compile(
            region, fullgraph=True, dynamic=False, backend=self._backend
        )

        @functools.wraps(region)
        def run(*arguments: P.args, **named: P.kwargs) -> R:
            assert not named
            return compiled(*map(self._as_tensor, arguments))

        return run

    def _as_tensor(self, argument: Any) -> Any:
        if not isinstance(argument, float):
            return argument
        return torch.full((), argument, dtype=torch.float64, device=self._device)


EAGER = Capture(torch.device("cpu"), backend=None)
"""captures nothing"""


def check_compilers() -> None:
    """Raises ValueError unless what torch.compile needs for a CPU is here."""
    header = Path(sysconfig.get_path("include"), "Python.h")
    cxx = "clang++" if sys.platform == "darwin" else "g++"
    needed: dict[str, object] = {
        "Python's headers (python3-dev)": header.exists(),
        f"a C++ compiler ({cxx}, or what CXX names)": shutil.which(os.environ.get("CXX", cxx)),
    }
    missing = [what for what, found in needed.items() if not found]
    if missing:
        raise ValueError(
            f"capturing on a CPU needs {' and '.join(missing)}, not found here; install that, "
            "or use capture=off"
        )
