"""Which parameters acted in which rows of a rollout."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from accel_rl.parallel import FlatParameters


class Behaviour:
    """Remembers the parameters that acted, where they change within a rollout.

    So that probability ratios are to the policy that chose the action, not to a later one.

    Args:
        parameters: the network's parameters, those of the learner's exchange.
    """

    def __init__(self, parameters: FlatParameters) -> None:
        self._parameters = parameters
        self._before: list[tuple[int, Tensor]] = []

    def note(self, t: int, parameter: Tensor | None = None) -> None:
        """Note which parameters acted in the rows before ``t``, from the last note on.

        Args:
            t: the first row in which others act.
            parameter: the parameters that acted, ``[P]``, which must not change before the rows
                have been learned from. None: the present ones, which are about to change.
        """
        acted = self._parameters.parameter.clone() if parameter is None else parameter
        self._before.append((t, acted))

    def segments(self, num_rows: int) -> Iterator[slice]:
        """Go through all rows; meanwhile the network has the parameters that acted in them.

        Afterwards it has the present ones again, and the notes are forgotten.

        Args:
            num_rows: number of rows of the rollout.

        Returns:
            Slices of rows, in order.
        """
        notes, self._before = self._before, []
        present = self._parameters.parameter
        start, kept = 0, present.clone() if notes else None
        try:
            for t, parameter in notes:
                present.copy_(parameter)
                yield slice(start, t)
                start = t
        finally:
            if kept is not None:
                present.copy_(kept)
        if start < num_rows:
            yield slice(start, num_rows)
