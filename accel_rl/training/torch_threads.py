"""How many threads torch computes with, and when. The only place that sets it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from accel_rl.topology import available_cpus


@contextmanager
def learning_threads() -> Iterator[None]:
    """All CPUs of this process within, where simulators wait; one outside, where they work."""
    torch.set_num_threads(len(available_cpus()))
    try:
        yield
    finally:
        torch.set_num_threads(1)
