"""The page about saved runs: what it shows, and that nothing in it runs but its own scripts."""

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from saved_runs import trained

from accel_rl.__main__ import main
from accel_rl.cli.parse import parse_arguments
from accel_rl.tools import report as module
from accel_rl.tools.compare import command_of
from accel_rl.tools.report import ReportOptions, report

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


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "draw_groups", lambda *_, **options: Figure())


@pytest.mark.slow
def test_page_of_a_sweep_has_scores_time_split_commands_and_figures(sweep) -> None:
    path = report([sweep], ReportOptions())
    assert path == sweep / "report.html"
    page = Page(path)
    for words in ("the best of 2 settings", "0, 1, 2", "Where the time went", "torch", "CPUs"):
        assert words in page.text
    command = "accel_rl train algo=a2c env=catch seed=0"
    for words in ("sweep", "high-0: ", "low-2: ", command, "learner.lr=0.5", "bootstrap over the"):
        assert words in page.text
    assert len(page.named("svg")) == len(page.named("input")) == 3
    assert not page.named("script") and "prefers-color-scheme:dark" in path.read_text()


@pytest.mark.parametrize("env", ["catch", "CartPole-v1"])
def test_command_names_what_differs_from_the_preset_for_this_kind_of_observation(env: str) -> None:
    config = parse_arguments(["algo=ppo", f"env={env}", "lr=0.5"])
    assert command_of(config) == f"accel_rl train algo=ppo env={env} seed=0 learner.lr=0.5"


def test_shares_of_the_time_are_those_of_the_whole_run(tmp_path: Path) -> None:
    rows = "steps,training_seconds,learning_share\n8,99,0.9\n9,100,0.1\n"
    (tmp_path / "metrics.csv").write_text(rows)
    assert "width:89.20%'>89%" in module._time_split([tmp_path])


@pytest.mark.usefixtures("undrawn")
def test_one_machine_with_another_load_and_command_is_one_machine(sweep) -> None:
    log = sweep / "runs" / "low-1" / "train.log"
    text = log.read_text()
    (load,) = set(re.findall(r"load [\d.]+", text))
    log.write_text(text.replace(load, "load 99.5").replace("command: ", "command: other "))
    text = Page(report([sweep], ReportOptions())).text
    assert "of training on accel_rl" in text and "machines, named below" not in text


@pytest.mark.slow
def test_names_and_options_of_other_peoples_runs_stay_text(original, tmp_path) -> None:
    hostile = HOSTILE.replace("</script>", "<x>")  # a name has no slash
    runs = [
        copy(original, tmp_path / "a", model=f"'m:{HOSTILE}'"),
        copy(original, tmp_path / hostile, model=f"'n:{HOSTILE}'"),
    ]
    page = Page(report(runs, ReportOptions(out=str(tmp_path / "page.html"))))
    (policy,) = (each["content"] for each in page.named("meta") if each.get("http-equiv"))
    assert policy is not None and policy.startswith("default-src 'none'; style-src")
    assert "script" not in policy and not page.named("script") and not page.named("img")
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert f"m:{HOSTILE}" in page.text and hostile in page.text
    links = [each[name] for _, each in page.tags for name in each if name.endswith(("src", "href"))]
    assert links and all(str(each).startswith("#") for each in links)


@pytest.mark.parametrize(("name", "tag"), [("game.mp4", "video"), ("game.gif", "img")])
@pytest.mark.usefixtures("undrawn")
def test_film_is_in_the_page(name: str, tag: str, original, tmp_path) -> None:
    run = copy(original, tmp_path / "run")
    (run / name).write_bytes(b"film")
    (film,) = Page(report([run], ReportOptions())).named(tag)
    assert str(film["src"]).endswith(";base64,ZmlsbQ==")


@pytest.mark.usefixtures("undrawn")
def test_run_without_a_finished_game_is_told(original, tmp_path) -> None:
    young = copy(original, tmp_path / "young")
    header = (young / "metrics.csv").read_text().splitlines()[0]
    (young / "metrics.csv").write_text(header + "\n")
    page = Page(report([original, young], ReportOptions(out=str(tmp_path / "page.html"))))
    assert "no game has ended yet: young" in page.text
    with pytest.raises(ValueError, match="young has no finished game"):
        report([young], ReportOptions(out=str(tmp_path / "other.html")))


@pytest.mark.usefixtures("undrawn")
def test_command_writes_the_page_once(original, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(shutil.copytree(original, tmp_path / "run").parent)
    assert main(["report", "run", "x=minutes"]) == 0
    assert capsys.readouterr().out == "written: run/report.html\n"
    assert main(["report", "run"]) == 1
    assert "report.html exists; choose another with out=PATH" in capsys.readouterr().err
