"""Each promise of docs/guarantees.md names tests, and there are such tests."""

import re

import pytest
from documents import ROOT

PAGE = (ROOT / "docs" / "guarantees.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and "|---" not in line]
ROWS = [row for row in ROWS if not row.endswith("| proof |")]


def functions() -> set[str]:
    texts = (path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    return {name for text in texts for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)}


def test_each_promise_names_what_proves_it() -> None:
    assert len(ROWS) > 30
    for row in ROWS:
        _, promise, proof, _ = row.split("|")
        assert promise.strip() and re.search(r"`(test_|benchmarks/)\w+`", proof), row


def test_each_named_test_and_file_is_there() -> None:
    known = functions()
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert named and not named - known
    for path in re.findall(r"tests/[\w/]+\.py", PAGE):
        assert (ROOT / path).is_file(), path


@pytest.mark.parametrize("place", ["mkdocs.yml", "README.md", "docs/safety.md", "docs/resuming.md"])
def test_page_is_linked(place: str) -> None:
    assert "guarantees.md" in (ROOT / place).read_text()
