"""The look of the curves on the pages of results: lines named at their ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.layout_engine import ConstrainedLayoutEngine

from accel_rl.runs.figures import Axes, Figure, style_axes, to_png

INK = "#333333"


@dataclass(frozen=True)
class Curve:
    """A named line; ``low`` and ``high`` are the ends of its whiskers."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str
    style: str = "-"
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


def draw_curves(axes: Axes, curves: Sequence[Curve]) -> None:
    """Draw each curve with its name at its right end; names keep apart from each other."""
    for curve in curves:
        line = {"color": curve.colour, "linestyle": curve.style, "linewidth": 1.8}
        marker = "o" if len(curve.x) < 12 else None
        axes.plot(curve.x, curve.y, marker=marker, markersize=4, **line)
        if curve.low is not None and curve.high is not None:
            axes.vlines(curve.x, curve.low, curve.high, color=curve.colour, linewidth=1)
    style_axes(axes)
    named = [curve for curve in curves if curve.name]
    low, high = axes.get_ylim()
    to_share = axes.transLimits.transform
    ends = [(float(to_share(axes.transScale.transform((c.x[-1], c.y[-1])))[1]), c) for c in named]
    axes.set_ylim(low, high)
    ends.sort(key=lambda end: end[0])
    height = 0.17 / (axes.get_position().height * axes.figure.get_figheight())
    places = _apart([share for share, _ in ends], height)
    for place, (_, curve) in zip(places, ends, strict=True):
        axes.annotate(
            curve.name,
            (1.01, place),
            xycoords="axes fraction",
            va="center",
            fontsize="small",
            color=curve.colour,
            annotation_clip=False,
        )


def _apart(shares: Sequence[float], height: float) -> list[float]:
    """Rising ``shares`` of the axes, moved until they are ``height`` apart and end at the top."""
    places = list(shares)
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + height)
    most = 1.0
    for i in reversed(range(len(places))):
        places[i] = min(places[i], most)
        most = places[i] - height
    return places


def save(figure: Figure, path: Path, title: str, foot: str) -> None:
    """Write the figure with its title above and the machine in small letters below."""
    layout = figure.get_layout_engine()
    assert isinstance(layout, ConstrainedLayoutEngine)
    margin = 0.2 / figure.get_figheight()
    layout.set(rect=(0, margin, 1, 1 - margin))
    figure.suptitle(title, fontsize=12, color=INK, x=0.02, ha="left", fontweight="bold")
    figure.text(0.995, 0.004, foot, ha="right", va="bottom", fontsize=7, color="#777777")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(to_png(figure))
