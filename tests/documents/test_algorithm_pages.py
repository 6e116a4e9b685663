"""Commands for published results are valid, and their games those of the table."""

import re
import shlex
from pathlib import Path

import pytest

from accel_rl.cli.parse import parse_arguments
from accel_rl.presets import PRESETS
from accel_rl.sweeps.plan import ATARI_49, plan_runs

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs/algorithms").glob("*.md"))
COMMANDS = [
    (page.stem, command)
    for page in PAGES
    for command in re.findall(r"`accel_rl ((?:train|sweep) [^`]+)`", page.read_text())
]


@pytest.mark.nightly
def test_commands_for_published_results_are_valid_and_of_their_pages() -> None:
    for page, command in COMMANDS:
        name, *arguments = shlex.split(command)
        given = dict(argument.split("=") for argument in arguments)
        assert f"docs/algorithms/{page}.md" in (PRESETS[given["algo"]].__doc__ or "")
        if name == "train":
            parse_arguments(arguments)
            continue
        runs = plan_runs({key: value.replace("atari49", "pong") for key, value in given.items()})
        assert len({run.config.seed for run in runs}) > 1


def test_atari49_are_the_games_of_the_table() -> None:
    assert len(ATARI_49) == 49
    assert {"pitfall", "pong", "atlantis"} <= {*ATARI_49}
    assert not {"hero", "surround", "solaris"} & {*ATARI_49}
