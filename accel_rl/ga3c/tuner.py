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
"""older ones tell of another time: load and policy change"""
LARGE = 4
"""a change is by one part in so many, and at least by one"""


class Tuner:
    """Climbs to the counts with the highest rate. ``counts``: what shall run in the coming window.
    ``kept``: the best so far, to which a change that does not pay goes back.

    A change is one more or one fewer in one place, or one more everywhere, which alone pays where
    each place waits for another; of many, a quarter more or fewer, since one would be lost in the
    noise. All are tried in turn, in an order drawn from ``rng``; one that pays is made again at
    once, twice as large; one that does not (or undoes one that did) comes last. One pays that was
    faster than the window before it, whatever the speed of the machine had been earlier, and than
    what is kept in the means over the windows remembered, so that noise settles with time.

    ``start``, ``least``, ``most``: ``[D]``, where to begin and the limits that no count leaves.

    Raises:
        ValueError: ``start`` is not within the limits.
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
        if not self._is_within(self.counts):
            raise ValueError(
                f"the counts to start with are {self.counts}; they must be at least {self._least} "
                f"and at most {self._most}"
            )
        steps = [sign * row for row in np.eye(len(start), dtype=int) for sign in (1, -1)]
        self._moves = [tuple(steps[i].tolist()) for i in rng.permutation(len(steps))]
        if len(start) > 1:
            self._moves.append((1,) * len(start))
        self._move, self._size = self._moves[0], 1
        self._rate = 0.0
        self._windows: deque[tuple[tuple[int, ...], float]] = deque(maxlen=WINDOWS_REMEMBERED)

    def after_window(self, rate: float) -> bool:
        """Whether ``counts``, which ran at ``rate`` in the window that ends, are kept.

        Sets ``counts`` for the next window. All windows must be equally long, and the counts have
        run through the whole of this one.
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
        """``kept`` after a change, within the limits; None where there is no room for it."""
        limits = zip(self.kept, move, self._least, self._most, strict=True)
        counts = tuple(
            min(max(count + size * step * max(1, count // LARGE), least), most)
            for count, step, least, most in limits
        )
        has_room = all(a != b for a, b, step in zip(counts, self.kept, move, strict=True) if step)
        return counts if has_room else None

    def _is_within(self, counts: tuple[int, ...]) -> bool:
        limits = zip(self._least, counts, self._most, strict=True)
        return all(least <= count <= most for least, count, most in limits)

    def _mean(self, counts: tuple[int, ...]) -> float:
        return float(np.mean([rate for ran, rate in self._windows if ran == counts]))

    def _put_last(self, move: tuple[int, ...]) -> None:
        if move in self._moves:
            self._moves.remove(move)
            self._moves.append(move)
