"""The process of one tracker: reads messages from standard input and hands them to the tracker.

Each line is a JSON object: first ``run_dir``, ``config`` and ``group``, then rows (``values`` and
``steps``) and ``files``. The end of the input is the end of the run. A tracker is an object with
the three methods of `Tracker`; ``module:function`` names a function that returns one of your own.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, Protocol

from accel_rl.system.functions import find_function

FILMS = (".mp4", ".gif")
END_SECONDS = 60.0
"""for which a tracker may go on after its run has ended"""


class Tracker(Protocol):
    """An experiment tracker, as a function ``make(run_dir, config, group)`` returns it."""

    def log(self, values: dict[str, float], steps: int) -> None:
        """Take one row: numbers by their names, such as ``episode/episode_return_raw_mean``."""

    def add_file(self, path: Path) -> None:
        """Take one file, such as the learning curve or a film."""

    def close(self) -> None:
        """The run has ended."""


def main() -> None:
    """Serve the tracker that the first argument names until the input ends."""
    lines = sys.stdin.buffer
    threading.Thread(target=_end_after_run, args=(lines.fileno(),), daemon=True).start()
    about = json.loads(lines.readline())
    try:
        tracker = make_tracker(sys.argv[1], **about)
        for line in lines:
            message = json.loads(line)
            if "values" in message:
                tracker.log(message["values"], message["steps"])
            for path in message.get("files", ()):
                tracker.add_file(Path(path))
        tracker.close()
    except Exception as error:
        sys.stderr.write(f"{type(error).__name__}: {' '.join(str(error).split())}\n")
        raise SystemExit(1) from None


def _end_after_run(pipe: int) -> None:
    """Kill this process and its own if it still works long after the run, which was killed."""
    poll = select.poll()
    poll.register(pipe, 0)  # reports that the other end was closed, even while rows wait
    poll.poll()
    time.sleep(END_SECONDS + 5.0)  # a run that was not killed has ended us before
    os.killpg(os.getpgrp(), signal.SIGKILL)


def make_tracker(name: str, run_dir: str, config: dict[str, Any], group: str | None) -> Tracker:
    """Return the tracker called ``name``, connected to the run."""
    makers = {"wandb": WandbTracker, "mlflow": MlflowTracker}
    make: Any = makers.get(name) or find_function("tracker", name)
    tracker: Tracker = make(Path(run_dir), config, group)
    return tracker


class WandbTracker:
    """Weights & Biases. A resumed run goes on in the run that it had there."""

    def __init__(self, run_dir: Path, config: dict[str, Any], group: str | None) -> None:
        import wandb

        self._wandb = wandb
        id_file = run_dir / "wandb_id.txt"
        self._run = wandb.init(
            project="accel_rl" if "WANDB_PROJECT" not in os.environ else None,
            id=_read(id_file),
            resume="allow",
            name=run_dir.name,
            group=group,
            config=config,
            dir=str(run_dir),
        )
        id_file.write_text(self._run.id)
        self._run.define_metric("*", step_metric="steps")

    def log(self, values: dict[str, float], steps: int) -> None:
        self._run.log({"steps": steps, **values})

    def add_file(self, path: Path) -> None:
        is_film = path.suffix in FILMS
        kind = self._wandb.Video if is_film else self._wandb.Image
        self._run.log({path.stem: kind(str(path))})

    def close(self) -> None:
        self._run.finish()


class MlflowTracker:
    """MLflow. A resumed run goes on in the run that it had there."""

    def __init__(self, run_dir: Path, config: dict[str, Any], group: str | None) -> None:
        import mlflow

        self._mlflow = mlflow
        id_file = run_dir / "mlflow_run_id.txt"
        run_id = _read(id_file)
        if run_id is None and "MLFLOW_EXPERIMENT_NAME" not in os.environ:
            mlflow.set_experiment("accel_rl")
        run = mlflow.start_run(run_id=run_id, run_name=None if run_id else run_dir.name)
        id_file.write_text(run.info.run_id)
        if run_id is None:
            mlflow.log_params(_flat(config))
            if group is not None:
                mlflow.set_tag("sweep", group)

    def log(self, values: dict[str, float], steps: int) -> None:
        self._mlflow.log_metrics(values, step=steps)

    def add_file(self, path: Path) -> None:
        self._mlflow.log_artifact(str(path))

    def close(self) -> None:
        self._mlflow.end_run()


def _read(path: Path) -> str | None:
    return path.read_text().strip() if path.is_file() else None


def _flat(config: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """The options by their dotted names, cut to the 500 characters that MLflow takes."""
    flat: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = str(value)[:500]
    return flat
