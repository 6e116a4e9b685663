"""Which of a run's learners this process is, as launchers tell it by environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

_VARIABLES = {
    "rank": "RANK",
    "size": "WORLD_SIZE",
    "local_rank": "LOCAL_RANK",
    "local_size": "LOCAL_WORLD_SIZE",
}


class Ranks(NamedTuple):
    """This learner's number among ``size`` in all, and among ``local_size`` on this machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether it is the one that keeps the run's records."""
        return self.rank == 0


ALONE = Ranks()
"""the one learner of a run"""


def read_ranks(environment: Mapping[str, str]) -> Ranks:
    """What torchrun, or any launcher of its kind, has put into the environment; alone if nothing.

    Raises:
        ValueError: the variables are incomplete, or contradict each other.
    """
    if not environment.get("WORLD_SIZE"):  # empty, as scripts may leave it, is unset
        return Ranks()
    texts = {field: environment.get(name, "") for field, name in _VARIABLES.items()}
    if texts["size"] == "1":
        return Ranks()
    told = ", ".join(f"{name}={texts[field] or 'unset'}" for field, name in _VARIABLES.items())
    advice = "start learners with torchrun, or unset these variables and give learners=N"
    try:
        ranks = Ranks(**{field: int(text) for field, text in texts.items()})
    except ValueError:
        raise ValueError(f"{told}: each must be a number; {advice}") from None
    if not (0 <= ranks.rank < ranks.size and 0 <= ranks.local_rank < ranks.local_size):
        raise ValueError(f"{told}: ranks must be below sizes; {advice}")
    return ranks


def rank_seed(seed: int, rank: int) -> int:
    """The seed of one learner's simulators and draws, from that of the run.

    The first learner's is the run's own; the others' come from children of its seed sequence, so
    that no two of any runs meet but by an accident of one in 2**63.
    """
    if rank == 0:
        return seed
    child = np.random.SeedSequence(seed, spawn_key=(rank,))
    return int(child.generate_state(1, np.uint64)[0] >> np.uint64(1))
