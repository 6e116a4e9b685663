"""Which of a run's learners this process is, as launchers tell it by environment variables."""

from __future__ import annotations

import os
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
    """The number of a learner among all learners.

    Attributes:
        rank: number among all, from 0.
        size: number of learners.
        local_rank: number among those on this machine, from 0.
        local_size: number of learners on this machine.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @property
    def is_first(self) -> bool:
        """True for the learner that keeps the run's records."""
        return self.rank == 0


ALONE = Ranks()
"""The ranks of a learner without others."""
TIMEOUT_VARIABLE = "ACCEL_RL_TIMEOUT_SECONDS"
"""environment variable of the seconds after which a learner that blocks the others has failed"""


def learner_timeout() -> float:
    """Return the seconds after which a learner that blocks the others counts as failed."""
    return float(os.environ.get(TIMEOUT_VARIABLE, 1800))


def read_ranks(environment: Mapping[str, str]) -> Ranks:
    """Return the ranks that torchrun, or a similar launcher, has put into the environment.

    Without such variables the learner is alone.

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
    """Return the seed of one learner.

    The first learner has the seed of the run. The others have seeds of children of its seed
    sequence, so that seeds of different runs and learners differ.

    Args:
        seed: seed of the run.
        rank: rank of the learner.
    """
    if rank == 0:
        return seed
    child = np.random.SeedSequence(seed, spawn_key=(rank,))
    return int(child.generate_state(1, np.uint64)[0] >> np.uint64(1))
