"""Reading the documents' examples, and running them where a reader would."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import warm

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
    """What the command printed: ``python ...``, ``accel_rl ...``, or another program."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    options = {"env": os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}, "cwd": folder}
    is_python = command[0] in ("python", "accel_rl")
    module = ["-m", "accel_rl"] if command[0] == "accel_rl" else []
    arguments = [sys.executable, *module, *command[1:]] if is_python else command
    start = warm.Popen if is_python else subprocess.Popen
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with start(arguments, **pipes, **options) as process:
        try:
            printed, errors = process.communicate()
        except BaseException:
            process.kill()
            raise
    assert process.returncode == 0, f"{shlex.join(command)}\n{printed}\n{errors}"
    assert "Traceback" not in errors
    return printed


def import_programs(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the programs of a page into ``folder``, from where they can be imported."""
    folder.mkdir(exist_ok=True)
    for block in read_blocks((ROOT / page).read_text()):
        if block.language == "python":
            (folder / block.name).write_text(block.text)
            monkeypatch.delitem(sys.modules, block.name.removesuffix(".py"), raising=False)
    monkeypatch.syspath_prepend(folder)
