"""Generators of random numbers that outlive a stop."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def restore(generator: torch.Generator, state: Tensor) -> None:
    """Gives ``generator`` the saved ``state``.

    Generators of another kind of device have other states; then the state seeds this one.
    """
    if state.numel() == generator.get_state().numel():
        generator.set_state(state)
    else:
        digest = hashlib.sha256(state.numpy().tobytes()).digest()
        generator.manual_seed(int.from_bytes(digest[:7], "little"))
