"""What an action server needs of an agent."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Agent(Protocol):
    """Chooses actions by what it observes at the moment; one that remembers is `RecurrentAgent`."""

    def act(self, observation: Tensor, uniform: Tensor, columns: slice) -> Tensor:
        """Actions ``[N]`` int64 for ``observation``, ``[N, ...]``, on one device.

        ``uniform``: ``[N]`` in [0, 1), all the randomness there is. ``columns``: the environments.
        """
        ...
