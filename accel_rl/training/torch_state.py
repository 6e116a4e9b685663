"""What a program that embeds training has set in torch, and what training needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def own_torch_state() -> Iterator[None]:
    """Within, gradients are recorded; afterwards the host's random numbers are as they were.

    Raises:
        ValueError: the host has changed the dtype or the device with which tensors are made.
    """
    made = torch.empty(0)
    if made.dtype != torch.float32 or made.device.type != "cpu":
        raise ValueError(
            f"torch makes tensors of {made.dtype} on {made.device} here; networks need its "
            "own defaults: call torch.set_default_dtype(torch.float32) and "
            'torch.set_default_device("cpu") first'
        )
    with torch.inference_mode(False), torch.enable_grad(), torch.random.fork_rng(devices=[]):
        yield
