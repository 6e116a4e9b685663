"""The table and the figures of the runs on MinAtar.

    python benchmarks/tables/minatar_table.py SWEEP_DIR...

Keeps the rows of each finished run as ``benchmarks/results/minatar/ALGORITHM_GAME_SEED.csv``, and
writes the tables in ``docs/results.md`` and its figures from all rows there, those of earlier
sweeps too, and from the scores of ``greedy_scores.py``. Without a sweep it draws these again.

A score is the mean return of the last 100 episodes of training. For aggregates over games it is
scaled, so that 0 is a random player's and 1 the best algorithm's mean in that game.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from accel_rl.envs.minatar import GAMES
from accel_rl.runs.figures import new_figure
from accel_rl.runs.tables import read_rows
from accel_rl.tools.intervals import aggregate
from benchmarks.harness.figures import Curve, draw_curves, save
from benchmarks.tables import greedy_scores
from benchmarks.tables.minatar import ALGORITHMS, cell_of
from benchmarks.tables.rows import keep, put

ROOT = Path(__file__).resolve().parents[2]
ROWS, DOCS = ROOT / "benchmarks" / "results" / "minatar", ROOT / "docs"
EARLIER = "entropy_bonus_0.05"
"""folder in `ROWS` of the runs of A2C, PAAC and A3C with another entropy bonus"""
COLUMNS = ("steps", "episodes", "training_seconds", "episode_return_raw_mean")
RANDOM = {"asterix": 0.6, "breakout": 0.6, "freeway": 0.1, "seaquest": 0.1, "space_invaders": 2.7}
"""mean returns of uniformly random actions, over 100 episodes"""
PUBLISHED = {"asterix": 15, "breakout": 28, "freeway": 58, "space_invaders": 131}
"""returns of gymnax's PPO after 10 M steps, from its README"""
FAMILIES = {
    "A2C": {"a2c": "#08306b", "paac": "#2171b5", "a3c": "#6baed6", "ga3c": "#00a3a3"},
    "PPO": {"ppo": "#00592c", "appo": "#5bb974"},
    "Q-learning": {"dqn": "#8c2d04", "double_dqn": "#e6682e", "async_dqn": "#f4a582"},
    "distributions": {
        "cat_dqn": "#54278f",
        "rainbow": "#a67fc9",
        "iqn": "#c51b7d",
        "btr": "#e9a3c9",
    },
    "PQN": {"pqn": "#b8860b"},
}
Values = NDArray[np.float64]


class Run(NamedTuple):
    """One run: its curve, as ``[rows]`` of steps and returns, and what it took."""

    steps: Values
    returns: Values
    seconds: float


Runs = Mapping[str, Mapping[str, Sequence[Run]]]
Scores = Mapping[str, Mapping[str, Values]]
"""of each run, by algorithm and game"""


def main(sweeps: Sequence[str]) -> None:
    """Keep the rows of the sweeps, and write page and figures."""
    for sweep in sweeps:
        keep(sweep, ROWS, COLUMNS, _name_of)
    runs = read(ROWS)
    if not runs:
        sys.exit(f"error: there is no finished run in {', '.join(sweeps) or 'the results'}")
    every = runs | _earlier(read(ROWS / EARLIER))
    scores = {
        algorithm: {game: np.array([run.returns[-1] for run in each]) for game, each in of.items()}
        for algorithm, of in every.items()
    }
    greedy = read_greedy(greedy_scores.SCORES)
    greedy |= _earlier(read_greedy(ROWS / EARLIER / "greedy.csv"))
    draw_games(runs, finding({name: each for name, each in scale(scores).items() if name in runs}))
    put(DOCS / "results.md", "scores", page(every, scores))
    if greedy:
        put(DOCS / "results.md", "greedy", greedy_page(greedy))


def _name_of(config: Any) -> str | None:
    cell = cell_of(config)
    return cell and "_".join(cell)


def _earlier(each: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{algorithm}, bonus 0.05": of for algorithm, of in each.items()}


def read(folder: Path) -> dict[str, dict[str, list[Run]]]:
    """All kept runs, algorithms in the order of the table."""
    found: dict[str, dict[str, list[Run]]] = {}
    for algorithm in ALGORITHMS:
        for game in GAMES:
            for path in sorted(folder.glob(f"{algorithm}_{game}_[0-9]*.csv")):
                rows = read_rows(path, *COLUMNS)
                steps, returns = (
                    np.array([row[name] for row in rows])
                    for name in ("steps", "episode_return_raw_mean")
                )
                is_known = np.isfinite(returns)
                run = Run(steps[is_known], returns[is_known], rows[-1]["training_seconds"])
                found.setdefault(algorithm, {}).setdefault(game, []).append(run)
    return found


def read_greedy(path: Path) -> dict[str, dict[str, Values]]:
    """The scores of `benchmarks.tables.greedy_scores`, algorithms in the order of the table."""
    order, found = list(ALGORITHMS), dict[str, dict[str, list[float]]]()
    for score in sorted(greedy_scores.read(path), key=lambda each: order.index(each.algorithm)):
        found.setdefault(score.algorithm, {}).setdefault(score.game, []).append(score.mean)
    return {
        algorithm: {game: np.array(each) for game, each in of.items()}
        for algorithm, of in found.items()
    }


def scale(scores: Scores) -> dict[str, dict[str, Values]]:
    """Scores of which 0 is a random player's, and 1 the best algorithm's mean."""
    best = {
        game: max(of[game].mean() for of in scores.values() if game in of)
        for game in GAMES
        if any(game in of for of in scores.values())
    }
    return {
        algorithm: {
            game: (each - RANDOM[game]) / (best[game] - RANDOM[game]) for game, each in of.items()
        }
        for algorithm, of in scores.items()
    }


def page(runs: Runs, scores: Scores) -> str:
    """The first table, as Markdown."""
    scaled = scale(scores)
    lines = [
        f"| algorithm | million steps | {' | '.join(GAMES)} | IQM | steps/s | minutes a run |",
        f"|{'---|' * (len(GAMES) + 5)}",
    ]
    for algorithm, of in runs.items():
        every = [run for each in of.values() for run in each]
        million = max(run.steps[-1] for run in every) / 1e6
        speed = np.median([run.steps[-1] / run.seconds for run in every])
        minutes = np.median([run.seconds / 60 for run in every])
        numbers = f"{_iqm(scaled[algorithm])} | {speed:,.0f} | {minutes:.0f}"
        lines.append(f"| {algorithm} | {million:.0f} | {_cells(scores[algorithm])} | {numbers} |")
    players = " | ".join(f"{RANDOM[game]:.1f}" for game in GAMES)
    lines.append(f"| random actions | | {players} | 0 | | |")
    published = " | ".join(str(PUBLISHED.get(game, "")) for game in GAMES)
    lines.append(f"| PPO of gymnax | 10 | {published} | | | |")
    return "\n".join(lines)


def greedy_page(scores: Scores) -> str:
    """The second table, of scores without exploration."""
    scaled = scale(scores)
    lines = [
        f"| algorithm | {' | '.join(GAMES)} | IQM |",
        f"|{'---|' * (len(GAMES) + 2)}",
    ]
    for algorithm, of in scores.items():
        lines.append(f"| {algorithm} | {_cells(of)} | {_iqm(scaled[algorithm])} |")
    return "\n".join(lines)


def _cells(scores: Mapping[str, Values]) -> str:
    return " | ".join(
        f"{scores[game].mean():.1f} ({len(scores[game])})" if game in scores else ""
        for game in GAMES
    )


def _iqm(scores: Mapping[str, Values]) -> str:
    if len(scores) < len(GAMES):
        return ""
    iqm = aggregate(list(scores.values()))["iqm"]
    return str(iqm)


def draw_games(runs: Runs, title: str) -> None:
    """A row for each family and a column for each game; the other families are grey."""
    families = {name: of for name, of in FAMILIES.items() if {*of} & {*runs}}
    figure = new_figure(8.4, 1.25 * len(families) + 0.9)
    panels = figure.subplots(len(families), len(GAMES), squeeze=False, sharex=True, sharey="col")
    for row, (family, colours) in zip(panels, families.items(), strict=True):
        for axes, game in zip(row, GAMES, strict=True):
            # Colours come last, above the grey.
            names = sorted((name for name in runs if game in runs[name]), key=colours.__contains__)
            last = game == GAMES[-1]
            curves = []
            for name in names:
                x, y = _mean_curve(runs[name][game])
                label = name if last and name in colours else ""
                curves.append(Curve(label, x, y, colours.get(name, "#dcdcdc")))
            if curves:
                draw_curves(axes, curves, 8)
            axes.tick_params(labelsize=7)
        row[0].set_ylabel(family, fontsize=9)
    for axes, game in zip(panels[0], GAMES, strict=True):
        axes.set_title(game.replace("_", " "), fontsize=9)
    figure.supylabel("return", fontsize=8)
    most = max(len(each) for of in runs.values() for each in of.values())
    seeds = "one seed" if most == 1 else f"one to {most} seeds"
    foot = f"million steps; mean return of the last 100 episodes, {seeds}; grey: the other families"
    save(figure, DOCS / "pictures" / "minatar_curves.png", title, foot)


def _mean_curve(runs: Sequence[Run]) -> tuple[Any, Any]:
    """Million steps, and the mean over the runs."""
    steps = min((run.steps for run in runs), key=len)
    return steps / 1e6, np.mean([np.interp(steps, run.steps, run.returns) for run in runs], 0)


def finding(scaled: Scores) -> str:
    """The algorithms with the highest mean over all games, as a sentence."""
    iqm = {
        name: aggregate(list(of.values()))["iqm"].value
        for name, of in scaled.items()
        if len(of) == len(GAMES)
    }
    best = sorted(iqm, key=lambda name: -iqm[name])[:3]
    if not best:
        return "MinAtar: no algorithm has played all games"
    others = " and ".join(f"{name} ({iqm[name]:.2f})" for name in best[1:])
    told = f"{best[0]} scores most over the five games of MinAtar (IQM {iqm[best[0]]:.2f})"
    return f"{told}, before {others}" if others else told


if __name__ == "__main__":
    main(sys.argv[1:])
