"""A training script of CleanRL or LeanRL, run as it is, in any interpreter that it runs in.

The script owns its loop. What it calls there anyway stops it where a measurement begins and ends:
CleanRL's writes ``charts/SPS`` with the steps so far, LeanRL's goes through tqdm once an iteration.
What is written is thrown away, TensorBoard's files and the messages to wandb included. The number
of torch's threads is in OMP_NUM_THREADS.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import shlex
import sys
import tempfile
import types
from collections.abc import Callable, Iterable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from benchmarks.harness.children import read_spec, serve_within, versions

UNMEASURED_ITERATIONS = 3  # LeanRL's: what is compiled and captured is so by then
PACKAGES = ("torch", "gymnasium", "gym", "envpool", "ale-py", "stable_baselines3", "tensordict")


def main() -> None:
    """Runs ``script`` with ``arguments``; ``steps_per_iteration``: for those that do not say."""
    spec = read_spec()
    script = Path(spec["script"]).resolve()
    arguments = [str(word) for word in spec["arguments"]]
    with contextlib.suppress(ImportError):  # Gymnasium 1 does not look for games itself
        import ale_py
        import gymnasium

        gymnasium.register_envs(ale_py)

    reached = serve_within(
        {
            "command": shlex.join(["python", spec["script"], *arguments]),
            "versions": versions(*PACKAGES),
        }
    )
    _stand_in_for_tensorboard(reached)
    _stand_in_for_tqdm_and_wandb(reached, spec["steps_per_iteration"])
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.argv = [str(script), *arguments]
        sys.path[0] = str(script.parent)
        sys.path.insert(1, str(script.parent.parent))  # CleanRL's scripts import its utilities
        runpy.run_path(str(script), run_name="__main__")
    raise RuntimeError(f"{script.name} has ended by itself")


def _stand_in_for_tensorboard(reached: Callable[[int], None]) -> None:
    class Writer:
        """Of `torch.utils.tensorboard`, with what the scripts call."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            del arguments, options

        def add_scalar(self, tag: str, value: float, step: int) -> None:
            del value
            if tag == "charts/SPS":
                reached(int(step))

        def add_text(self, *arguments: Any) -> None:
            del arguments

        def close(self) -> None:
            pass

    _stand_in("torch.utils.tensorboard", SummaryWriter=Writer)


def _stand_in_for_tqdm_and_wandb(reached: Callable[[int], None], steps: int | None) -> None:
    import torch.hub  # noqa: F401  # torch.compile shows its progress with the tqdm found here

    class Bar:
        """Of `tqdm`: an iteration each time that it goes on."""

        def __init__(self, iterable: Iterable[Any], *arguments: Any, **options: Any) -> None:
            del arguments, options
            self._iterable = iterable

        def __iter__(self) -> Iterator[Any]:
            for number, each in enumerate(self._iterable):
                if steps is not None and number >= UNMEASURED_ITERATIONS:
                    reached(number * steps)
                yield each

        def set_description(self, *arguments: Any) -> None:
            del arguments

    _stand_in("tqdm", tqdm=Bar)
    _stand_in("wandb", init=lambda **_: None, log=lambda *_, **__: None)


def _stand_in(name: str, **attributes: Any) -> None:
    module = types.ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)  # torch.compile asks for it
    vars(module).update(attributes)
    sys.modules[name] = module


if __name__ == "__main__":
    main()
