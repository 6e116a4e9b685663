"""Curves and bars on the pages of results, in the look of the package's own figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accel_rl.runs.figures import INK, Axes, Figure, entitle, name_ends, style_axes, to_png


@dataclass(frozen=True)
class Curve:
    """A line; ``low`` and ``high`` are the edges of its band. A line without a name has none."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str
    style: str = "-"
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


def draw_curves(axes: Axes, curves: Sequence[Curve], size: float = 9) -> None:
    """Draw each curve with its name, in letters of ``size`` points, at the right."""
    for curve in curves:
        axes.plot(curve.x, curve.y, color=curve.colour, linestyle=curve.style, linewidth=1.8)
        if curve.low is not None and curve.high is not None:
            axes.fill_between(
                curve.x, curve.low, curve.high, color=curve.colour, alpha=0.15, linewidth=0
            )
    style_axes(axes)
    axes.set_xlim(0, max(curve.x[-1] for curve in curves))
    axes.set_ylim(axes.get_ylim())
    named = [curve for curve in curves if curve.name]
    right = axes.get_xlim()[1]
    name_ends(axes, [(right, c.y[-1], c.name, c.colour) for c in named], size)


def draw_bars(
    axes: Axes, bars: Sequence[tuple[str, float, float, float]], colours: Mapping[str, str]
) -> None:
    """Draw a bar for each name, value, lowest and highest; ``colours``: by the first word."""
    for place, (name, value, low, high) in enumerate(bars):
        colour = colours.get(name.split()[0])
        axes.barh(place, value, color=colour or "#b8b8b8", height=0.7)
        axes.plot([low, high], [place, place], color=INK, linewidth=1)
        style: Any = {"va": "center", "fontsize": 9, "fontweight": "bold" if colour else "normal"}
        at: Any = {"xytext": (5, 0), "textcoords": "offset points"}
        axes.annotate(f"{value:,.0f}", (high, place), **at, **style)
    axes.set_yticks(range(len(bars)), [bar[0] for bar in bars])
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_xlim(0, 1.1 * max(bar[3] for bar in bars))
    axes.tick_params(axis="y", length=0)
    style_axes(axes, "x")


def save(figure: Figure, path: Path, title: str, foot: str) -> None:
    """Write the figure with its title above and ``foot`` in small letters below."""
    entitle(figure, title, foot)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(to_png(figure))
