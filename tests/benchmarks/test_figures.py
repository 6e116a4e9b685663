"""Figures of the benchmarks: what they show of a report, and that the gallery is up to date."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest
from documents import ROOT

from benchmarks import redraw
from benchmarks.harness import figures, report


def read(name: str) -> report.Row:
    return json.loads((redraw.RESULTS / f"{name}.json").read_text())


@pytest.fixture
def drawn(monkeypatch) -> list[list[figures.Panel]]:
    """The panels of each figure that is drawn, which is not painted."""
    calls: list[list[figures.Panel]] = []
    monkeypatch.setattr(report, "draw_bars", lambda path, panels, *rest: calls.append(panels))
    return calls


def test_sampling_figure_shows_best_settings_largest_first(drawn) -> None:
    name = "sampling_speed_2cores"
    report.draw(read(name), Path("unused.png"))
    rows = [row for row in read(name)["rows"] if row.get("network") is True]
    ((_, panel),) = drawn
    bars = {bar.name: bar.spread["median"] for bar in panel.bars}
    assert list(bars.values()) == sorted(bars.values(), reverse=True)
    # EnvPool with pinned threads and without: the faster one is shown.
    pairs = [r for r in rows if r["part"] == "envpool" and r["asynchronous"]]
    assert len(pairs) == 2
    best = max(row["steps_per_second"]["median"] for row in pairs)
    assert bars["EnvPool, asynchronous"] == best
    assert {bar.kind for bar in panel.bars} == {"ours", "cpp"}
    assert list(panel.lines) == ["bare emulator"]


def test_every_pattern_has_a_report() -> None:
    assert [p for p in redraw.DRAW if not list(redraw.RESULTS.glob(f"{p}.json"))] == []


def test_gallery_shows_the_figures_of_the_results() -> None:
    page = (ROOT / "docs/gallery.md").read_text()
    for name in redraw.GALLERY:
        assert f"pictures/{name}.png" in page
        copied = (redraw.PICTURES / f"{name}.png").read_bytes()
        assert copied == (redraw.RESULTS / f"{name}.png").read_bytes(), "run benchmarks/redraw.py"


def test_bars_are_written_with_marks_and_lines(tmp_path) -> None:
    spread = {"median": 2.0, "low": 1.0, "high": 3.0}
    bars = [figures.Bar("ours", spread, mark=4.0), figures.Bar("theirs", spread, "python")]
    path = tmp_path / "bars.png"
    figures.draw_bars(path, [figures.Panel("one", bars, {"line": 5.0})], "title", "unit", "foot")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_names_of_curves_keep_apart() -> None:
    axes = figures.new_figure(6, 4).add_subplot()
    ends = (1.0, 1.001, 1.002)
    curves = [figures.Curve(str(y), [0, 1], [0, y], "black") for y in ends]
    figures.draw_curves(axes, curves)
    heights = sorted(text.xy[1] for text in axes.texts)
    assert len(heights) == 3
    assert min(b - a for a, b in itertools.pairwise(heights)) > 0.04


@pytest.mark.parametrize("page", sorted(redraw.RESULTS.glob("*.md")), ids=lambda page: page.stem)
def test_page_of_results_is_listed_and_its_links_resolve(page: Path) -> None:
    text = page.read_text()
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", text)
    assert [target for target in targets if not (page.parent / target).exists()] == []
    index = (redraw.RESULTS / "README.md").read_text()
    assert page.name in {"README.md", "vector_conformance.md"} or f"({page.name})" in index


def test_every_report_is_named_on_a_page() -> None:
    text = "\n".join(page.read_text() for page in redraw.RESULTS.glob("*.md"))
    names = [path.stem for path in redraw.RESULTS.glob("*.json")]
    assert [name for name in names if name not in text] == []


def test_names_of_curves_keep_apart_below_the_top() -> None:
    assert figures._apart([0.1, 0.15, 0.9], 0.1) == pytest.approx([0.1, 0.2, 0.9])
    assert figures._apart([0.95, 0.96, 0.97], 0.1) == pytest.approx([0.8, 0.9, 1.0])
