"""What a sweep ends in: a score for each run, and one table and one figure of their aggregates.

The form is that of Table 1 in Stooke and Abbeel 2018 (arXiv:1803.02811), human-normalised mean and
median over games, with the interquartile mean and the intervals of Agarwal et al. 2021
(arXiv:2108.13264) beside them.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill

import numpy as np

from accel_rl.runs.files import draw_or_warn, write_whole
from accel_rl.runs.tables import EPISODE_WINDOW, read_rows
from accel_rl.sweeps.queue import Job
from accel_rl.tools.human_scores import human_normalized
from accel_rl.tools.intervals import METHOD, Estimate, aggregate

NAMES = {"iqm": "IQM", "mean": "mean", "median": "median"}
_MOST_INTERVALS = 3
"""between ticks of scores, for whose labels a panel has little room"""
_SCORE = "episode_return_raw_mean"
_INFO = "episode_info_"


@dataclass(frozen=True)
class Score:
    """A finished run's: that of its last evaluation, else of its last 100 games.

    ``steps`` and ``training_seconds``: what it took, evaluations left out. ``info``: means of the
    environment's own numbers over the same games, by their column in ``metrics.csv``.
    """

    label: str
    env: str
    seed: int
    value: float
    source: str
    steps: int
    training_seconds: float
    info: Mapping[str, float]


@dataclass(frozen=True)
class Panel:
    """Aggregates of one kind of score: over all games where each has a human's score, else of one
    environment. ``estimates``: by label, then statistic; ``counts``: games and runs, by label.
    """

    title: str
    estimates: Mapping[str, Mapping[str, Estimate]]
    counts: Mapping[str, tuple[int, int]]


def write_report(sweep_dir: Path, jobs: Sequence[Job]) -> list[Panel]:
    """Writes ``results.csv`` and ``results.md``; returns what is in the table.

    Runs that have not finished, or have finished no game, count nowhere and are named as such. A
    job whose run has finished, but cannot be read, is then one that has failed.

    Raises:
        OSError: one could not be written.
    """
    scores = {}
    for job in jobs:
        if job.state == "finished":
            try:
                scores[job.run.name] = read_score(job)
            except ValueError as error:
                job.state, job.error = "failed", str(error)
    scored = [score for score in scores.values() if score is not None]
    panels = make_panels(scored)
    write_whole(sweep_dir / "results.csv", _csv(jobs, scores).encode())
    text = _markdown(sweep_dir.name, jobs, scores, panels)
    write_whole(sweep_dir / "results.md", text.encode())
    return panels


def draw_report(sweep_dir: Path, panels: Sequence[Panel]) -> bool:
    """Draw ``results.png``; log a warning and return False if it could not be drawn."""
    path = sweep_dir / "results.png"
    return draw_or_warn(lambda: write_whole(path, _draw(panels)), path)


def read_score(job: Job) -> Score | None:
    """The score of a finished run; None if it has finished no game.

    Raises:
        ValueError: its files cannot be read.
    """
    config = job.run.config
    path = job.run_dir / "metrics.csv"
    rows = read_rows(path, _SCORE, "steps", "training_seconds")
    if not rows:
        raise ValueError(f"{path} is empty or not there")
    last = rows[-1]
    scored, source = last, f"last {EPISODE_WINDOW} games"
    for row in read_rows(job.run_dir / "evaluation.csv", _SCORE)[-1:]:
        if math.isfinite(row[_SCORE]):  # else it has finished no game
            scored, source = row, "last evaluation"
    value = scored[_SCORE]
    if not math.isfinite(value):
        return None
    cost = int(last["steps"]), last["training_seconds"]
    info = {column: mean for column, mean in scored.items() if column.startswith(_INFO)}
    return Score(job.run.label, config.env, config.seed, value, source, *cost, info)


def make_panels(scores: Sequence[Score]) -> list[Panel]:
    """One panel of human-normalised scores if every environment has a human's; else one for each
    environment, of raw scores.
    """
    envs = list(dict.fromkeys(score.env for score in scores))
    if envs and all(human_normalized(env, 0.0) is not None for env in envs):
        games = f"{len(envs)} games" if len(envs) > 1 else envs[0]
        return [_panel(f"human-normalised score, {games}", scores, is_normalized=True)]
    return [
        _panel(f"score, {env}", [score for score in scores if score.env == env], False)
        for env in envs
    ]


def _panel(title: str, scores: Sequence[Score], is_normalized: bool) -> Panel:
    by_label: dict[str, dict[str, list[float]]] = {}
    for score in scores:
        normalized = human_normalized(score.env, score.value) if is_normalized else score.value
        assert normalized is not None
        by_label.setdefault(score.label, {}).setdefault(score.env, []).append(normalized)
    return Panel(
        title,
        {
            label: aggregate([np.array(values) for values in games.values()])
            for label, games in by_label.items()
        },
        {label: (len(games), sum(map(len, games.values()))) for label, games in by_label.items()},
    )


def _csv(jobs: Sequence[Job], scores: Mapping[str, Score | None]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    head = "run configuration env seed state score human_normalized score_of steps training_seconds"
    columns = _info_columns(scores.values())
    writer.writerow([*head.split(), *columns, "error"])
    for job in jobs:
        config = job.run.config
        row: list[object] = [job.run.name, job.run.label, config.env, config.seed, job.state]
        score = scores.get(job.run.name)
        if score is None:
            row += [""] * (5 + len(columns))
        else:
            normalized = human_normalized(score.env, score.value)
            row += [f"{score.value:.10g}", "" if normalized is None else f"{normalized:.6g}"]
            row += [score.source, score.steps, f"{score.training_seconds:.1f}"]
            means = [score.info.get(column, math.nan) for column in columns]
            row += ["" if math.isnan(mean) else f"{mean:.10g}" for mean in means]
        writer.writerow([*row, job.error])
    return text.getvalue()


def _markdown(
    name: str, jobs: Sequence[Job], scores: Mapping[str, Score | None], panels: Sequence[Panel]
) -> str:
    states = [job.state for job in jobs]
    scored = [score for score in scores.values() if score is not None]
    lines = [f"# Sweep {name}", "", f"{states.count('finished')} of {len(jobs)} runs finished."]
    for panel in panels:
        lines += ["", f"## {panel.title[0].upper()}{panel.title[1:]}", ""]
        lines += _table(
            ["configuration", "games", "runs", *NAMES.values()],
            [
                [label, *map(str, panel.counts[label])] + [str(each[key]) for key in NAMES]
                for label, each in panel.estimates.items()
            ],
        )
    if panels:
        lines += [
            "",
            "IQM: mean of the middle half of all runs. Mean and median: over games, of each game's "
            f"mean. In brackets: {METHOD}. The score of a run: {', '.join(_sources(scored))}.",
            *_means("score", scored, [score.value for score in scored]),
        ]
        for column in _info_columns(scored):
            key = column.removeprefix(_INFO).removesuffix("_mean")
            lines += _means(key, scored, [score.info.get(column, math.nan) for score in scored])
    without = [name for name, score in scores.items() if score is None]
    if without:
        lines += ["", "## Finished, but no game", "", *(f"- {name}" for name in without)]
    missing = [job for job in jobs if job.state != "finished"]
    if missing:
        lines += ["", "## Not finished", ""]
        lines += [
            f"- {job.run.name}: {job.state}{', ' * bool(job.error)}{job.error}" for job in missing
        ]
    return "\n".join(lines) + "\n"


def _sources(scores: Sequence[Score]) -> list[str]:
    return sorted({f"mean of its {score.source}" for score in scores})


def _info_columns(scores: Iterable[Score | None]) -> list[str]:
    return list(dict.fromkeys(column for score in scores if score for column in score.info))


def _means(name: str, scores: Sequence[Score], values: Sequence[float]) -> list[str]:
    """A section: the mean of ``values``, one of each score, by environment and configuration.

    NaN counts nowhere.
    """
    labels = list(dict.fromkeys(score.label for score in scores))
    cells: dict[tuple[str, str], list[float]] = {}
    for score, value in zip(scores, values, strict=True):
        if not math.isnan(value):
            cells.setdefault((score.env, score.label), []).append(value)
    rows = []
    for env in dict.fromkeys(score.env for score in scores):
        known = [cells.get((env, label)) for label in labels]
        rows.append([env, *(f"{np.mean(each):,.2f}" if each else "none" for each in known)])
    return ["", f"## Mean {name} of each game", "", *_table(["env", *labels], rows)]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def _draw(panels: Sequence[Panel]) -> memoryview:
    """A row for each panel: each configuration's statistics as points with their intervals."""
    from accel_rl.runs.figures import COLOURS, MaxNLocator, new_figure, plain, style_axes, to_png

    most = max(len(panel.estimates) for panel in panels)
    labels = [[plain(_in_lines(label)) for label in panel.estimates] for panel in panels]
    num_lines = max(label.count("\n") + 1 for each in labels for label in each)
    figure = new_figure(10.0, len(panels) * (1.2 + (0.26 + 0.14 * num_lines) * most))
    for row, panel in enumerate(panels):
        for column, (key, name) in enumerate(NAMES.items()):
            axes = figure.add_subplot(len(panels), len(NAMES), row * len(NAMES) + column + 1)
            for place, estimates in enumerate(panel.estimates.values()):
                each = estimates[key]
                if not math.isnan(each.low):
                    axes.plot(
                        [each.low, each.high],
                        [place, place],
                        color=COLOURS[0],
                        linewidth=6,
                        alpha=0.35,
                        solid_capstyle="butt",
                    )
                axes.plot([each.value], [place], "|", color=COLOURS[0], ms=14, mew=2.5)
            axes.set_yticks(range(len(panel.estimates)))
            axes.set_yticklabels(labels[row] if column == 0 else [])
            axes.tick_params(labelsize=8)
            axes.set_ylim(len(panel.estimates) - 0.5, -0.5)
            axes.xaxis.set_major_locator(MaxNLocator(_MOST_INTERVALS))
            axes.set_title(name)
            style_axes(axes, "x")
            axes.set_xlabel(plain(panel.title) if column == 1 else "")
    figure.supxlabel(METHOD, fontsize=8, color="#555555")
    return to_png(figure)


def _in_lines(label: str) -> str:
    """``label`` broken between its options, so that it leaves room beside it."""
    return fill(label, width=30, break_long_words=False, break_on_hyphens=False)
