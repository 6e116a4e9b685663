"""What forks of this process must leave to it."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Owned(Protocol):
    """An object that only the process that made it may use."""

    def disown(self) -> None:
        """Let go of what belongs to the parent. Called in each fork, before anything else runs."""


_OWNED: WeakSet[Owned] = WeakSet()


def disown_in_forks(owned: Owned) -> None:
    """Call ``owned.disown`` in each fork of this process, as long as ``owned`` lives."""
    _OWNED.add(owned)


def _disown_all() -> None:
    for owned in list(_OWNED):
        owned.disown()


if hasattr(os, "register_at_fork"):  # not on every system
    os.register_at_fork(after_in_child=_disown_all)
