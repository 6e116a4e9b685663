"""Each promise of docs/guarantees.md names tests or records, and they are there."""

import re

import pytest
from documents import ROOT
from faulty_envs import FAULTS, HARMLESS, ONLY_A_WORKER, TOLD, WARNED, WITHOUT_PLACE

PAGE = (ROOT / "docs" / "guarantees.md").read_text()
SAFETY = (ROOT / "docs" / "safety.md").read_text()
TABLES = [table.splitlines() for table in re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE)]
ROWS = [row for head, _, *rows in TABLES if head.endswith("| proof |") for row in rows]
(KINDS,) = (rows for head, _, *rows in TABLES if head.endswith("| names in the tests |"))
RESULTS = {
    "place": TOLD,
    "place, in a worker": ONLY_A_WORKER,
    "place or worker": ONLY_A_WORKER | WITHOUT_PLACE,
    "worker": WITHOUT_PLACE,
    "warning": WARNED,
    "allowed": HARMLESS,
}
"""what the page says of a kind of fault, and the faults of which the tests assert that"""


def functions() -> set[str]:
    texts = (path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    return {name for text in texts for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)}


def test_each_promise_names_what_proves_it() -> None:
    assert len(ROWS) > 30
    for row in ROWS:
        _, promise, proof, _ = row.split("|")
        assert promise.strip() and re.search(r"`(test_\w+|benchmarks/results/\w+\.md)`", proof), row


def test_each_kind_of_fault_has_the_result_that_is_tested() -> None:
    named: list[str] = []
    for row in KINDS:
        _, what, result, _, names, _ = map(str.strip, row.split("|"))
        known = re.findall(r"`(\w+)`", names)
        assert what and known and set(known) <= set(RESULTS[result]), row
        named += known
    assert sorted(named) == sorted(FAULTS)


def test_each_named_test_and_file_is_there() -> None:
    known = functions()
    named = set(re.findall(r"`(test_\w+)`", PAGE + SAFETY))
    assert named and not named - known
    for path in re.findall(r"(?:tests|benchmarks)/[\w/]+(?:\.\w+)?", PAGE + SAFETY):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("page", [PAGE, SAFETY], ids=["guarantees", "safety"])
def test_records_of_attacks_are_named(page: str) -> None:
    assert "benchmarks/results/attacks.md" in page


@pytest.mark.parametrize("place", ["mkdocs.yml", "README.md", "docs/safety.md", "docs/resuming.md"])
def test_page_is_linked(place: str) -> None:
    assert "guarantees.md" in (ROOT / place).read_text()
