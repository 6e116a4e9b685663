"""Shares of time on a GPU: the wait for an update counts as learning, wherever the host waits."""

from typing import Any

import pytest
import torch
from taped_runs import FakeLearner, FakeSampler, Tape, make_config, make_run

from accel_rl.samplers import SamplerTimes
from accel_rl.training.device_clock import EventClock

CUDA = torch.device("cuda")


class Gpu:
    """A GPU and its host's clock: what is enqueued is done in order, after ``busy_until``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.busy_until = 0.0
        gpu = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self, stream: object) -> None:
                assert stream == "stream of cuda"
                self.seconds = max(gpu.now, gpu.busy_until)

            def query(self) -> bool:
                return self.seconds <= gpu.now

            def elapsed_time(self, end: Any) -> float:
                assert end.query(), "the host would get an error"
                return 1000 * (end.seconds - self.seconds)

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
        for module in ("device_clock", "rollouts", "records"):
            monkeypatch.setattr(f"accel_rl.training.{module}.perf_counter", lambda: self.now)

    def enqueue(self, host: float, device: float) -> None:
        """The host takes ``host`` seconds to enqueue what the device does in ``device``."""
        self.busy_until = max(self.now, self.busy_until) + device
        self.now += host

    def wait(self) -> None:
        self.now = max(self.now, self.busy_until)


@pytest.mark.parametrize(
    ("device", "other", "late"),
    [(7.0, 0.5, 5.5), (1.5, 0.0, 0.5), (1.5, 2.0, 0.0), (0.5, 0.0, 0.0)],
)
def test_rest_of_an_update_is_late_but_for_what_the_host_does_meanwhile(
    device: float, other: float, late: float, monkeypatch
) -> None:
    gpu = Gpu(monkeypatch)
    clock = EventClock(CUDA)
    for number in range(3):
        clock.begin()
        assert clock.late_seconds == pytest.approx(number * late)
        gpu.enqueue(1.0, device)
        clock.end()
        gpu.now += other
        clock.act()
        gpu.wait()


def test_update_that_is_not_done_is_read_later(monkeypatch) -> None:
    gpu = Gpu(monkeypatch)
    clock = EventClock(CUDA)
    for _ in range(2):
        clock.begin()
        gpu.enqueue(1.0, 4.0)
        clock.end()
        clock.act()
    assert clock.late_seconds == 0
    gpu.wait()
    clock.begin()
    # The second waited 3 s for the first.
    assert clock.late_seconds == pytest.approx(3.0 + 3.0)
    assert len(clock._updates) == 1


def test_run_on_a_gpu_counts_the_wait_for_its_updates_as_learning(tmp_path, monkeypatch) -> None:
    gpu, tape = Gpu(monkeypatch), Tape()

    class Sampler(FakeSampler):
        policy = 0.0

        @property
        def times(self) -> SamplerTimes:  # type: ignore[override]
            return SamplerTimes(0.0, self.policy, 0.0)

        def collect(self, policy: Any) -> None:
            began = gpu.now
            gpu.wait()  # for the first actions
            gpu.now += 1.0
            self.policy += gpu.now - began
            super().collect(policy)

    sampler = Sampler(tape)
    learner = FakeLearner(tape, on_update=lambda: gpu.enqueue(0.5, 4.0))
    run = make_run(make_config(), tmp_path, tape, sampler=sampler, learner=learner)
    run.records.device_clock = EventClock(CUDA)
    run.iterate()
    reading = run.records._read()
    run.records.close()
    # Five iterations. For the last update nobody has waited.
    assert reading.wall == pytest.approx(5 * 1.0 + 4 * 4.0 + 0.5)
    assert reading.learning == pytest.approx(5 * 0.5 + 4 * 3.5)
    assert reading.inference == pytest.approx(5 * 1.0)
