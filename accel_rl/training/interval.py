"""When something is due that happens every so many steps."""

from __future__ import annotations


class Interval:
    """Tells whether a multiple of ``steps`` was passed since the last time it was asked.

    ``begin``: where steps begin.
    """

    def __init__(self, steps: int, begin: int = 0) -> None:
        self._steps = steps
        self._passed = begin // steps

    def is_ahead(self, steps: int) -> bool:
        """What `is_due` will tell after ``steps``; this is not to ask."""
        return steps // self._steps > self._passed

    def is_due(self, steps: int) -> bool:
        passed = steps // self._steps
        is_due, self._passed = passed > self._passed, passed
        return is_due
