"""Numbers that change with what learners see, such as running means, and are not learned."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from accel_rl.parallel.store import ParameterStore
from accel_rl.parallel.team import Team

Combine = Callable[[Tensor], Tensor]
"""from the numbers as they are, ``[n]``, to those that take their place"""


class Running:
    """Running numbers of one learner, or of several that change them alike.

    Attributes:
        value: ``[n]``, as this learner last saw them.
    """

    def __init__(self, value: Tensor) -> None:
        self.value = value

    def renew(self, combine: Combine) -> None:
        """Replace the numbers by ``combine`` of them."""
        self.value = combine(self.value)

    def restore(self, value: Tensor) -> None:
        """Go on from ``value``, ``[n]``, of a checkpoint."""
        self.value = value

    def newest(self) -> Tensor:
        """Return the numbers for a checkpoint, ``[n]``."""
        return self.value


class SharedRunning(Running):
    """Running numbers of learners that share a store, which keeps the changes by all of them.

    Args:
        value: The first numbers, ``[n]``, the same in all learners.
        store: of one chunk with the array "running", like ``value``.
        is_first: Whether all learners go on from this learner's checkpoint.
    """

    def __init__(self, value: Tensor, store: ParameterStore, *, is_first: bool) -> None:
        super().__init__(value)
        self._store = store
        self._is_first = is_first

    def renew(self, combine: Combine) -> None:
        """Replace the numbers in the store, under its lock.

        Raises:
            TimeoutError: The lock did not come free.
        """
        for chunk, _ in self._store.visit():
            valid, num_updates = chunk.look()
            (before,), (after,) = chunk.slots[valid], chunk.slots[1 - valid]
            self.value = combine(before.to(self.value.device, copy=True))
            after.copy_(self.value)
            chunk.flip(num_updates + 1)

    def restore(self, value: Tensor) -> None:
        """Go on from the first learner's ``value``, ``[n]``."""
        self.value = value
        if self._is_first:
            self._store.write({"running": value}, num_updates=0)

    def newest(self) -> Tensor:
        """Return the numbers in the store, ``[n]``."""
        return self._store.read()[0]["running"]


def share_running(team: Team, name: str, value: Tensor) -> Running:
    """Return numbers that all learners of ``team`` share, who must all ask for ``name``.

    Args:
        team: The learners.
        name: Name of the numbers, used once.
        value: The first numbers, ``[n]``.

    Raises:
        TeamError: Another learner is gone.
        ValueError: Another learner has numbers of another kind.
    """
    if team.ranks.size == 1:
        return Running(value)
    about = {"numbers": f"{name}, {len(value)} of {value.dtype}"}
    if team.ranks.is_first:
        store = ParameterStore.create({"running": value}, about, 1, team.timeout_seconds)
        team.share(f"running {name}", store.address)
    else:
        store = ParameterStore.open(team.share(f"running {name}"), about, team.timeout_seconds)
    return SharedRunning(value, store, is_first=team.ranks.is_first)
