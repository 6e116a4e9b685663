"""Several of our learners as one case: a child for each, which find each other in a store."""

from __future__ import annotations

from typing import Any

from torch.distributed import TCPStore

from benchmarks.harness.interleave import Case

TIMEOUT_SECONDS = 120.0
"""that learners wait for each other"""
_STORES: list[TCPStore] = []  # which live as long as this process, as their children do


def learner_case(name: str, spec: dict[str, Any], num_learners: int, row: dict[str, Any]) -> Case:
    """Of ``num_learners`` children of `scaling_learner`, each of which is given ``spec``."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    _STORES.append(store)
    spec = spec | {"store": f"127.0.0.1:{store.port}", "timeout": TIMEOUT_SECONDS}
    specs = tuple(spec | {"rank": rank} for rank in range(num_learners))
    return Case(name, "scaling/scaling_learner.py", specs, row)
