"""The search for the fastest numbers of things that run, while they run: GA3C's dynamic adjustment.

Babaeizadeh et al. 2017 (arXiv:1611.06256, section 4): from time to time one of the numbers of
predictors, trainers and agents is changed by one at random, and the change is kept if it makes
more trainings a second. Here changes grow with the numbers and while they pay: by one alone, 20
minutes of intervals of 10 s went from 1 agent to 9 where 64 were best.

A change is compared with the numbers that it left, which have just run for a window as long: after
a change is given up they run again before the next one. The released code measures its baseline
while the rejected numbers still run, and the first one over a shorter window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

WINDOWS_REMEMBERED = 30
"""older windows do not count: load and policy change"""
LARGE = 4
"""a change is a count divided by this number, and at least 1"""


class Tuner:
    """Climbs to the counts with the highest rate.

    A change is one more or one fewer of one count, or one more of all, which alone pays if each
    waits for another. Large counts change by a quarter, since one would be lost in the noise. All
    changes are tried in turn, in an order drawn from ``rng``. A change that pays is made again at
    once, twice as large. A change that does not pay, or undoes one that did, comes last. A change
    pays if its window was faster than the window before it, and if the mean over its windows is
    above that of the kept counts, so that noise settles with time.

    Attributes:
        counts: the counts of the coming window.
        kept: the best counts so far.
    """

    def __init__(
        self,
        start: Sequence[int],
        least: Sequence[int],
        most: Sequence[int],
        rng: np.random.Generator,
    ) -> None:
        self._least, self._most = tuple(least), tuple(most)
        self.counts = self.kept = tuple(start)
        steps = [sign * row for row in np.eye(len(start), dtype=int) for sign in (1, -1)]
        self._moves = [tuple(steps[i].tolist()) for i in rng.permutation(len(steps))]
        if len(start) > 1:
            self._moves.append((1,) * len(start))
        self._move, self._size = self._moves[0], 1
        self._rate = 0.0
        self._windows: deque[tuple[tuple[int, ...], float]] = deque(maxlen=WINDOWS_REMEMBERED)

    def after_window(self, rate: float) -> bool:
        """Set ``counts`` for the next window. Return whether the counts of this window are kept.

        All windows must be equally long. In this window ``counts`` ran at ``rate`` throughout.
        """
        rate_before, self._rate = self._rate, rate
        self._windows.append((self.counts, rate))
        if self.counts != self.kept:
            if rate <= rate_before or self._mean(self.counts) <= self._mean(self.kept):
                self._put_last(self._move)
                self.counts = self.kept
                return False
            self.kept = self.counts
            self._put_last(tuple(-step for step in self._move))
            self._size *= 2
        else:
            self._size = 1
        for move in self._moves:
            size = self._size if move == self._move else 1
            if (counts := self._moved(move, size)) is not None:
                self.counts, self._move, self._size = counts, move, size
                break
        else:
            self.counts = self.kept
        return True

    def _moved(self, move: tuple[int, ...], size: int) -> tuple[int, ...] | None:
        """Return ``kept`` after a change, within the limits; None if there is no room for it."""
        limits = zip(self.kept, move, self._least, self._most, strict=True)
        counts = tuple(
            min(max(count + size * step * max(1, count // LARGE), least), most)
            for count, step, least, most in limits
        )
        has_room = all(a != b for a, b, step in zip(counts, self.kept, move, strict=True) if step)
        return counts if has_room else None

    def _mean(self, counts: tuple[int, ...]) -> float:
        return float(np.mean([rate for ran, rate in self._windows if ran == counts]))

    def _put_last(self, move: tuple[int, ...]) -> None:
        if move in self._moves:
            self._moves.remove(move)
            self._moves.append(move)
