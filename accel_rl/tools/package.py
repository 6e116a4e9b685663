"""A saved run as a directory for the Hugging Face Hub, from which `load_policy` reads the policy.

The directory holds text, numbers and a film, and nothing that runs when it is read:

- ``README.md``: the model card.
- ``config.yaml``: the configuration of the run, without ``run_dir``.
- ``model.safetensors``: the policy (`accel_rl.tools.weights`).
- ``metrics.csv``, ``evaluation.csv``: tables of the run, if it has them.
- ``replay.mp4``: the film that the Hub shows, if the environment can be filmed.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from accel_rl import __version__
from accel_rl.config import TrainConfig
from accel_rl.envs import EnvError
from accel_rl.runs.directory import write_config
from accel_rl.runs.files import naming, read_text, whole_lines, write_whole
from accel_rl.runs.saved import PACKAGED_WEIGHTS, find_checkpoint
from accel_rl.runs.tables import read_rows
from accel_rl.runs.yaml_file import code_in, is_own
from accel_rl.system.console import printable
from accel_rl.system.extras import missing_package
from accel_rl.system.functions import first_line
from accel_rl.tools.output import check_folder
from accel_rl.tools.play import PlayOptions, film_game
from accel_rl.tools.policy import PolicyOptions, open_run
from accel_rl.tools.weights import pack_weights

FILM = "replay.mp4"
FILM_STEPS = 3_000
"""of a game that is filmed for the package"""
_MEAN, _STD = "episode_return_raw_mean", "episode_return_raw_std"
_GAMES = {
    "evaluation.json": "whole games of this policy",
    "evaluation.csv": "whole games of this policy, in an evaluation during training",
    "metrics.csv": "the last games of training",
}
_FILES = {
    "config.yaml": "options of the run",
    "evaluation.csv": "evaluations during training",
    "metrics.csv": "scores, losses and speed during training",
    "model.safetensors": "the network, and the moments that normalise observations if it has them",
    "replay.mp4": "a game",
}


@dataclass(frozen=True, kw_only=True)
class PackageOptions(PolicyOptions):
    """Options of `package_run` and of ``accel_rl package``."""

    out: str | None = None
    """Directory to make. none: package in the run directory.
    overwrite=true replaces a package, and nothing else."""


class Scores(NamedTuple):
    """Scores of games, by the file of the run that has them."""

    source: str
    mean: float
    std: float
    num_episodes: int
    greedy: bool = False

    @property
    def text(self) -> str:
        """The scores as the Hub writes them."""
        return f"{self.mean:.2f} +/- {self.std:.2f}"


class Package(NamedTuple):
    """A directory that `package_run` made.

    Attributes:
        path: the directory.
        why_no_film: why the directory has no film; None if it has one.
    """

    path: Path
    why_no_film: str | None


def package_run(run_dir: str | Path, options: PackageOptions) -> Package:
    """Make a directory from a saved run as the Hugging Face Hub expects the files of a model.

    The directory appears when all its files are complete, or not at all. With ``overwrite=True``
    they replace those of a package, one after the other. The film is the run's ``game.mp4``. If
    that is older than the checkpoint, or ``checkpoint`` is given, a game is filmed.

    Args:
        run_dir: directory of the run.
        options: the options.

    Returns:
        The directory.

    Raises:
        ValueError: safetensors is not installed, the run cannot be read, or ``out`` exists.
        OSError: a file could not be written.
    """
    run_dir = Path(run_dir)
    try:
        import safetensors  # noqa: F401
    except ModuleNotFoundError as error:
        raise ValueError(missing_package("package", "hub", error)) from error
    config, _, agent, steps, checkpoint = open_run(run_dir, options.checkpoint, trust=options.trust)
    find_checkpoint(run_dir, options.checkpoint)  # a package is not packaged again
    out = Path(options.out) if options.out else run_dir / "package"
    is_replaced = options.overwrite and (out / PACKAGED_WEIGHTS).is_file()
    check_folder(out, () if is_replaced else (out,), overwrite=False)
    scores = read_scores(run_dir, steps)
    with _appearing(out) as folder:
        weights = pack_weights(agent, {"format": "pt", "steps": str(steps)})
        write_whole(folder / PACKAGED_WEIGHTS, weights)
        # Another person's file would gain a signature that vouches for the code in it.
        shown_config = dataclasses.replace(config, run_dir=None)
        write_config(shown_config, folder / "config.yaml", signed=is_own(run_dir / "config.yaml"))
        for name in ("metrics.csv", "evaluation.csv"):
            if read_rows(run_dir / name, "steps"):  # which checks that it is a table of numbers
                text = "\n".join([*whole_lines(run_dir / name), ""])
                write_whole(folder / name, text.encode())
        why_no_film = _film(run_dir, config, checkpoint, options, folder)
        card = model_card(config, steps, scores, sorted(each.name for each in folder.iterdir()))
        write_whole(folder / "README.md", card.encode())
    return Package(out, why_no_film)


@contextmanager
def _appearing(out: Path) -> Iterator[Path]:
    """Give a new directory beside ``out``, which gets that name if nothing fails within."""
    folder = out.with_name(f".{out.name}.{secrets.token_hex(8)}.part")
    with naming(out):
        folder.mkdir()
    try:
        yield folder
        with naming(out):
            if not out.exists():
                folder.rename(out)
                return
            # A package is replaced, file by file: what else is there, such as .git, stays.
            for name in (*_FILES, "README.md"):
                if (folder / name).exists():
                    (folder / name).replace(out / name)
                else:
                    (out / name).unlink(missing_ok=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def read_scores(run_dir: Path, steps: int) -> Scores | None:
    """Return the scores of the policy after ``steps`` steps, from the best source of the run.

    ``evaluation.json`` comes before ``evaluation.csv``, if they are about this policy, and
    ``metrics.csv``, the last games of training until then, is the last.
    """
    with suppress(FileNotFoundError, KeyError):  # or of something else
        report = json.loads(read_text(run_dir / "evaluation.json"))
        if report["checkpoint_steps"] == steps and report["mean"] is not None:
            numbers = report["mean"], report["std"], report["num_games"]
            return Scores("evaluation.json", *numbers, report["greedy"])
    for name, episodes in (("evaluation.csv", "episodes"), ("metrics.csv", "episodes_in_window")):
        for row in reversed(read_rows(run_dir / name, "steps")):
            is_before = name == "metrics.csv" and row["steps"] < steps
            if (row["steps"] == steps or is_before) and math.isfinite(row[_MEAN]):
                return Scores(name, row[_MEAN], row[_STD], int(row[episodes]))
    return None


def _film(
    run_dir: Path, config: TrainConfig, checkpoint: Path, options: PackageOptions, folder: Path
) -> str | None:
    """Write the film to ``folder``, or return why there is none."""
    game = run_dir / "game.mp4"
    is_new = game.is_file() and game.stat().st_mtime >= checkpoint.stat().st_mtime
    if options.checkpoint is None and is_new:
        shutil.copyfile(game, folder / FILM)
        return None
    try:
        film_game(config, checkpoint, folder / FILM, PlayOptions(max_steps=FILM_STEPS))
    except EnvError as error:
        return first_line(error)
    return None


# ---- the model card ------------------------------------------------------------------------------


def model_card(config: TrainConfig, steps: int, scores: Scores | None, files: Sequence[str]) -> str:
    """Return the content of ``README.md``: metadata in YAML for the Hub, then text for people."""
    metadata = OmegaConf.to_yaml(OmegaConf.create(_metadata(config, scores)))
    rows = [
        ("environment", _code(config.env)),
        ("algorithm", _code(config.algo)),
        ("steps of training", f"{steps:,}"),
        ("seed", str(config.seed)),
    ]
    if scores is not None:
        how = ", greedy actions" if scores.greedy else ""
        rows += [
            ("mean reward", scores.text),
            ("episodes", f"{scores.num_episodes:,}: {_GAMES[scores.source]}{how}"),
        ]
    trust = ""
    if code := code_in(vars(config)):
        named = " and ".join(_code(f"{option}={value}") for option, value in code.items())
        trust = f"""
The options name code that is not in this directory: {named}. `load_policy` needs its modules, and
`trust=True` to import them.
"""
    return f"""---
{metadata}---

# {_plain(config.algo)} on {_plain(config.env)}

A policy that accel_rl has trained, packaged by version {__version__}.

{_table(rows)}

## Use

Install `accel_rl[train,hub]`, and what the environment needs. Then:

```python
from accel_rl.tools.policy import load_policy

policy = load_policy("DIRECTORY")  # a copy of these files
```

`policy` takes a batch of observations of the environment and returns an action for each.
`accel_rl evaluate DIRECTORY` plays whole games.
{trust}
## Files

{_table([(_code(name), _FILES[name]) for name in files])}
"""


def _metadata(config: TrainConfig, scores: Scores | None) -> dict[str, Any]:
    algo, env = _plain(config.algo), _plain(config.env)
    tags = ["reinforcement-learning", "deep-reinforcement-learning", "accel_rl", algo, env]
    metadata = {"library_name": "accel_rl", "pipeline_tag": "reinforcement-learning", "tags": tags}
    if scores is None:
        return metadata
    task = {"type": "reinforcement-learning", "name": "reinforcement-learning"}
    metric = {
        "type": "mean_reward",
        "value": scores.text,
        "name": "mean_reward",
        "args": {"num_episodes": scores.num_episodes},
        "verified": False,
    }
    result = {"task": task, "dataset": {"name": env, "type": env}, "metrics": [metric]}
    return {**metadata, "model-index": [{"name": f"{algo}-{env}", "results": [result]}]}


def _plain(name: str) -> str:
    """Return ``name`` without characters that mean something to the Hub or in Markdown."""
    return re.sub(r"[^\w.-]+", "-", name)


def _code(text: str) -> str:
    return f"`{printable(text).replace('`', '').replace('|', '')}`"


def _table(rows: Sequence[tuple[str, str]]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])
