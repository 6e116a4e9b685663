"""The results of a sweep: a score for each run, and a table of their aggregates.

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

import numpy as np

from accel_rl.runs.files import write_whole
from accel_rl.runs.human_scores import human_normalized
from accel_rl.runs.tables import EPISODE_WINDOW, read_rows
from accel_rl.sweeps.queue import Job
from accel_rl.tools.intervals import METHOD, Estimate, aggregate

NAMES = {"iqm": "IQM", "mean": "mean", "median": "median"}
_SCORE = "episode_return_raw_mean"
_INFO = "episode_info_"


@dataclass(frozen=True)
class Score:
    """The score of a finished run in its last evaluation, or else in its last 100 games.

    ``training_seconds`` leaves out evaluations. ``info``: means of the environment's own numbers
    over the same games, by their column in ``metrics.csv``.
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
    """Aggregates of human-normalised scores over all games, or of the scores of one environment.

    ``estimates``: by label, then statistic. ``counts``: games and runs, by label.
    """

    title: str
    estimates: Mapping[str, Mapping[str, Estimate]]
    counts: Mapping[str, tuple[int, int]]


def write_report(sweep_dir: Path, jobs: Sequence[Job]) -> list[Panel]:
    """Write ``results.csv`` and ``results.md``; return the aggregates.

    A job whose run has finished, but cannot be read, becomes a failed one.
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


def read_score(job: Job) -> Score | None:
    """Return the score of a finished run, or None if it has finished no game."""
    config = job.run.config
    path = job.run_dir / "metrics.csv"
    rows = read_rows(path, _SCORE, "steps", "training_seconds")
    if not rows:
        raise ValueError(f"{path} is empty or not there")
    last = scored = rows[-1]
    source = f"last {EPISODE_WINDOW} games"
    for row in read_rows(job.run_dir / "evaluation.csv", _SCORE)[-1:]:
        if math.isfinite(row[_SCORE]):  # else it has finished no game
            scored, source = row, "last evaluation"
    if not math.isfinite(value := scored[_SCORE]):
        return None
    cost = int(last["steps"]), last["training_seconds"]
    info = {column: mean for column, mean in scored.items() if column.startswith(_INFO)}
    return Score(job.run.label, config.env, config.seed, value, source, *cost, info)


def make_panels(scores: Sequence[Score]) -> list[Panel]:
    """Return one panel if every environment has a human's score, else one for each environment."""
    envs = list(dict.fromkeys(score.env for score in scores))
    if envs and all(human_normalized(env, 0.0) is not None for env in envs):
        games = f"{len(envs)} games" if len(envs) > 1 else envs[0]
        return [_panel(f"human-normalised score, {games}", scores, is_normalized=True)]
    return [_panel(f"score, {env}", [each for each in scores if each.env == env]) for env in envs]


def _panel(title: str, scores: Sequence[Score], is_normalized: bool = False) -> Panel:
    by_label: dict[str, dict[str, list[float]]] = {}
    for score in scores:
        normalized = human_normalized(score.env, score.value) if is_normalized else score.value
        assert normalized is not None
        by_label.setdefault(score.label, {}).setdefault(score.env, []).append(normalized)
    estimates, counts = {}, {}
    for label, games in by_label.items():
        estimates[label] = aggregate([np.array(values) for values in games.values()])
        counts[label] = len(games), sum(map(len, games.values()))
    return Panel(title, estimates, counts)


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
        rows = [
            [label, *map(str, panel.counts[label]), *(str(each[key]) for key in NAMES)]
            for label, each in panel.estimates.items()
        ]
        lines += _table(["configuration", "games", "runs", *NAMES.values()], rows)
    if panels:
        sources = sorted({f"mean of its {score.source}" for score in scored})
        lines += [
            "",
            "IQM: mean of the middle half of all runs. Mean and median: over games, of each game's "
            f"mean. In brackets: {METHOD}. The score of a run: {', '.join(sources)}.",
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
        told = [f"- {job.run.name}: {job.state}, {job.error}".strip(", ") for job in missing]
        lines += ["", "## Not finished", "", *told]
    return "\n".join(lines) + "\n"


def _info_columns(scores: Iterable[Score | None]) -> list[str]:
    return list(dict.fromkeys(column for score in scores if score for column in score.info))


def _means(name: str, scores: Sequence[Score], values: Sequence[float]) -> list[str]:
    """Return a section with the mean of ``values`` by environment and configuration."""
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
