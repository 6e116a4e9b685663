"""The page about saved runs: what it shows, and that nothing in it runs but its own scripts."""

import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from saved_runs import trained

from accel_rl.__main__ import main
from accel_rl.tools import report as module
from accel_rl.tools.movie import film
from accel_rl.tools.report import ReportOptions, find_runs, report

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>$$x$$"


class Page(HTMLParser):
    """Collects the tags and the text of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("original") / "run", "env=catch")


def copy(original: Path, to: Path, **options: str) -> Path:
    shutil.copytree(original, to)
    text = (to / "config.yaml").read_text()
    for key, value in options.items():
        (line,) = re.findall(rf"(?m)^\s*{key}: .*$", text)
        text = text.replace(line, f"{line.partition(':')[0]}: {value}")
    (to / "config.yaml").write_text(text)
    return to


@pytest.fixture
def sweep(original: Path, tmp_path: Path) -> Path:
    """Two settings, with three seeds and one."""
    runs = tmp_path / "sweep" / "runs"
    for seed in range(3):
        copy(original, runs / f"low-{seed}", seed=str(seed))
    copy(original, runs / "high-0", lr="0.5")
    return tmp_path / "sweep"


@pytest.fixture(params=["without figures", "with figures"])
def figures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the page needs no package of an extra."""
    if request.param == "without figures":
        monkeypatch.setattr(module, "_draw", lambda *_: ("", []))
    else:
        pytest.importorskip("bokeh", reason="of the extra report")


@pytest.mark.usefixtures("figures")
def test_page_of_a_sweep_has_scores_time_split_and_what_differs(sweep, tmp_path) -> None:
    page = Page(report([sweep], ReportOptions(out=str(tmp_path / "page.html"))))
    for words in ("the best of 2 settings", "lr=0.5", "0, 1, 2", "Where the time went", "steps/s"):
        assert words in page.text
    for run in ("low-0", "low-1", "low-2", "high-0"):
        assert run in page.text
    assert "learner.lr" in page.text and "options that all runs share" in page.text


@pytest.mark.usefixtures("figures")
def test_names_and_options_of_other_peoples_runs_stay_text(original, tmp_path) -> None:
    hostile = HOSTILE.replace("</script>", "<x>")  # a name has no slash
    runs = [
        copy(original, tmp_path / "a", model=f"'m:{HOSTILE}'"),
        copy(original, tmp_path / hostile, model=f"'n:{HOSTILE}'"),
    ]
    page = Page(report(runs, ReportOptions(out=str(tmp_path / "page.html"))))
    (policy,) = (
        each["content"]
        for each in page.named("meta")
        if "content" in each and each.get("http-equiv")
    )
    assert policy is not None and policy.startswith("default-src 'none'; script-src 'nonce-")
    assert all(
        each.get("nonce") and f"'nonce-{each['nonce']}'" in policy for each in page.named("script")
    )
    assert not page.named("img")
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert f"m:{HOSTILE}" in page.text and hostile in page.text
    assert not [each for _, each in page.tags if {"src", "href"} & each.keys()]


def test_film_is_in_the_page_as_a_picture(original, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "_draw", lambda *_: ("", []))
    run = copy(original, tmp_path / "run")
    with film(run / "game.mp4", 40.0) as movie:
        for shade in range(4):
            movie.add(np.full((16, 16, 3), 60 * shade, np.uint8))
    page = Page(report([run], ReportOptions(out=str(tmp_path / "page.html"))))
    (picture,) = page.named("img")
    assert str(picture["src"]).startswith("data:image/webp;base64,")


def test_run_without_a_finished_game_is_told(original, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "_draw", lambda *_: ("", []))
    young = copy(original, tmp_path / "young")
    header = (young / "metrics.csv").read_text().splitlines()[0]
    (young / "metrics.csv").write_text(header + "\n")
    page = Page(report([original, young], ReportOptions(out=str(tmp_path / "page.html"))))
    assert "no game has ended yet: young" in page.text
    with pytest.raises(ValueError, match="no run has finished a game yet"):
        report([young], ReportOptions(out=str(tmp_path / "other.html")))


def test_runs_are_named_once_and_found_in_sweeps(sweep) -> None:
    runs = sorted((sweep / "runs").iterdir())
    assert find_runs([sweep]) == runs
    with pytest.raises(ValueError, match=r"low-0 is named twice"):
        find_runs([sweep, sweep / "runs" / "low-0"])
    with pytest.raises(ValueError, match="no run is named"):
        find_runs([])


def test_command_writes_the_page_once(original, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "_draw", lambda *_: ("", []))
    assert main(["report", str(original)]) == 0
    assert capsys.readouterr().out == "written: report.html\n"
    assert main(["report", str(original)]) == 1
    assert "report.html exists; choose another with out=PATH" in capsys.readouterr().err


def test_missing_package_is_told_with_the_extra(original, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "bokeh.embed", None)
    monkeypatch.setitem(sys.modules, "bokeh", None)
    with pytest.raises(ValueError, match=r'needs bokeh.*pip install "accel_rl\[report\]"'):
        report([original], ReportOptions(out=str(tmp_path / "page.html")))
