"""Regions of acting and learning that are captured: compiled once, then run in a few passes.

A region is a function of tensors without communication, backward pass or data that decides what
happens next. Captured, its shapes and flags are constants and its numbers are not: each new shape
compiles anew, a new learning rate does not.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

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

    ``backend``: ``inductor``, which on a GPU replays CUDA graphs; None: nothing is captured.
    """

    def __init__(self, device: torch.device, backend: str | None = "inductor") -> None:
        self._device = device
        self._backend = backend

    def __call__(self, region: Callable[P, R], fixed: Iterable[Tensor] = ()) -> Callable[P, R]:
        """``region`` itself, or what does the same captured.

        Captured, it finds a 0-d tensor of float64 in place of each argument that is a float, so
        that this may change; what never does belongs into a closure. Results without gradient are
        the caller's own; one with gradient is to be used up before the next region runs.
        ``fixed``: tensors that it changes in place, the same ones in every call.
        """
        if self._backend is None:
            return region
        on_gpu = self._device.type == "cuda"
        mode = "reduce-overhead" if on_gpu and self._backend == "inductor" else None
        compiled: Callable[..., R] = torch.compile(
            region, fullgraph=True, dynamic=False, backend=self._backend, mode=mode
        )
        if on_gpu:
            for tensor in fixed:  # CUDA graphs would copy it in, and cannot change it then
                torch._dynamo.mark_static_address(tensor)

        @functools.wraps(region)
        def run(*arguments: P.args, **named: P.kwargs) -> R:
            assert not named
            result = compiled(*map(self._as_tensor, arguments))
            return _own(result) if on_gpu else result

        return run

    def _as_tensor(self, argument: Any) -> Any:
        if not isinstance(argument, float):
            return argument
        # Filled there by a kernel: `torch.tensor` would make the host wait for a copy.
        return torch.full((), argument, dtype=torch.float64, device=self._device)


EAGER = Capture(torch.device("cpu"), backend=None)
"""captures nothing"""


def check_compilers(device: torch.device) -> None:
    """Raises ValueError unless what torch.compile needs for ``device`` is here."""
    header = Path(sysconfig.get_path("include"), "Python.h")
    needed: dict[str, object] = {"Python's headers (python3-dev)": header.exists()}
    if device.type == "cuda":
        # Older ones fail where acting, in inference mode, is the first region that is recorded.
        needed["torch 2.11 or newer"] = torch.__version__ >= "2.11"
        needed["the package triton"] = find_spec("triton")
        found = _compiler("CC", "gcc") or _compiler("CC", "clang")
        needed["a C compiler (gcc or clang, or what CC names)"] = found
    else:
        cxx = "clang++" if sys.platform == "darwin" else "g++"
        needed[f"a C++ compiler ({cxx}, or what CXX names)"] = _compiler("CXX", cxx)
    missing = [what for what, found in needed.items() if not found]
    if missing:
        raise ValueError(
            f"capturing on {device} needs {' and '.join(missing)}, not found here; install that, "
            "or use capture=off"
        )


def _compiler(variable: str, default: str) -> str | None:
    return shutil.which(os.environ.get(variable, default))


def _own(result: Any) -> Any:
    """``result``, of tensors, out of the memory that the next replay overwrites."""
    if isinstance(result, Tensor):
        return result if result.requires_grad else result.clone()
    if isinstance(result, dict):
        return {name: _own(each) for name, each in result.items()}
    return tuple(map(_own, result)) if isinstance(result, tuple) else result
