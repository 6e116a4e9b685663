"""Refusals as tables: a line for each, what is given and words that the message has."""

import re
from typing import Any

import pytest


def rows(table: str) -> list[Any]:
    """Cells of each line, which stand between `` | ``. Lines behind an empty one are slow."""
    quick, _, slow = table.strip().partition("\n\n")
    return [
        pytest.param(*(cell.strip() for cell in line.split(" | ")), marks=marks)
        for lines, marks in ((quick, []), (slow, [pytest.mark.slow]))
        for line in lines.splitlines()
    ]


def words(text: str) -> str:
    """Pattern of a message that has these words in this order."""
    return r"[\s\S]*".join(map(re.escape, text.split()))
