"""Registering memory with CUDA, with its calls replaced: there is no GPU here."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from accel_rl import registration
from accel_rl.registration import register


@pytest.mark.parametrize("error", [0, 2])
def test_failure_is_told_once_and_not_by_the_next_kernel(
    error: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA gives an error again at the next kernel, so one is launched on the device."""
    launched: list[Any] = []

    def launch(*_: int, device: str) -> None:
        launched.append(device)
        raise RuntimeError("out of memory, again")

    def check_error(code: int) -> None:
        if code:
            raise RuntimeError(f"out of memory ({code})")

    driver = SimpleNamespace(cudaHostRegister=lambda pointer, size, flags: error)
    memory = torch.empty(5)
    monkeypatch.setattr(registration, "_cudart", lambda: driver)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "check_error", check_error)
    monkeypatch.setattr(torch, "zeros", launch)
    device = torch.device("cuda", 1)
    if not error:
        register(memory, device)
        assert not launched
        return
    match = r"could not register 20 bytes .*\(out of memory \(2\)\); .*ulimit -l.*device=cpu"
    with pytest.raises(RuntimeError, match=match):
        register(memory, device)
    assert launched == [device]
