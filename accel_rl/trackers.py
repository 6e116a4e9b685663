"""Hand a run's numbers to experiment trackers: W&B, MLflow, or a function of the user's own.

Trackers are called in the thread of the run. If a tracker raises an error, one line says so and the
tracker gets no more rows; ``metrics.csv`` always has all rows. TensorBoard's events are written by
`accel_rl.runs.tables`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from accel_rl.system.extras import how_to_install
from accel_rl.system.functions import find_function

TENSORBOARD = "tensorboard"


class Tracker(NamedTuple):
    """What a function ``make(run_dir, config, group)`` returns: this, or an object like it."""

    log: Callable[[dict[str, float], int], object]  # of one row, with its number of steps
    add_file: Callable[[Path], object]  # such as the learning curve or a film
    close: Callable[[], object]


def _wandb(run_dir: Path, config: dict[str, Any], group: str | None) -> Tracker:
    import wandb

    id_file = run_dir / "wandb_id.txt"
    run = wandb.init(
        project="accel_rl" if "WANDB_PROJECT" not in os.environ else None,
        id=id_file.read_text() if id_file.exists() else None,
        resume="allow",
        name=run_dir.name,
        group=group,
        config=config,
        dir=str(run_dir),
        settings=wandb.Settings(silent=True, console="off"),
    )
    id_file.write_text(run.id)
    run.define_metric("*", step_metric="steps")

    def add_file(path: Path) -> None:
        kind = wandb.Video if path.suffix in (".mp4", ".gif") else wandb.Image
        run.log({path.stem: kind(str(path))})

    return Tracker(lambda values, steps: run.log({"steps": steps, **values}), add_file, run.finish)


def _mlflow(run_dir: Path, config: dict[str, Any], group: str | None) -> Tracker:
    import mlflow

    id_file = run_dir / "mlflow_run_id.txt"
    if id_file.exists():
        mlflow.start_run(run_id=id_file.read_text())
    else:
        if "MLFLOW_EXPERIMENT_NAME" not in os.environ:
            mlflow.set_experiment("accel_rl")
        tags = None if group is None else {"sweep": group}
        id_file.write_text(mlflow.start_run(run_name=run_dir.name, tags=tags).info.run_id)
        mlflow.log_params({key: str(value)[:500] for key, value in _flat(config)})
    log = mlflow.log_metrics
    return Tracker(log, lambda path: mlflow.log_artifact(str(path)), mlflow.end_run)


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


PACKAGES = {"wandb": _wandb, "mlflow": _mlflow}


def check_trackers(names: Sequence[str], *, installed: bool = False) -> None:
    """Raise ValueError if ``tracker`` has a wrong name, or one whose code is not ``installed``."""
    for name in names:
        if name not in (TENSORBOARD, *PACKAGES) and ":" not in name:
            raise ValueError(
                f"tracker={','.join(names)}: {name} is unknown; use tensorboard, wandb, mlflow or "
                f"module:function, several with commas between them, or tracker=[] for none"
            )
        if names.count(name) > 1:
            raise ValueError(f"tracker={','.join(names)}: {name} is there twice; name it once")
        if installed and ":" in name:
            find_function("tracker", name)
        elif installed and name in PACKAGES and find_spec(name) is None:
            raise ValueError(f"tracker={name} needs {name}: {how_to_install(name)}")


class Trackers:
    """The trackers of one run. `log` takes rows, without NaN; `close` may be called again."""

    def __init__(
        self,
        names: Iterable[str],
        run_dir: Path,
        config: dict[str, Any],
        say: Callable[[str], None],
    ) -> None:
        self._say, self._all = say, dict[str, Tracker]()
        sweep = run_dir.absolute().parent.parent
        group = sweep.name if (sweep / "sweep.yaml").is_file() else None
        for name in names:
            if name != TENSORBOARD:
                with self._telling(name):
                    make: Any = PACKAGES.get(name) or find_function("tracker", name)
                    self._all[name] = make(run_dir, config, group)

    def log(self, values: Mapping[str, float], steps: int) -> None:
        row = {name: value for name, value in values.items() if not math.isnan(value)}
        self._each(lambda tracker: tracker.log(dict(row), steps))

    def send_files(self, paths: Iterable[Path]) -> None:
        found = [path for path in paths if path.is_file()]
        self._each(lambda tracker: [tracker.add_file(path) for path in found])

    def close(self) -> None:
        self._each(lambda tracker: tracker.close())
        self._all.clear()

    def _each(self, call: Callable[[Tracker], object]) -> None:
        for name, tracker in list(self._all.items()):
            with self._telling(name):
                call(tracker)

    @contextmanager
    def _telling(self, name: str) -> Iterator[None]:
        """Say what has failed within, and leave out the tracker from then on."""
        try:
            yield
        except Exception as error:
            self._all.pop(name, None)
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
            self._say(f"tracker {name} has failed and gets no more rows: {text}")
