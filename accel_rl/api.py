"""The front door for programs: train, evaluate, film and load in a line each.

    run = accel_rl.train("ppo", env="CartPole-v1", total_steps=50_000)
    print(run.evaluate(episodes=20).mean)
    policy = accel_rl.load(run, greedy=True)

All does what the command does with the same options.
"""

from __future__ import annotations

import base64
import csv
import html
import math
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal, Unpack

from accel_rl.cli.launcher import giving_to_learners, launch
from accel_rl.cli.parse import make_config
from accel_rl.cli.run import probe_learners
from accel_rl.envs.make import giving, name_for_configs
from accel_rl.keywords import TrainOptions
from accel_rl.parallel import Ranks
from accel_rl.runs.directory import make_run_directory, run_place
from accel_rl.runs.saved import read_config
from accel_rl.runs.tables import read_rows
from accel_rl.runs.yaml_file import exact_text
from accel_rl.sweeps.command import run_sweep
from accel_rl.system.lasting_console import LastingConsole
from accel_rl.tools.compare import SCORE
from accel_rl.tools.evaluate import EvaluateOptions, EvaluationReport, evaluate_run
from accel_rl.tools.play import PlayOptions, play
from accel_rl.tools.plot import PlotOptions, plot
from accel_rl.tools.policy import SavedPolicy, load_policy
from accel_rl.training.devices import check_learners
from accel_rl.training.metrics import OnRow
from accel_rl.training.train import RunError
from accel_rl.training.train import train as train_config

Env = str | Callable[..., Any]
"""an id, ``module:function``, or a function or class that makes the environment"""


@dataclass(frozen=True)
class Picture:
    """A figure or film, which a notebook shows.

    Attributes:
        path: its file, PNG, GIF or MP4.
        score: score of the filmed game; None: it is a figure.
    """

    path: Path
    score: float | None = None

    def _repr_html_(self) -> str:
        data = base64.b64encode(self.path.read_bytes()).decode()
        kind = self.path.suffix[1:]
        if kind == "mp4":
            return (
                f'<video controls autoplay loop muted src="data:video/mp4;base64,{data}"></video>'
            )
        return f'<img src="data:image/{kind};base64,{data}">'


class Run:
    """A run on disk, by its directory.

    Attributes:
        path: the directory.
        config: the options.
        stopped_by: the signal that stopped its training in this program, such as SIGINT for Ctrl-C.
    """

    def __init__(
        self, path: str | PathLike[str], env: Env | None = None, *, trust: bool = False
    ) -> None:
        """Open a saved run.

        Args:
            path: its directory.
            env: the function or class that makes its environment, if the run was begun with one
                that no module has under a name.
            trust: import code that its options name, even if another person made the run.

        Raises:
            ValueError: there is no run.
        """
        self.path = _path(path)
        self.stopped_by: signal.Signals | None = None
        self._env = None if isinstance(env, str) else env
        self._trust = trust
        self.config = read_config(self.path, trust=trust)

    @property
    def score(self) -> float:
        """Mean score of the last 100 games of training; NaN before the first one has ended."""
        rows = read_rows(self.path / "metrics.csv", SCORE)
        return next((row[SCORE] for row in reversed(rows) if math.isfinite(row[SCORE])), math.nan)

    def evaluate(
        self,
        episodes: int | None = 20,
        *,
        greedy: bool = False,
        quiet: bool = False,
        **options: Any,
    ) -> EvaluationReport:
        """Play whole games, and write ``evaluation.json``.

        Args:
            episodes: number of games; None: as many as ``num_steps`` has room for.
            greedy: take the most probable action, or the action of the largest value.
            quiet: show no progress.
            **options: other options of `EvaluateOptions`, such as ``checkpoint="best"``.

        Returns:
            The report, with ``mean``, ``std`` and ``scores``.
        """
        num_workers = 0 if self.config.sampler.num_workers == 0 else None
        given = {"num_workers": num_workers, "overwrite": True, "trust": self._trust, **options}
        if given.get("out") is not None:
            given["out"] = fspath(given["out"])
        chosen = EvaluateOptions(num_episodes=episodes, greedy=greedy, **given)
        with self._given():
            return evaluate_run(self.path, chosen, LastingConsole(quiet=quiet))

    def plot(
        self,
        what: str = "scores",
        *,
        x: Literal["steps", "frames", "minutes"] = "steps",
        out: str | PathLike[str] | None = None,
    ) -> Picture:
        """Draw the learning curve, or another column of ``metrics.csv``, as PNG.

        Args:
            what: ``scores``, or the name of the column.
            x: unit of the horizontal axis.
            out: file; None: in the directory of the run.
        """
        path = self.path / PlotOptions(what=what).path if out is None else _path(out)
        own = {"overwrite": True, "trust": self._trust}
        plot([self.path], PlotOptions(what=what, x=x, out=str(path), **own))
        return Picture(path)

    def film(
        self,
        out: str | PathLike[str] | None = None,
        *,
        greedy: bool = True,
        quiet: bool = False,
        **options: Any,
    ) -> Picture:
        """Film one game.

        Args:
            out: file, MP4 or GIF; None: ``game.mp4`` in the directory of the run.
            greedy: take the most probable action, or the action of the largest value.
            quiet: show no progress.
            **options: other options of `PlayOptions`, such as ``seed=1`` for another game.
        """
        path = self.path / "game.mp4" if out is None else _path(out)
        own = {"overwrite": True, "trust": self._trust, **options}
        chosen = PlayOptions(out=str(path), greedy=greedy, **own)
        with self._given():
            return Picture(path, play(self.path, chosen, LastingConsole(quiet=quiet)).score)

    def resume(
        self,
        total_steps: int | None = None,
        *,
        on_row: OnRow | None = None,
        quiet: bool = False,
        **options: Unpack[TrainOptions],
    ) -> Run:
        """Go on from the last checkpoint, in the same directory.

        Args:
            total_steps: length of the run, with the steps that it has taken; None: as before.
            on_row: as in `train`.
            quiet: as in `train`.
            **options: options that differ from before, such as ``lr``.
        """
        own = {"resume": self.path, "total_steps": total_steps, "trust": self._trust or None}
        with self._given():
            return _train(own, options, self._env, on_row, quiet)

    def load(self, **options: Any) -> SavedPolicy:
        """Return the policy as a function; ``options`` are those of `load`."""
        with self._given():
            return load_policy(self.path, **{"trust": self._trust, **options})

    def _given(self) -> AbstractContextManager[None]:
        return giving(self.config.env, self._env)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, score={self.score:.4g})"

    def _repr_html_(self) -> str:
        files = [self.path / "learning_curve.png", self.path / "game.mp4"]
        shown = [Picture(each)._repr_html_() for each in files if each.exists()]
        return f"<p>{html.escape(repr(self))}</p>{''.join(shown)}"


@dataclass(frozen=True)
class Sweep:
    """A sweep that has ended.

    Attributes:
        path: its directory, with ``results.csv`` and ``results.md``.
        rows: a dictionary of each run: ``run``, ``configuration``, ``env``, ``seed``, ``state``,
            ``score`` (None without), ``error`` and the other columns of ``results.csv``, as text.
    """

    path: Path
    rows: list[dict[str, Any]]

    def __repr__(self) -> str:
        return f"Sweep({str(self.path)!r}, {len(self.rows)} runs)"


def train(
    algo: str | None = None,
    *,
    env: Env | None = None,
    total_steps: int | None = None,
    on_row: OnRow | None = None,
    quiet: bool = False,
    **options: Unpack[TrainOptions],
) -> Run:
    """Train, and return the run.

    Ctrl-C, SIGTERM or SIGHUP ends the run within seconds, saves everything, and is in
    ``stopped_by`` of the run; the program goes on.

    Args:
        algo: name of a preset, or ``module:function``; None: a2c.
        env: an id, ``module:function``, or a function or class that makes the environment. To go on
            with the run in another program, that has to give a function again that no module has
            under a name.
        total_steps: length of the run; None: that of the preset.
        on_row: called with each row of ``metrics.csv``. If it returns True, the run ends and saves.
            If it returns a mapping, all later resets of Gymnasium environments get it as options.
            With several learners it is called in the process of the first one.
        quiet: show no progress.
        **options: other options, as on the command line: ``lr=1e-3``, ``num_envs=64``.

    Raises:
        ValueError: an option is unknown, or its value not possible. Nothing was started.
        RunError: the run failed later.
    """
    function = None if env is None or isinstance(env, str) else env
    name = env if env is None or isinstance(env, str) else _name(env)
    own = {"algo": algo, "env": name, "total_steps": total_steps}
    with giving(name, function):
        return _train(own, options, function, on_row, quiet)


def load(
    run: Run | str | PathLike[str],
    checkpoint: int | str | None = None,
    *,
    greedy: bool = False,
    seed: int = 0,
    device: Literal["auto", "cpu", "cuda"] = "cpu",
    trust: bool = False,
    env: Env | None = None,
) -> SavedPolicy:
    """Return the policy of a run as a function: ``action = policy(observation)``.

    It takes one observation or a batch of them, as arrays, lists or tensors.

    Args:
        run: the run, or its directory.
        checkpoint: number of steps of a checkpoint, or "best"; None: the last one.
        greedy: take the most probable action, or the action of the largest value.
        seed: seed of drawn actions.
        device: device of the network.
        trust: import code that the options of the run name, even if another person made it.
        env: as in `Run`.
    """
    opened = _opened(run, env, trust)
    trust |= opened._trust
    return opened.load(checkpoint=checkpoint, greedy=greedy, seed=seed, device=device, trust=trust)


def evaluate(
    run: Run | str | PathLike[str],
    episodes: int | None = 20,
    *,
    greedy: bool = False,
    env: Env | None = None,
    trust: bool = False,
    **options: Any,
) -> EvaluationReport:
    """Play whole games with the policy of a run.

    ``env`` and ``trust`` are those of `Run`, and the others those of `Run.evaluate`.
    """
    opened = _opened(run, env, trust)
    return opened.evaluate(episodes, greedy=greedy, **{"trust": trust | opened._trust, **options})


def sweep(*, quiet: bool = False, **options: Any) -> Sweep:
    """Train each combination of options, several runs at a time, and return the results.

    Args:
        quiet: show no progress.
        **options: as of the command ``accel_rl sweep``. A list or range has a run for each value:
            ``algo=["a2c", "ppo"], seed=range(3)``. ``sweep_dir`` and ``slots`` are the sweep's own.

    Raises:
        ValueError: an option is not possible. No run began.
        Interrupted: it was stopped before the first run began.
    """
    arguments = [f"{key}={_values(each)}" for key, each in options.items()]
    path, _ = run_sweep(arguments, LastingConsole(quiet=quiet))
    with (path / "results.csv").open(newline="") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    for row in rows:
        row["seed"] = int(row["seed"])
        row["score"] = float(row["score"]) if row["score"] else None
    return Sweep(path, rows)


def _train(
    own: Mapping[str, Any],
    options: Mapping[str, Any],
    env: Callable[..., Any] | None,
    on_row: OnRow | None,
    quiet: bool,
) -> Run:
    """Train with ``options`` and with those of ``own`` that are not None."""
    given = {**{key: own[key] for key in own if own[key] is not None}, **options}
    config = make_config(given)
    check_learners(config, Ranks())
    if config.num_learners == 1:
        result = train_config(config, LastingConsole(quiet=quiet), on_row=on_row)
        path, stopped_by = result.run_dir, result.stopped_by
    else:
        with giving_to_learners(on_row, quiet=quiet):
            path, stopped_by = _launch(config, given)
    run = Run(path, env)
    run.stopped_by = stopped_by
    return run


def _launch(config: Any, options: dict[str, Any]) -> tuple[Path, signal.Signals | None]:
    """Train with several learners in processes of their own."""
    probe_learners(config)
    path = run_place(config)
    if config.resume is None:
        path = make_run_directory(config, datetime.now(), path)
        options = {**options, "run_dir": str(path)}
    arguments = [f"{key}={exact_text(each)}" for key, each in options.items()]
    code = launch(["train", *arguments], config.num_learners)
    if 0 < code < 128:
        raise RunError(f"a learner failed and said why above (details: {path / 'train.log'})")
    return path, signal.Signals(code - 128) if code else None


def _opened(run: Run | str | PathLike[str], env: Env | None, trust: bool) -> Run:
    return run if isinstance(run, Run) else Run(run, env, trust=trust)


def _name(env: Callable[..., Any]) -> str:
    if not callable(env):
        raise ValueError(
            f"env is {env!r}; it must be a name, or a function or class that makes an environment"
        )
    return name_for_configs(env)


def _path(given: str | PathLike[str]) -> Path:
    return Path(os.path.expanduser(given))


def _values(value: Any) -> str:
    """The text of a sweep's option with one value, or a list of them."""
    values = list(value) if isinstance(value, list | range) else [value]
    names = [_name(each) if callable(each) else each for each in values]
    for text in map(str, names):
        if "<" in text or text.startswith("__main__:"):
            raise ValueError(
                f"env={text} is known to this program alone, and a sweep starts others; put the "
                f"function into a module"
            )
    return ",".join(map(exact_text, names))
