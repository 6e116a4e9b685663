"""The clock that tells for how long the host waits for updates on a GPU."""

import os
from typing import Any

import pytest
import torch

from accel_rl.training import device_clock
from accel_rl.training.device_clock import EventClock

IS_EMULATED = "EMULATED_GPU" in os.environ


def test_wait_for_what_was_enqueued_is_told_without_another_wait(
    forbidding_waits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = torch.device("cuda")
    monkeypatch.setattr(device_clock, "perf_counter", lambda: 0.0)  # the host takes no time
    clock = EventClock(device)
    x = torch.rand(64 if IS_EMULATED else 4096, 64 if IS_EMULATED else 4096, device=device)
    torch.mm(x, x)  # sets up
    for _ in range(2):
        with forbidding_waits():
            clock.begin()
            for _ in range(50):
                torch.mm(x, x)
            clock.end()
            clock.act()
        torch.cuda.synchronize()
    clock.begin()
    assert len(clock._updates) == 1
    assert clock.late_seconds > 0.01  # 50 products take a hundred milliseconds
