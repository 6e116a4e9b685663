"""How long a GPU works on updates after this process has enqueued them.

An update on a GPU is enqueued within what the host's clock takes for learning. The device finishes
it later, while the host goes on, and the host waits for that where it reads the next actions. So
that wait is part of learning, and the host's clock takes it for inference.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import torch


class DeviceClock(Protocol):
    """Measures the waits for updates.

    Attributes:
        late_seconds: Spent in waiting for them so far, when actions were read.
    """

    late_seconds: float

    def begin(self) -> None:
        """An update is about to be enqueued."""
        ...

    def end(self) -> None:
        """The update is enqueued."""
        ...

    def act(self) -> None:
        """The next actions are about to be chosen."""
        ...


class NoClock:
    """On a CPU, which is done with an update when the host is."""

    late_seconds = 0.0

    def begin(self) -> None:
        pass

    def end(self) -> None:
        pass

    def act(self) -> None:
        pass


@dataclass
class _Update:
    """Events before and behind it, and when the host began it and when it acted again."""

    first: torch.cuda.Event
    last: torch.cuda.Event
    began: float
    acted: float = math.inf


class EventClock:
    """On a GPU: two events in its stream around each update, read when a later one begins.

    By then the host has waited for actions that came behind them, so it waits no more.
    """

    def __init__(self, device: torch.device) -> None:
        self.late_seconds = 0.0
        self._device = device
        self._updates: deque[_Update] = deque()  # whose events are not read

    def begin(self) -> None:
        while self._updates and self._updates[0].last.query():  # type: ignore[no-untyped-call]
            update = self._updates.popleft()
            seconds = update.first.elapsed_time(update.last) / 1000
            # Until the host acts again, the device's rest hides behind the host's other work.
            self.late_seconds += max(0.0, seconds - (update.acted - update.began))
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        self._updates.append(_Update(first, last, perf_counter()))
        first.record(torch.cuda.current_stream(self._device))

    def end(self) -> None:
        self._updates[-1].last.record(torch.cuda.current_stream(self._device))

    def act(self) -> None:
        if self._updates:
            self._updates[-1].acted = perf_counter()


def make_device_clock(device: torch.device) -> DeviceClock:
    """A clock of updates on ``device``."""
    return EventClock(device) if device.type == "cuda" else NoClock()
