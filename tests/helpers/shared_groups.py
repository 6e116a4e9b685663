"""Learners that are threads, with a `SharedGroup`."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from accel_rl.parallel import SharedGroup


def make_groups(size: int, timeout_seconds: float = 20.0) -> list[SharedGroup]:
    groups = [SharedGroup(rank, size, timeout_seconds) for rank in range(size)]
    for group in groups:
        group.connect([each.address for each in groups])
    return groups


def in_all(groups: list[SharedGroup], act: Callable[[SharedGroup, int], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(groups)) as pool:
        return list(pool.map(act, groups, range(len(groups))))
