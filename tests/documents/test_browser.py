"""The documentation site and the page of `report`, as a browser shows them.

The site's files are handed to the browser at an address that no server has, and every other
address is refused.
"""

import mimetypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from documents import ROOT
from saved_runs import trained

from accel_rl.system.extras import how_to_install
from accel_rl.tools.report import ReportOptions, report

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]
playwright = pytest.importorskip("playwright.sync_api", reason=f"needs {how_to_install('browser')}")

SITE = "http://localhost/"
NAMES_OF_CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
LINKS_AND_ANCHORS = """() => ({
    links: [...document.querySelectorAll("a[href]")].map(each => each.href),
    anchors: [...document.querySelectorAll("[id]")].map(each => each.id),
    broken: [...document.images].filter(each => !each.naturalWidth).map(each => each.src),
    text: document.body.innerText,
})"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        own = driver.chromium.executable_path
        path = (
            own
            if Path(own).exists()
            else next(filter(None, map(shutil.which, NAMES_OF_CHROMIUM)), None)
        )
        if path is None:
            pytest.skip("no Chromium is installed; `playwright install chromium` installs it")
        browser = driver.chromium.launch(executable_path=path)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the documentation, as `make docs` builds it."""
    pytest.importorskip("material", reason="needs the packages of requirements-docs.txt")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir"]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    subprocess.run([*command, str(folder)], cwd=ROOT, env=environment, check=True)
    return folder


class Window:
    """A page in a context of its own, and the faults that the browser reported."""

    def __init__(self, browser: Any, site: Path | None = None) -> None:
        self.faults: list[str] = []
        self.requests: list[str] = []
        self._site = site
        self.context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
        self.context.route("**/*", self._answer)
        self.page = self.context.new_page()
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))

    def _hear(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(f"{self.page.url}: {message.text}")

    def _answer(self, route: Any) -> None:
        url = route.request.url
        path = None if self._site is None else self._site / unquote(urlsplit(url).path.lstrip("/"))
        if url.startswith(SITE) and path is not None and path.is_file():
            kind, _ = mimetypes.guess_type(path)
            route.fulfill(body=path.read_bytes(), content_type=kind)
        elif url.startswith("file:"):
            route.continue_()
        else:
            self.requests.append(url)
            route.abort()


def test_site_is_whole_without_a_request_elsewhere_or_an_error(chromium: Any, site: Path) -> None:
    """Links lead from the first page to all pages, and to anchors that there are."""
    window, first = Window(chromium, site), f"{SITE}index.html"
    pages: dict[str, dict[str, Any]] = {}
    waiting = [first]
    while waiting:
        if (url := waiting.pop()) not in pages:
            window.page.goto(url)
            pages[url] = window.page.evaluate(LINKS_AND_ANCHORS)
            inner = {urljoin(link, urlsplit(link).path) for link in pages[url]["links"]}
            waiting += [
                each
                for each in inner
                if each.startswith(SITE) and (site / urlsplit(each).path.lstrip("/")).is_file()
            ]
    built = {f"{SITE}{path.relative_to(site).as_posix()}" for path in site.rglob("*.html")}
    assert set(pages) == built - {f"{SITE}404.html"}
    links = [link.partition("#") for page in pages.values() for link in page["links"]]
    lost = [
        f"{target}#{anchor}"
        for target, _, anchor in links
        if target.startswith(SITE)
        and (target not in pages or (anchor and unquote(anchor) not in pages[target]["anchors"]))
    ]
    assert lost == []
    assert [picture for page in pages.values() for picture in page["broken"]] == []
    assert "num_envs: int = 16" in pages[f"{SITE}reference/samplers.html"]["text"]
    assert [url for url, page in pages.items() if "= option(" in page["text"]] == []
    assert (window.faults, window.requests) == ([], [])
    window.context.close()


# ---- the page of `report` -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page about two runs, which differ in the seed alone."""
    pytest.importorskip("bokeh", reason=f"needs {how_to_install('report')}")
    folder = tmp_path_factory.mktemp("report")
    steps = ["env=catch", "total_steps=400"]
    runs = [trained(folder / f"run-{seed}", *steps, f"seed={seed}") for seed in range(2)]
    return report(runs, ReportOptions(out=str(folder / "page.html")))


@pytest.fixture
def shown(chromium: Any, written: Path) -> Iterator[Window]:
    """The page, drawn; it fails if the browser reports an error or asks for anything else."""
    window = Window(chromium)
    window.page.goto(written.as_uri())
    window.page.locator("canvas").first.wait_for()
    window.page.wait_for_function("Bokeh.documents[0].is_idle")
    yield window
    window.context.close()
    assert window.faults == [] and window.requests == []


def test_pointing_at_a_line_shows_its_numbers(shown: Window) -> None:
    plot = shown.page.locator(".bk-Figure").bounding_box()
    tooltip = shown.page.locator(".bk-Tooltip").first
    for y in range(int(plot["y"]) + 40, int(plot["y"] + plot["height"]) - 60, 4):
        shown.page.mouse.move(plot["x"] + 0.6 * plot["width"], y)
        shown.page.wait_for_timeout(30)
        if tooltip.is_visible():
            break
    text = tooltip.locator(".bk-tooltip-content").inner_text()
    assert "steps" in text and "score" in text and ("seed" in text or "mean" in text)


def test_seeds_are_hidden_and_shown_by_their_boxes(shown: Window) -> None:
    def picture() -> bytes:
        shown.page.wait_for_function("Bokeh.documents[0].is_idle")
        shown.page.wait_for_timeout(300)
        return shown.page.locator(".bk-Figure").screenshot()

    all_lines = picture()
    for name in ("seed 0", "seed 1"):
        box = shown.page.get_by_label(name, exact=True)
        box.uncheck()
        assert picture() != all_lines
        box.check()
        assert picture() == all_lines
