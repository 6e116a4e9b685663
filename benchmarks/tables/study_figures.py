"""The figure and the table of each study of `studies`.

    python benchmarks/tables/study_figures.py SWEEP_DIR...

Keeps the rows of each finished run as ``benchmarks/results/studies/SETTING_SEED.csv``, and writes
the tables in ``benchmarks/results/scale.md`` and its figures from all rows there, those of earlier
sweeps too.

The gradient noise scale is the batch at which noise and gradient are of one size (McCandlish et al.
2018, arXiv:1812.06162). It follows from ``gradient_cosine``, see `noise_scale`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from accel_rl.runs.figures import COLOURS, new_figure
from accel_rl.runs.tables import read_rows
from accel_rl.tools.intervals import FEWEST_RUNS, aggregate
from benchmarks.harness.figures import Curve, draw_curves, save
from benchmarks.tables.rows import keep, put
from benchmarks.tables.studies import STUDIES, Setting, Study

ROOT = Path(__file__).resolve().parents[2]
ROWS, DOCS = ROOT / "benchmarks" / "results" / "studies", ROOT / "docs"
SCORE, COSINE, LAG = "episode_return_raw_mean", "gradient_cosine", "lag_updates_mean"
COLUMNS = ("steps", "training_seconds", SCORE, COSINE, LAG)
POINTS = 30
"""of a curve, each with its interval"""
Values = NDArray[np.float64]


class Curves(NamedTuple):
    """The runs of a setting; ``steps``: ``[points]``, the others ``[runs]`` but ``scores``."""

    steps: Values
    scores: Values  # [runs, points]
    cosine: Values
    lag: Values
    seconds: Values


def main(sweeps: Sequence[str]) -> None:
    """Keep the rows of the sweeps, and write tables and figures."""
    for sweep in sweeps:
        keep(sweep, ROWS, COLUMNS, _setting_of)
    for name, study in STUDIES.items():
        found = {key: read(key) for key in study.settings}
        if known := {key: each for key, each in found.items() if each is not None}:
            draw(DOCS / "pictures" / f"study_{name}.png", study, known)
            put(ROWS.parent / "scale.md", name, table(study, known))


def _setting_of(config: Any) -> str | None:
    module, _, name = str(config["algo"]).rpartition(":")
    return name if module == "benchmarks.tables.studies" else None


def read(setting: str) -> Curves | None:
    """All kept runs of a setting."""
    runs = []
    for path in sorted(ROWS.glob(f"{setting}_[0-9].csv")):
        rows = read_rows(path, *COLUMNS)
        runs.append({name: np.array([row[name] for row in rows]) for name in COLUMNS})
    if not runs:
        return None
    first = max(run["steps"][np.isfinite(run[SCORE])][0] for run in runs)
    steps = np.linspace(first, min(run["steps"][-1] for run in runs), POINTS)

    def mean(column: str) -> Values:
        values = [run[column] for run in runs]
        return np.array([np.nanmean(v) if np.isfinite(v).any() else np.nan for v in values])

    scores = [np.interp(steps, run["steps"], run[SCORE]) for run in runs]
    seconds = np.array([run["training_seconds"][-1] for run in runs])
    return Curves(steps, np.stack(scores), mean(COSINE), mean(LAG), seconds)


def noise_scale(cosine: float, batch: int) -> float:
    """Samples at which a gradient has as much noise as signal; infinite: more than can be told.

    Let the gradient of a batch of ``B`` be ``G + e`` with ``E |e|^2 = r |G|^2``, ``r`` the noise
    scale divided by ``B``. Half of the batch has twice the noise, of which the whole has half. So
    the squared cosine of both is about ``(1 + r) / (1 + 2 r)``: 1 without noise, 1/2 with nothing
    else.
    """
    square = cosine**2
    return batch * (1 - square) / (2 * square - 1) if 2 * square > 1 else math.inf


def table(study: Study, found: dict[str, Curves]) -> str:
    """The study's table, as Markdown, without empty columns."""
    head = "setting|runs|samples of an update|score at half|at the end|mean|gradient cosine|"
    head += "noise scale, samples|lag, updates|steps/s"
    rows = [tuple(head.split("|"))]
    for key, curves in found.items():
        setting = study.settings[key]
        scores = curves.scores
        half = scores[:, np.searchsorted(curves.steps, curves.steps[-1] / 2)]
        rows.append(
            (
                setting.label,
                f"{len(scores)}",
                f"{setting.batch:,}" if setting.batch else "",
                *(_interval(each) for each in (half, scores[:, -1], scores.mean(1))),
                *_noise(setting, curves.cosine),
                "" if np.isnan(curves.lag).all() else f"{np.nanmean(curves.lag):.0f}",
                f"{np.median(curves.steps[-1] / curves.seconds):,.0f}",
            )
        )
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    lines = [f"| {' | '.join(row)} |" for row in zip(*columns, strict=True)]
    return "\n".join([lines[0], f"|{'---|' * len(columns)}", *lines[1:]])


def _interval(values: Values) -> str:
    mean = aggregate([values])["mean"]
    if np.isnan(mean.low):
        return f"{mean.value:.1f}"
    kind = "range " * mean.is_range
    return f"{mean.value:.1f} ({kind}{mean.low:.1f} to {mean.high:.1f})"


def _noise(setting: Setting, cosine: Values) -> tuple[str, str]:
    if np.isnan(cosine).all() or setting.batch is None:
        return "", ""
    mean = float(np.nanmean(cosine))
    scale = noise_scale(mean, setting.batch)
    return f"{mean:.2f}", f"{scale:,.0f}" if scale < 1e6 else "too large to tell"


def draw(path: Path, study: Study, found: dict[str, Curves]) -> None:
    """Score over steps in each panel, with a band of intervals from three seeds on."""
    labels = {key: study.settings[key].label for key in found}
    names = {
        key: label.replace(study.panel_of(label), "").strip(", ") for key, label in labels.items()
    }
    colours = dict(zip(dict.fromkeys(names.values()), COLOURS, strict=False))
    figure = new_figure(8.0, 3.9)
    panels = figure.subplots(1, len(study.panels), squeeze=False, sharey=True)[0]
    for axes, panel in zip(panels, study.panels, strict=True):
        curves = []
        for key, each in found.items():
            if study.panel_of(labels[key]) != panel:
                continue
            band = [aggregate([column])["mean"] for column in each.scores.T]
            has_band = len(each.scores) >= FEWEST_RUNS
            curves.append(
                Curve(
                    names[key],
                    each.steps / 1e6,  # type: ignore[arg-type]
                    each.scores.mean(0),  # type: ignore[arg-type]
                    colours[names[key]],
                    low=[estimate.low for estimate in band] if has_band else None,
                    high=[estimate.high for estimate in band] if has_band else None,
                )
            )
        draw_curves(axes, curves)
        axes.set_title(panel, loc="left", fontsize=10)
        axes.set_xlabel("million steps")
    panels[0].set_ylabel("return")
    most = max(len(each.scores) for each in found.values())
    seeds = "one seed each" if most == 1 else f"mean of {most} seeds"
    band_note = "; band: 95 % interval" if most >= FEWEST_RUNS else ""
    save(figure, path, study.title, f"MinAtar's breakout, {seeds}{band_note}")


if __name__ == "__main__":
    main(sys.argv[1:])
