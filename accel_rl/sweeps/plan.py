"""Which runs a sweep consists of: the product of its lists, checked before anything starts."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from accel_rl.algos import DQNConfig
from accel_rl.algos.replay_config import ReplayConfig, with_small_replay
from accel_rl.cli.parse import override, parse_arguments
from accel_rl.cli.suggest import split
from accel_rl.config import TrainConfig
from accel_rl.options import Option, alternatives, check_settings, list_options
from accel_rl.parallel import Ranks
from accel_rl.presets import PRESETS, find_preset
from accel_rl.runs.human_scores import ATARI_49
from accel_rl.runs.yaml_file import is_own, read_yaml, write_yaml
from accel_rl.system.signing import UntrustedError
from accel_rl.training.build import build
from accel_rl.training.devices import check_learners, pick_device
from accel_rl.training.torch_setup import sampling_threads

GROWING = ("env", "algo", "seed", "total_steps")
"""options of runs that may be given with ``resume``"""
_MOST_NAME_BYTES = 240
"""of a run's name, to which the names of its files add; file systems take 255"""
MOST_RUNS = 10_000  # more would be a slip: planning them alone takes minutes


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """Options of a sweep."""

    slots: int | None = None
    """Number of runs at a time, each with an equal share of the cores and GPUs.
    none: as many as there are GPUs for; without GPUs one."""
    cpus: tuple[int, ...] = ()
    """CPUs that all runs together may use. []: all CPUs that this process may use."""
    part: str = "1/1"
    """Part of the runs to do on this machine, such as 1/4, 2/4, 3/4 and 4/4 on four machines."""
    sweep_dir: str | None = None
    """Directory for the files of the sweep. none: sweeps/<time>."""
    resume: str | None = None
    """Directory of a sweep to continue.
    Finished runs are not repeated; other runs continue from their last checkpoints. Longer lists of
    env, algo or seed, or a larger total_steps, extend the sweep."""
    config: str | None = None
    """YAML file of options of all runs, which the lists override.
    The sweep uses a copy of the file, sweep_dir/config.yaml."""
    trust: bool = False
    """Allow code of other people.
    With resume or config, it imports module:function from their options and restores simulators
    from their checkpoints. Your own runs need no trust."""

    def __post_init__(self) -> None:
        check_settings(self)
        if self.trust and self.resume is None and self.config is None:
            raise ValueError("trust=true has no effect without resume or config; leave it out")
        if self.slots is not None and self.slots < 1:
            raise ValueError(f"slots is {self.slots}; it must be at least 1")
        number, total = self.part_of
        if not 1 <= number <= total:
            raise ValueError(f"part={self.part} is not one of 1/{total} to {total}/{total}")

    @property
    def part_of(self) -> tuple[int, int]:
        """``part`` as two numbers."""
        number, _, total = self.part.partition("/")
        if not (number.isdecimal() and total.isdecimal() and int(total)):
            raise ValueError(f"part={self.part} is not of the form 1/4")
        return int(number), int(total)


@dataclass(frozen=True)
class PlannedRun:
    """One run: ``name`` is unique in the sweep, ``label`` the same for runs that differ in
    environment and seed alone, and without what is the same for all.
    """

    name: str
    label: str
    arguments: tuple[str, ...]
    config: TrainConfig


def read_options(arguments: Sequence[str]) -> tuple[SweepOptions, dict[str, str]]:
    """The sweep's own options, and those of its runs."""
    given = split(arguments)
    own = {field.name for field in dataclasses.fields(SweepOptions)}
    options = override(SweepOptions(), {k: v for k, v in given.items() if k in own})
    axes = {key: text for key, text in given.items() if key not in own}
    for key in axes.keys() - GROWING | given.keys() & {"sweep_dir", "config"}:
        if options.resume is not None:
            raise ValueError(
                f"{key}={given[key]} cannot be given with resume={options.resume}, which has its "
                f"own; leave it out (only {', '.join(GROWING)} may grow)"
            )
    if options.resume is None and not axes:
        raise ValueError("a sweep needs lists of options, as in algo=a2c,ppo env=pong seed=0,1,2")
    if "run_dir" in axes:
        raise ValueError(
            f"run_dir={axes['run_dir']} cannot be given to a sweep, whose runs lie in its own "
            "directory; use sweep_dir=PATH for that"
        )
    return options, axes


def plan_runs(
    axes: Mapping[str, str], file: str | Path | None = None, *, trust: bool = False
) -> list[PlannedRun]:
    """A run for each combination of the values that ``axes`` lists with commas between them, over
    the options in ``file``.

    Of options that are integers ``0..4`` is 0, 1, 2, 3 and 4. ``env=atari49`` is the 49 games of
    Table 1 in Stooke and Abbeel 2018 (arXiv:1803.02811). ``trust``: ``file`` may name code even if
    it is not this user's.
    """
    lists = _lists(axes)
    runs: list[PlannedRun] = []
    known: dict[str, tuple[str, ...]] = {}  # arguments by name and by config
    for combination in product(*lists.values()):
        chosen = dict(zip(lists, combination, strict=True))
        arguments = tuple(f"{key}={value}" for key, value in chosen.items())
        config = _config_of(arguments, file, trust)
        varied = {
            key.rpartition(".")[2]: value
            for key, value in chosen.items()
            if len(lists[key]) > 1 and key not in ("algo", "env", "seed")
        }
        name = "-".join([config.env, config.algo, str(config.seed)])
        name += "".join(f"-{key}-{value}" for key, value in varied.items())
        name = "".join(c if c.isalnum() or c in "._-" else "-" for c in name)
        if len(name.encode()) > _MOST_NAME_BYTES:
            name = f"{name[:50]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
        for key in (name, repr(config)):
            if (first := known.setdefault(key, arguments)) is not arguments:
                raise ValueError(
                    f"runs {' '.join(first)} and {' '.join(arguments)} are the same, or would both "
                    f"be called {name}; give each value once"
                )
        pairs = [f"{key}={value}" for key, value in varied.items()]
        has_algo = not pairs or len(lists.get("algo", ())) > 1
        label = ", ".join([config.algo] * has_algo + pairs)
        runs.append(PlannedRun(name, label, arguments, config))
    return runs


def _lists(axes: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the values that each of ``axes`` lists; raise ValueError for too many."""
    lists = {key: _values(key, text, axes.get("algo", "")) for key, text in axes.items()}
    if lists.get("env") == ["atari49"]:
        lists["env"] = list(ATARI_49)
    if prod(map(len, lists.values())) > MOST_RUNS:
        raise ValueError(f"this sweep would have more than {MOST_RUNS:,} runs; list fewer values")
    return lists


def _config_of(arguments: tuple[str, ...], file: str | Path | None, trust: bool) -> TrainConfig:
    try:
        of_file = [] if file is None else [f"config={file}", *["trust=true"] * trust]
        return parse_arguments((*arguments, *of_file))
    except UntrustedError:
        raise
    except ValueError as error:
        raise ValueError(f"run {' '.join(arguments)}: {error}") from error


def _values(key: str, text: str, algos: str) -> list[str]:
    """Return what ``key=text`` lists, ranges in full. ``algos``: what ``algo`` lists."""
    options = _options(key, algos)
    if any(option.is_list for option in options):
        return [text]
    kinds = {kind for each in options for kind in alternatives(each.type)}
    full = []
    for value in text.split(","):
        is_meant = ".." in value or re.fullmatch("[0-9]+-[0-9]+", value)
        if not kinds & {int, float} or not is_meant:  # text may have dots, too
            full.append(value)
            continue
        ends = re.fullmatch(r"([0-9]+)\.\.([0-9]+)", value)
        if int not in kinds or not ends or int(ends[1]) > int(ends[2]):
            raise ValueError(
                f"{key}={text}: {value} is no range; write the first integer and the last, which "
                f"is included and not the smaller one, as in seed=0..4, or list all values"
            )
        most = int(ends[1]) + MOST_RUNS + 1  # `_lists` refuses so many
        full += map(str, range(int(ends[1]), min(int(ends[2]) + 1, most)))
    return full


@functools.cache
def _options(key: str, algos: str) -> list[Option]:
    own = [find_preset(algo) for algo in algos.split(",") if ":" in algo]
    options = [option for preset in (*PRESETS.values(), *own) for option in list_options(preset())]
    return [each for each in options if key in (each.key, each.name)]


def check_runs(runs: Sequence[PlannedRun]) -> None:
    """Builds the parts of runs, and gives them up, so that none is refused when its turn comes.

    Each environment and each other set of options is built once, not all their combinations. No
    process is started and no GPU is used; a replay is made small.
    """
    checked: set[object] = set()
    for run in runs:
        config = dataclasses.replace(run.config, seed=0)
        keys = {(config.env, config.atari), dataclasses.replace(config, env="")}
        if keys <= checked:
            continue
        checked |= keys
        try:
            pick_device(config.device)
            check_learners(config, Ranks())
            with sampling_threads():
                built = build(_on_cpu(config))
        except ValueError as error:
            raise ValueError(f"run {' '.join(run.arguments)}: {error}") from error
        built.close()


def _on_cpu(config: TrainConfig) -> TrainConfig:
    learner, frames = config.learner, 64
    if config.memory is not None and isinstance(learner, DQNConfig):
        frames += 2 * learner.sequence_steps  # which a replay of sequences needs more
    if isinstance(learner, ReplayConfig):
        learner = with_small_replay(learner, config.sampler, frames)
    return dataclasses.replace(config, device="cpu", gpus=None, learner=learner)


def write_plan(sweep_dir: Path, runs: Sequence[PlannedRun]) -> None:
    """``sweep.yaml``: what `read_plan` reads, beside the options of all runs in ``config.yaml``."""
    tree: dict[str, object] = {"options": _axes(runs), "runs": [run.name for run in runs]}
    if digest := _digest(sweep_dir):
        tree["config"] = digest
    write_yaml(sweep_dir / "sweep.yaml", OmegaConf.create(tree))


def _axes(runs: Sequence[PlannedRun]) -> dict[str, list[str]]:
    axes: dict[str, list[str]] = {}
    for run in runs:
        for argument in run.arguments:
            key, _, value = argument.partition("=")
            if value not in axes.setdefault(key, []):
                axes[key].append(value)
    return axes


def options_of_all(sweep_dir: Path) -> Path | None:
    """Return the copy of the file that the sweep was given as ``config``, if it was given one."""
    path = sweep_dir / "config.yaml"
    return path if path.is_file() else None


def _digest(sweep_dir: Path) -> str | None:
    path = options_of_all(sweep_dir)
    return None if path is None else hashlib.sha256(path.read_bytes()).hexdigest()


def read_plan(sweep_dir: Path, *, trust: bool = False) -> list[PlannedRun]:
    """The runs of the sweep in ``sweep_dir``."""
    path = sweep_dir / "sweep.yaml"
    if not path.is_file():
        raise ValueError(f"{sweep_dir} holds no sweep: there is no sweep.yaml in it")
    tree: Any = read_yaml(path, trust=trust, within="options")
    try:
        axes = {str(key): ",".join(map(str, values)) for key, values in tree["options"].items()}
        names = [str(name) for name in tree["runs"]]
    except Exception as error:  # a value of any type may stand in the place of any other
        raise ValueError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    if _digest(sweep_dir) != tree.get("config"):
        raise ValueError(
            f"{sweep_dir}/config.yaml, which has options of all runs, is not as it was when the "
            "sweep began; put it back, or begin another sweep"
        )
    # Which vouches for the options of all runs, too, by the digest.
    runs = plan_runs(axes, options_of_all(sweep_dir), trust=trust or is_own(path))
    if [run.name for run in runs] != names:
        raise ValueError(f"{path} is of another version of accel_rl; use the one that made it")
    return runs


def grow(sweep_dir: Path, runs: Sequence[PlannedRun], given: Mapping[str, str]) -> list[PlannedRun]:
    """Return the sweep of ``runs`` with the lists ``given`` in place of its own."""
    axes = {key: ",".join(values) for key, values in _axes(runs).items()}
    grown = plan_runs(axes | dict(given), options_of_all(sweep_dir), trust=True)
    steps = {run.name: run.config.total_steps for run in grown}
    for run in runs:
        old, new = run.config.total_steps, steps.get(run.name)
        if new is None:
            shown = " ".join(f"{key}={text}" for key, text in given.items())
            raise ValueError(
                f"with {shown} the run {run.name} would not be in the sweep any more; list what "
                "the sweep has, too"
            )
        if new < old:
            raise ValueError(f"total_steps={new} is less than the sweep's; give {old} or more")
    return grown
