"""Numbers that change with what learners see, such as running means, and are not learned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from accel_rl.parallel.flat import FlatParameters
from accel_rl.parallel.store import ParameterStore
from accel_rl.parallel.team import Team

Combine = Callable[[Tensor], Tensor]
"""from the numbers as they are, ``[n]``, to those that take their place"""


class Running:
    """Such numbers of one learner, or of several that change them alike.

    Attributes:
        value: ``[n]``, as this learner last saw them.
    """

    def __init__(self, value: Tensor) -> None:
        self.value = value

    def renew(self, combine: Combine) -> None:
        """Make them what ``combine`` makes of them."""
        self.value = combine(self.value)

    def restore(self, value: Tensor) -> None:
        """Go on from ``value``, ``[n]``, of a checkpoint."""
        self.value = value

    def newest(self) -> Tensor:
        """Return what goes into a checkpoint, ``[n]``."""
        return self.value


class SharedRunning(Running):
    """The same for learners that share a store, where no change by another is lost.

    Args:
        value: What they begin with, ``[n]``, the same in all learners.
        store: Of one chunk, with a tensor like ``value``.
        is_first: Whether this learner's checkpoint is the one that they go on from.
    """

    def __init__(self, value: Tensor, store: ParameterStore, *, is_first: bool) -> None:
        super().__init__(value)
        self._store = store
        self._is_first = is_first

    def renew(self, combine: Combine) -> None:
        """As `Running.renew`, of the numbers in the store, under its lock.

        Raises:
            TimeoutError: The lock did not come free.
        """
        for chunk in self._store.visit():
            before, after = (chunk.slots[i][0] for i in (chunk.valid, 1 - chunk.valid))
            size, device = len(self.value), self.value.device
            self.value = combine(before[:size].to(device, copy=True))
            after[:size].copy_(self.value)
            chunk.flip(chunk.num_updates + 1)

    def restore(self, value: Tensor) -> None:
        """As `Running.restore`; the first learner's are those of all."""
        self.value = value
        if self._is_first:
            flat = self._store.read()[0]["parameters"]
            flat[: len(value)].copy_(value)
            self._store.write({"parameters": flat}, num_updates=0)

    def newest(self) -> Tensor:
        """As `Running.newest`: those of the store."""
        return self._store.read()[0]["parameters"][: len(self.value)]


@dataclass(frozen=True)
class _Nothing:
    """The rule of a store that only keeps numbers: it has no state of its own."""

    def make_state(self, parameter: Tensor) -> dict[str, Tensor]:
        return {}

    def rate(self, lr: float, step: int) -> float:
        return lr

    def step_(
        self, parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], rate: float | Tensor
    ) -> None:
        raise NotImplementedError


def share_running(team: Team, timeout_seconds: float, name: str, value: Tensor) -> Running:
    """Return numbers that all learners of ``team`` share, who must all ask for ``name``.

    Args:
        team: The learners.
        timeout_seconds: How long a lock may take.
        name: Serves once.
        value: What they begin with, ``[n]``.

    Raises:
        TeamError: Another learner is gone.
        ValueError: Another learner has numbers of another kind.
    """
    if team.ranks.size == 1:
        return Running(value)
    module = nn.Module()
    module.register_parameter("running", nn.Parameter(value.to("cpu", copy=True)))
    flat, is_first = FlatParameters(module), team.ranks.is_first
    if is_first:
        store = ParameterStore.create(flat, _Nothing(), 1, timeout_seconds)
        team.share(f"running {name}", store.address)
    else:
        address = team.share(f"running {name}")
        store = ParameterStore.open(address, flat, _Nothing(), timeout_seconds)
    return SharedRunning(value, store, is_first=is_first)
