"""The score of a saved run: its policy plays whole games, as in evaluations during training.

The protocol is in `accel_rl.training.evaluation`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from accel_rl import __version__
from accel_rl.config import TrainConfig
from accel_rl.envs import is_atari_game
from accel_rl.runs.files import write_whole
from accel_rl.runs.human_scores import human_normalized
from accel_rl.runs.saved import find_policy, read_trusted_config
from accel_rl.samplers import Evaluation
from accel_rl.system.lasting_console import LastingConsole
from accel_rl.system.process_settings import directory, taking_back
from accel_rl.tools.output import check_output, show_progress
from accel_rl.tools.policy import ActingOptions, load_agent
from accel_rl.training.devices import pick_device
from accel_rl.training.evaluation import (
    longest_game,
    make_evaluation_sampler,
    play_games,
    with_game_limit,
)
from accel_rl.training.metrics import info_means
from accel_rl.training.torch_setup import sampling_threads


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(ActingOptions):
    """Options of `evaluate_run` and of ``accel_rl evaluate``.

    Raises:
        ValueError: a count is out of range.
    """

    num_steps: int = 125_000
    """Steps of all environments together. A game that has begun is played to its end."""
    num_episodes: int | None = None
    """Number of games, instead of num_steps."""
    num_envs: int = 16
    """Number of environments."""
    max_episode_steps: int | None = None
    """Steps after which a game is given up and does not count. none: 100,000, or num_steps if that
    is larger.
    Atari: steps after which a game is cut off; it counts with its score. none: 27,000."""
    max_noops: int | None = None
    """Atari: maximum number of no-ops at the start of a game. none: as in training."""
    num_workers: int | None = None
    """Number of worker processes. none: one for each core, at most num_envs.
    0: all environments are stepped in this process, which works on every system."""
    out: str | None = None
    """JSON file to write. none: evaluation.json in the run directory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_episodes is not None and self.num_steps != EvaluateOptions.num_steps:
            raise ValueError(
                f"num_episodes={self.num_episodes} takes the place of num_steps={self.num_steps}; "
                f"leave one of them out"
            )


@dataclass(frozen=True, kw_only=True)
class EvaluationReport:
    """The content of ``evaluation.json``. Statistics are None if no game was finished.

    Attributes:
        run: directory of the run.
        env: name of the environment.
        algo: name of the preset.
        training_seed: seed of the run.
        checkpoint_steps: steps after which the checkpoint was written.
        num_steps: steps of the games that count.
        num_envs: number of environments.
        seed: seed of the evaluation.
        greedy: whether actions were greedy.
        max_episode_steps: steps after which a game was given up, or an Atari game cut off.
        max_noops: Atari: maximum number of no-ops at the start.
        num_games: number of games that count.
        num_unfinished: number of abandoned games, in environments without a limit. They do not
            count.
        num_lost: number of games cut off because a worker was lost. They do not count.
        mean: mean score.
        median: median score.
        std: standard deviation; the divisor is the number of games.
        min: lowest score.
        max: highest score.
        human_normalized_mean: mean score relative to random play (0) and a human (1); None for
            other environments.
        scores: score of each game, in order of their ends.
        lengths: length of each game in steps.
        info_means: mean of each info key over the games whose last step had it; None if none had
            it.
        accel_rl_version: version of accel_rl.
    """

    run: str
    env: str
    algo: str
    training_seed: int
    checkpoint_steps: int
    num_steps: int
    num_envs: int
    seed: int
    greedy: bool
    max_episode_steps: int | None
    max_noops: int | None
    num_games: int
    num_unfinished: int
    num_lost: int
    mean: float | None
    median: float | None
    std: float | None
    min: float | None
    max: float | None
    human_normalized_mean: float | None
    scores: list[float]
    lengths: list[int]
    info_means: dict[str, float | None]
    accel_rl_version: str


def evaluate_run(
    run_dir: str | Path, options: EvaluateOptions, console: Console | None = None
) -> EvaluationReport:
    """Play whole games with the policy of a saved run, and write the report to ``out``.

    Args:
        run_dir: directory of the run.
        options: the options.
        console: where to show progress; None: the terminal.

    Returns:
        The report.

    Raises:
        ValueError: the run cannot be read, an option does not fit it or this machine, or ``out``
            exists. Nothing was played.
        SamplerError: this system is not Linux and ``num_workers`` is not 0, or a worker failed.
        OSError: ``out`` could not be written.
    """
    run_dir = Path(run_dir)
    config = _for_evaluation(read_trusted_config(run_dir, trust=options.trust), options)
    checkpoint = find_policy(run_dir, options.checkpoint).absolute()
    out = Path(options.out) if options.out else run_dir / "evaluation.json"
    check_output(out, (".json",), overwrite=options.overwrite)
    limit = options.max_episode_steps or longest_game(config.env, options.num_steps)
    with show_progress(
        console or LastingConsole(), "steps", None if options.num_episodes else options.num_steps
    ) as show:
        result, keys, steps = _play(config, checkpoint, options, limit, show)
    scores = [episode.episode_return for episode in result.episodes]
    statistics = {
        each: float(getattr(np, each)(scores)) if scores else None
        for each in ("mean", "median", "std", "min", "max")
    }
    mean = statistics["mean"]
    means = info_means(result.episodes, keys).values()
    report = EvaluationReport(
        run=str(run_dir),
        env=config.env,
        algo=config.algo,
        training_seed=config.seed,
        checkpoint_steps=steps,
        num_steps=result.num_steps,
        num_envs=options.num_envs,
        seed=options.seed,
        greedy=options.greedy,
        max_episode_steps=limit,
        max_noops=config.atari.max_noops if is_atari_game(config.env) else None,
        num_games=len(scores),
        num_unfinished=result.num_unfinished,
        num_lost=result.num_lost,
        **statistics,
        human_normalized_mean=None if mean is None else human_normalized(config.env, mean),
        scores=scores,
        lengths=[episode.episode_length for episode in result.episodes],
        info_means={k: v if math.isfinite(v) else None for k, v in zip(keys, means, strict=True)},
        accel_rl_version=__version__,
    )
    write_whole(out, (json.dumps(dataclasses.asdict(report), indent=2) + "\n").encode())
    return report


@taking_back([directory()])
def _play(
    config: TrainConfig,
    checkpoint: Path,
    options: EvaluateOptions,
    limit: int,
    show: Callable[[int], None],
) -> tuple[Evaluation, Sequence[str], int]:
    """Return the games, the info keys, and the steps after which the policy was saved."""
    # Other games than those of training and its evaluations, which come from config.seed, too.
    seeds = np.random.SeedSequence([config.seed, 2, options.seed])
    device, num_envs = pick_device(options.device), options.num_envs
    sampler = make_evaluation_sampler(
        config, num_envs, seeds, device, num_workers=options.num_workers
    )
    with sampling_threads(), closing(sampler):
        spec = sampler.env_spec
        agent, steps = load_agent(
            checkpoint, config, spec, device, greedy=options.greedy, env_index=num_envs
        )
        result = play_games(
            sampler,
            agent,
            show,
            num_steps=None if options.num_episodes else options.num_steps,
            num_episodes=options.num_episodes,
            max_episode_steps=limit,
        )
    return result, spec.info_keys, steps


def report_table(report: EvaluationReport) -> RenderableType:
    """Return the report as a table for people."""
    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(
        "policy",
        f"{report.env}, {report.algo}, seed {report.training_seed}, "
        f"after {report.checkpoint_steps:,} steps{', greedy' if report.greedy else ''}",
    )
    table.add_row("played", f"{report.num_steps:,} steps in {report.num_envs} environments")
    games = f"{report.num_games:,}"
    for number, what in ((report.num_unfinished, "unfinished"), (report.num_lost, "lost")):
        games += f", {number:,} {what} (not counted)" if number else ""
    table.add_row("games", games)
    if report.mean is None:
        table.add_row("score", "none: no game was finished")
        return table
    for name in ("mean", "median", "std", "min", "max"):
        table.add_row(name, f"{getattr(report, name):,.2f}")
    if report.human_normalized_mean is not None:
        table.add_row(
            "human-normalised",
            f"{report.human_normalized_mean:.1%} (0%: random play, 100%: a human)",
        )
    for key, info_mean in report.info_means.items():
        table.add_row(Text(f"mean {key}"), "none" if info_mean is None else f"{info_mean:,.4g}")
    return table


def _for_evaluation(config: TrainConfig, options: EvaluateOptions) -> TrainConfig:
    """Return the run's config with the games that ``options`` ask for, on this machine."""
    if options.max_noops is not None and not is_atari_game(config.env):
        raise ValueError(
            f"max_noops={options.max_noops} has no effect, because env={config.env} is no Atari "
            "game; leave it out"
        )
    config = with_game_limit(config)
    given = {"max_episode_steps": options.max_episode_steps, "max_noops": options.max_noops}
    changes: Any = {name: value for name, value in given.items() if value is not None}
    return dataclasses.replace(config, atari=dataclasses.replace(config.atari, **changes))
