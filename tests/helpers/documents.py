"""Reading the documents' examples, and running them where a reader would."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Block(NamedTuple):
    """A fenced block. ``name``: of the file that a program is."""

    language: str
    text: str
    name: str


def read_blocks(text: str) -> list[Block]:
    """The blocks in order; a program whose first line is a comment ``# NAME.py`` has that name."""
    blocks: list[Block] = []
    for match in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        named = re.match(r"# (\w+\.py)\n", match[2])
        name = named[1] if named else f"program_{len(blocks)}.py"
        blocks.append(Block(match[1], match[2], name))
    return blocks


def run(command: list[str], folder: Path) -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout


def import_programs(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the programs of a page into ``folder``, from where they can be imported."""
    folder.mkdir(exist_ok=True)
    for block in read_blocks((ROOT / page).read_text()):
        if block.language == "python":
            (folder / block.name).write_text(block.text)
            monkeypatch.delitem(sys.modules, block.name.removesuffix(".py"), raising=False)
    monkeypatch.syspath_prepend(folder)
