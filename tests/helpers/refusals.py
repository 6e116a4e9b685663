"""Refusals as tables: a line for each, what is given and words that the message has."""

import re


def rows(table: str) -> list[list[str]]:
    """Cells of each line, which stand between `` | ``."""
    return [[cell.strip() for cell in line.split(" | ")] for line in table.strip().splitlines()]


def words(text: str) -> str:
    """Pattern of a message that has these words in this order."""
    return "(?s)" + ".*".join(map(re.escape, text.split()))
