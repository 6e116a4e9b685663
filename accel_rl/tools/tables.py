"""Tables for a terminal: labels to the left, numbers to the right of them, words kept whole."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

_GAP = 2
"""columns of the terminal between two of the table"""


def make_table(head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Table:
    """A table for a terminal ``width`` columns wide, whose cells break between words.

    The first column is that of labels, which break first. A label is folded within a word only
    where no other break is left; numbers and headers never are where the terminal is as wide as
    they are together.
    """
    columns = list(zip(head, *rows, strict=True))
    lines = [[line for cell in column for line in cell.split("\n")] for column in columns]
    longest_line = [max(map(len, each)) for each in lines]
    widths = [max(len(word) for line in each for word in line.split()) for each in lines]
    room = width - 2 - sum(widths) - _GAP * (len(head) - 1)
    if room < 0:
        widths[0] = max(len(head[0]), widths[0] + room)
    for place in reversed(range(len(head))):
        more = max(0, min(room, longest_line[place] - widths[place]))
        widths[place] += more
        room -= more
    table = Table(box=box.SIMPLE, padding=(0, _GAP - 1, 0, 0), pad_edge=False)
    for place, name in enumerate(head):
        table.add_column(
            Text(name), width=widths[place], justify="right" if place else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*map(Text, row))  # a name is no markup
    return table
