"""Where presets leave their papers: complete, the same everywhere, and commands that are valid."""

import re
import shlex
from pathlib import Path

import pytest

from accel_rl.cli.parse import help_text, parse_arguments
from accel_rl.preset_notes import NOTES, Comparison, markdown
from accel_rl.presets import PRESETS
from accel_rl.sweep.plan import plan_runs

PAGE = Path(__file__).parents[1] / "docs" / "algorithms.md"
COMPARISONS = [(name, each) for name, notes in NOTES.items() for each in notes.comparisons]


def test_every_preset_has_notes() -> None:
    assert list(NOTES) == list(PRESETS)
    assert all(notes.deviations for notes in NOTES.values())


def test_page_on_algorithms_has_the_notes_as_they_are() -> None:
    """If not: put what ``python -m accel_rl.preset_notes`` prints between the two marks."""
    marked = re.search(r"<!-- notes: .*? -->\n(.*)<!-- end of notes -->", PAGE.read_text(), re.S)
    assert marked is not None
    assert marked[1].strip() == markdown().strip()


@pytest.mark.parametrize(("name", "comparison"), COMPARISONS, ids=lambda value: str(value)[:40])
def test_command_of_a_comparison_is_valid_and_of_its_preset(
    name: str, comparison: Comparison
) -> None:
    script, *arguments = shlex.split(comparison.command)
    given = dict(argument.split("=") for argument in arguments)
    assert NOTES[given["algo"]] is NOTES[name]
    if script == "train.py":
        parse_arguments(arguments)
    else:
        assert script == "sweep.py"
        runs = plan_runs({key: value.replace("atari49", "pong") for key, value in given.items()})
        assert len({run.config.seed for run in runs}) > 1


def test_atari49_are_the_games_of_the_table() -> None:
    runs = plan_runs({"env": "atari49"})
    assert len(runs) == 49
    games = {run.config.env for run in runs}
    assert {"pitfall", "pong", "atlantis"} <= games
    assert not {"hero", "surround", "solaris"} & games


@pytest.mark.parametrize("name", PRESETS)
def test_help_of_a_preset_shows_its_notes(name: str) -> None:
    text = help_text([f"algo={name}", "--help"], width=80)
    flat = " ".join(text.split())
    for deviation in NOTES[name].deviations:
        assert deviation in flat
    for published, command in NOTES[name].comparisons:
        assert published in flat
        assert f"      python launch/{command}\n" in text
    assert "arXiv" in flat or "baselines" in flat


def test_help_without_a_preset_shows_no_notes() -> None:
    assert "Where it leaves" not in help_text(["--help"], width=80)
