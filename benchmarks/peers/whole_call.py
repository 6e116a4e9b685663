"""Whole calls of training on a small task, in any interpreter that has the library.

A short call before imports what is needed. A call's ``numbers`` are its
seconds of processor time in ``cpu_seconds``, with all threads.
"""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness.children import read_spec, serve_calls, versions


def main() -> None:
    """Measures the call that the specification stands for."""
    spec = read_spec()
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    try:
        import torch

        torch.set_num_threads(1)
        call = {"accel_rl": our_call, "sb3": sb3_call, "cleanrl": cleanrl_call}[spec["library"]](
            spec
        )
        steps = spec["steps"]
        call(min(steps, 2_048))

        def timed() -> tuple[int, dict[str, float]]:
            began = time.process_time()
            call(steps)
            return steps, {"cpu_seconds": time.process_time() - began}

        packages = ("torch", "gymnasium", "numpy", "stable_baselines3")
        serve_calls(timed, {"versions": versions(*packages)})
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def our_call(spec: dict[str, Any]) -> Callable[[int], None]:
    """`train` with ``options``, as the command line calls it."""
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    from rich.console import Console

    from accel_rl.cli.parse import parse_arguments
    from accel_rl.training.train import train

    def call(steps: int) -> None:
        folder = tempfile.mkdtemp(dir=".")
        words = [*spec["options"], f"total_steps={steps}", f"run_dir={folder}/run"]
        train(parse_arguments(words), Console(file=io.StringIO()))

    return call


def sb3_call(spec: dict[str, Any]) -> Callable[[int], None]:
    """``algorithm`` of Stable-Baselines3 with ``arguments`` on ``num_envs`` environments."""
    import stable_baselines3
    from stable_baselines3.common.env_util import make_vec_env

    algorithm = getattr(stable_baselines3, spec["algorithm"])

    def call(steps: int) -> None:
        envs = make_vec_env(spec["env"], spec["num_envs"])
        algorithm("MlpPolicy", envs, device="cpu", **spec["arguments"]).learn(steps)

    return call


def cleanrl_call(spec: dict[str, Any]) -> Callable[[int], None]:
    """A ``script`` of CleanRL with ``arguments``; what it prints is thrown away."""
    import torch.utils.tensorboard
    import tyro

    del torch.utils.tensorboard, tyro
    script = Path(spec["script"])

    def call(steps: int) -> None:
        sys.argv = [str(script), *spec["arguments"], f"--total-timesteps={steps}"]
        with contextlib.redirect_stdout(io.StringIO()):
            runpy.run_path(str(script), run_name="__main__")

    return call


if __name__ == "__main__":
    main()
