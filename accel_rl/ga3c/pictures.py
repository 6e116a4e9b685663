"""Picture of a GA3C run: how its predictors, trainers and agents were adjusted in number (Fig. 2
of Babaeizadeh et al. 2017, arXiv:1611.06256).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from accel_rl.runs.figures import COLOURS, MaxNLocator, new_figure, plain, style_axes, to_png
from accel_rl.runs.files import write_whole
from accel_rl.runs.tables import Row

_COUNTS = {"num_trainers": "trainers", "num_predictors": "predictors", "num_agents": "agents"}


def draw_tuner(path: Path, rows: Sequence[Row], title: str) -> None:
    """Writes a PNG of the counts in each window and of how fast they trained, over time.

    ``rows``: those of ``tuner.csv``, one for each window: ``seconds`` at its end, the counts that
    ran in it, updates a second (``trainings_per_second``), and whether the counts were kept
    (others have a hollow mark).

    Raises:
        OSError: the file could not be written; the one before stays.
    """
    names = ("seconds", "trainings_per_second", "is_kept", *_COUNTS)
    table = {name: np.array([row[name] for row in rows], np.float64) for name in names}
    minutes, rate, is_kept = table["seconds"] / 60, table["trainings_per_second"], table["is_kept"]
    figure = new_figure(8.0, 6.4)
    speed, few, agents = figure.subplots(3, 1, sharex=True, height_ratios=(2, 1, 1))
    speed.plot(minutes, rate, color=COLOURS[0], linewidth=0.8, alpha=0.5)
    for kept, face, label in ((1, COLOURS[0], "kept"), (0, "white", "given up")):
        chosen = is_kept == kept
        speed.plot(
            minutes[chosen],
            rate[chosen],
            "o",
            color=COLOURS[0],
            markerfacecolor=face,
            markersize=4,
            label=label,
        )
    speed.set_ylabel("updates a second")
    for colour, (name, label) in zip(COLOURS[1:], _COUNTS.items(), strict=False):
        axes = agents if name == "num_agents" else few
        edges = np.append(0.0, minutes)  # a row tells of the window that ends with it
        axes.stairs(table[name], edges, baseline=None, color=colour, linewidth=1.5, label=label)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    few.set_ylabel("threads")
    agents.set_ylabel("agents")
    agents.set_xlabel("minutes")
    for axes in (speed, few, agents):
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        style_axes(axes)
    for axes in (speed, few):  # beside the lines, which may be anywhere
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    figure.suptitle(plain(title), fontsize=11)
    write_whole(path, to_png(figure))
