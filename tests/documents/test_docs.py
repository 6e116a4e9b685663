"""The pages of the documentation: their programs and commands run, in order, as they stand there.

Only runs of commands are a tenth as long, and `make` is asked what it would do: it would install.
"""

import re
from pathlib import Path

import pytest
from documents import ROOT, read_blocks, run

PAGES = sorted((ROOT / "docs").rglob("*.md"))
LENGTHS = r"\b((?:total|num|evaluation)_steps|(?:log|evaluation)_interval)=(\d+)"


def path_in_docs(page: Path) -> str:
    return page.relative_to(ROOT / "docs").as_posix()


def shorter(commands: str) -> str:
    """The commands with a tenth of the steps, also of the examples' files.

    Sweeps stay as they are, since they go on with a total that whole rollouts must reach, and so
    do runs that learn after ``learning_starts``. Atari games begin without random steps.
    """
    lines = re.split(r"(?<!\\)\n", commands)
    return "\n".join(map(_shorter, lines))


def _shorter(command: str) -> str:
    command = command.replace("env=breakout", "env=breakout decorrelation_steps=0")
    if "sweep" in command or "learning_starts" in command:
        return command
    command = re.sub(r"( config=examples/\S+)", r"\1 total_steps=20000", command)
    return re.sub(LENGTHS, lambda each: f"{each[1]}={int(each[2]) // 10}", command)


@pytest.fixture
def folder(tmp_path) -> Path:
    """Where a reader would be: scripts and examples at hand."""
    for name in ("launch", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


@pytest.mark.nightly
@pytest.mark.processes
@pytest.mark.parametrize("page", PAGES, ids=path_in_docs)
def test_examples_of_a_page_run_as_written(page: Path, folder: Path) -> None:
    for block in read_blocks(page.read_text()):
        if block.language == "python":
            (folder / block.name).write_text(block.text)
            run(["python", block.name], folder)
        elif block.text.startswith("make "):
            run([*block.text.split("\n")[0].split(), "--dry-run"], ROOT)
        elif block.language == "shell":
            run(["bash", "-e", "-c", shorter(block.text)], folder)
        else:
            assert block.language in ("text", "math")


def test_links_of_the_documents_resolve() -> None:
    for page in (
        *PAGES,
        *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")),
    ):
        targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text())
        assert [target for target in targets if not (page.parent / target).exists()] == [], page


def test_program_of_your_own_loop_is_the_example() -> None:
    example = (ROOT / "examples/own_loop.py").read_text().split('"""\n')[-1].strip()
    blocks = read_blocks((ROOT / "docs/your_loop.md").read_text())
    assert [block.text.strip() for block in blocks if block.language == "python"] == [example]
