"""Registering memory with CUDA, with its calls replaced: there is no GPU here."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from accel_rl.system import registration
from accel_rl.system.registration import register, unregister

GPU = torch.device("cuda", 1)


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What CUDA is asked, in order, each on the device in front of it; every registration fails
    whose flags are not those for all GPUs, or that has more than 20 bytes."""
    calls: list[tuple[Any, ...]] = []
    here: list[Any] = [None]

    @contextmanager
    def device(index: Any) -> Iterator[None]:
        here[0] = index
        yield
        here[0] = None

    def host_register(pointer: int, size: int, flags: int) -> int:
        calls.append((here[0], "register", pointer))
        return 0 if size <= 20 and flags == 1 else 2

    def check_error(code: int) -> None:
        if code:
            raise RuntimeError(f"out of memory ({code})")

    def launch(*_: int, device: Any) -> None:
        calls.append((device, "launch"))
        raise RuntimeError("out of memory, again")

    driver = SimpleNamespace(
        cudaHostRegister=host_register,
        cudaHostUnregister=lambda pointer: calls.append((None, "unregister", pointer)),
    )
    monkeypatch.setattr(registration, "_cudart", lambda: driver)
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "check_error", check_error)
    monkeypatch.setattr(torch, "zeros", launch)
    return calls


def test_memory_is_registered_on_the_device_and_let_go(called: list[tuple[Any, ...]]) -> None:
    memory = torch.empty(5)
    assert register(memory, GPU)
    unregister(memory)
    address = memory.data_ptr()
    assert called == [(GPU, "register", address), (None, "unregister", address)]


def test_failure_is_told_once_and_not_by_the_next_kernel(
    called: list[tuple[Any, ...]], caplog: pytest.LogCaptureFixture
) -> None:
    """CUDA gives an error again at the next kernel, so one is launched on the device."""
    memory = torch.empty(6)
    assert not register(memory, GPU)
    (message,) = caplog.messages
    assert "could not register 24 bytes" in message and "(out of memory (2))" in message
    assert called == [(GPU, "register", memory.data_ptr()), (GPU, "launch")]
