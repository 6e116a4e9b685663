"""Clocks of the time that a GPU works on updates after this process has enqueued them.

An update on a GPU is enqueued within what the host's clock takes for learning. The device finishes
it later, while the host goes on, and the host waits for that where it reads the next actions. So
that wait is part of learning, and the host's clock takes it for inference.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from time import perf_counter

import torch


class DeviceClock:
    """The clock of a CPU, which is done with an update when this process is.

    Attributes:
        late_seconds: time spent so far in waiting for updates, when actions were read.
    """

    late_seconds = 0.0

    def begin(self) -> None:
        """An update is about to be enqueued."""

    def end(self) -> None:
        """The update is enqueued."""

    def act(self) -> None:
        """The next actions are about to be chosen."""


@dataclass
class _Update:
    """Events before and after an update, and when the host began it and when it acted again."""

    first: torch.cuda.Event
    last: torch.cuda.Event
    began: float
    acted: float = math.inf


class EventClock(DeviceClock):
    """The clock of a GPU: two events around each update, read when a later update begins.

    By then the host has waited for actions that came after the events, so that it waits no more.
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
    """Return a clock of updates on ``device``."""
    return EventClock(device) if device.type == "cuda" else DeviceClock()
