"""The look of every figure of the benchmarks: horizontal bars, and lines named at their ends.

Ours has one strong colour, C++ libraries a dark grey, Python libraries a light grey. A whisker is
the range of the rounds, a number the median.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.layout_engine import ConstrainedLayoutEngine

from accel_rl.runs.figures import (
    COLOURS,
    Axes,
    EngFormatter,
    Figure,
    new_figure,
    style_axes,
    to_png,
)

KINDS = {
    "ours": ("accel_rl", COLOURS[0]),
    "cpp": ("C++ libraries", "#777777"),
    "python": ("Python libraries", "#bbbbbb"),
}
INK, LINE = "#333333", COLOURS[1]
NAMES = {
    "accel_rl": "accel_rl",
    "ale": "ale-py",
    "cleanrl": "CleanRL",
    "cleanrl_envpool": "CleanRL + EnvPool",
    "cpprb": "cpprb",
    "envpool": "EnvPool",
    "gymnasium": "Gymnasium",
    "leanrl": "LeanRL",
    "plain": "plain EnvPool script",
    "rlpyt": "rlpyt",
    "sample_factory": "Sample Factory",
    "sampler": "accel_rl",
    "sb3": "Stable-Baselines3",
    "torchrl": "TorchRL",
}
CPP_PARTS = ("ale", "cpprb", "envpool")
Spread = Mapping[str, float]


@dataclass(frozen=True)
class Bar:
    """One bar: its name, its median with ``low`` and ``high``, and whose it is (see ``KINDS``)."""

    name: str
    spread: Spread
    kind: str = "ours"
    mark: float | None = None
    """where a short line crosses the bar, such as the prediction of a model"""


@dataclass(frozen=True)
class Panel:
    """Bars below one heading, and vertical dashed lines with their names."""

    title: str
    bars: Sequence[Bar]
    lines: Mapping[str, float] = field(default_factory=dict)


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


def kind_of(part: str) -> str:
    """Whose the part of a report is: a key of ``KINDS``."""
    if part in ("accel_rl", "sampler", "vector_env"):
        return "ours"
    return "cpp" if part in CPP_PARTS else "python"


def by_size(bars: Sequence[Bar]) -> list[Bar]:
    """The bars with the largest first."""
    return sorted(bars, key=lambda bar: -bar.spread["median"])


def where(report: Mapping[str, Any]) -> str:
    """The machine and the day of a report, for the foot of its figure."""
    machine = report["machine"]
    return f"{len(machine['cores_used'])} cores of {machine['cpu']}, {machine['date'][:10]}"


def draw_bars(
    path: Path, panels: Sequence[Panel], title: str, unit: str, foot: str, *, legend: bool = True
) -> None:
    """Write a PNG with the panels one below the other.

    They have the same axis, unless the bars of one are more than four times as long as another's.
    """
    heights = [1.3 + len(panel.bars) + 0.7 * bool(panel.lines) for panel in panels]
    figure = new_figure(8.0, 0.9 + 0.3 * sum(heights))
    all_axes = figure.subplots(len(panels), height_ratios=heights, squeeze=False)[:, 0]
    tops = [_top(panel) for panel in panels]
    if max(tops) <= 4 * min(tops):
        tops = [max(tops)] * len(tops)
    for axes, panel, top in zip(all_axes, panels, tops, strict=True):
        _draw_panel(axes, panel, top)
    all_axes[-1].set_xlabel(unit)
    kinds = [kind for kind in KINDS if any(b.kind == kind for p in panels for b in p.bars)]
    if legend and len(kinds) > 1:
        for kind in kinds:
            all_axes[-1].barh(0, 0, color=KINDS[kind][1], label=KINDS[kind][0])
        figure.legend(loc="outside lower left", ncols=3, fontsize="small", frameon=False)
    save(figure, path, title, foot)


def _top(panel: Panel) -> float:
    """The largest number in the panel."""
    ends = [max(bar.spread["high"], bar.mark or 0) for bar in panel.bars]
    return max([*ends, *panel.lines.values()])


def _draw_panel(axes: Axes, panel: Panel, top: float) -> None:
    for place, bar in enumerate(panel.bars):
        middle, low, high = (bar.spread[key] for key in ("median", "low", "high"))
        axes.barh(place, middle, 0.72, color=KINDS[bar.kind][1])
        is_crossed = bar.mark is not None and high <= bar.mark < high + 0.1 * top
        axes.plot([low, high], [place, place], color=INK, linewidth=1)
        axes.text(
            (bar.mark if is_crossed else high) + 0.012 * top,
            place,
            _number(middle),
            va="center",
            fontsize="small",
            fontweight="bold" if bar.kind == "ours" else "normal",
            color=INK,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.8},
        )
        if bar.mark is not None:
            axes.plot([bar.mark] * 2, [place - 0.42, place + 0.42], color=LINE, linewidth=2)
    for name, value in panel.lines.items():
        axes.axvline(value, color=LINE, linestyle="--", linewidth=1.3)
        text = f"{name} {_number(value)} "
        axes.text(value, -0.75, text, color=LINE, fontsize="small", ha="right", va="bottom")
    axes.set_yticks(range(len(panel.bars)), [bar.name for bar in panel.bars])
    axes.set_ylim(len(panel.bars) - 0.4, -0.6 - 0.8 * bool(panel.lines))
    axes.set_xlim(0, 1.12 * top)
    if top >= 1000:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_title(panel.title, loc="left", fontsize="medium", color=INK)
    axes.tick_params(axis="y", length=0)
    style_axes(axes, grid="x")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def draw_curves(axes: Axes, curves: Sequence[Curve], *, log: bool = False) -> None:
    """Draw each curve with its name at its right end; names keep apart from each other."""
    for curve in curves:
        line = {"color": curve.colour, "linestyle": curve.style, "linewidth": 1.8}
        marker = "o" if len(curve.x) < 12 else None
        axes.plot(curve.x, curve.y, marker=marker, markersize=4, **line)
        if curve.low is not None and curve.high is not None:
            axes.vlines(curve.x, curve.low, curve.high, color=curve.colour, linewidth=1)
    if log:
        axes.set_yscale("log")
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


def plural(number: int, noun: str) -> str:
    """The number and its noun, as in ``2 learners``."""
    return f"{number} {noun}{'s' * (number != 1)}"
