"""Processor time of each test, its child processes included: what decides the tier of a test.

``--costs=FILE`` writes a table, dearest functions first. ``--check-costs`` also fails the session
if a quick function costs more than `QUICK_SECONDS` over all its cases, or if a test starts
processes without the marker ``processes``.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

QUICK_SECONDS = 0.5
"""processor time of a quick function, on a machine on which `_speed` is 1"""
_LOOP_SECONDS = 0.03
"""for the loop of `_speed`, on two cores of an AMD EPYC"""


class Cost(NamedTuple):
    """What tests cost: seconds of processor time, and processes started."""

    seconds: float
    processes: int

    def __add__(self, other: Cost) -> Cost:  # type: ignore[override]
        return Cost(self.seconds + other.seconds, self.processes + other.processes)


_elsewhere = Cost(0.0, 0)
_started = 0


def add(seconds: float, processes: int = 0) -> None:
    """Count processor time of processes whose parent is not this process, and their number."""
    global _elsewhere
    _elsewhere += Cost(seconds, processes)


def _count_starts(event: str, _: Any) -> None:
    global _started
    if event in {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"}:
        _started += 1


platform.processor()  # starts a program once, which no test is to pay for
sys.addaudithook(_count_starts)


def _spent() -> Cost:
    """Processor time until now of this process and of its children that were waited for."""
    return Cost(sum(os.times()[:4]), _started) + _elsewhere


_BEGAN = pytest.StashKey[Cost]()
_REPORTED = pytest.StashKey[dict[str, Any]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("costs", "processor time of tests")
    group.addoption("--costs", metavar="FILE", help="write the processor time of each function")
    group.addoption("--check-costs", action="store_true", help="fail where a quick test is dear")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_REPORTED] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    item.stash[_BEGAN] = _spent()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    if call.when == "teardown":
        now, began = _spent(), item.stash[_BEGAN]
        is_quick = not any(item.get_closest_marker(name) for name in ("slow", "nightly"))
        may_start = item.get_closest_marker("processes") is not None
        cost = (now.seconds - began.seconds, now.processes - began.processes)
        item.user_properties.append(("cost", (*cost, is_quick, may_start)))
    return (yield)


class _Reports:
    """Collects costs where the session is reported: in the controller if tests run in several."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._costs: dict[str, list[tuple[float, int, bool, bool]]] = defaultdict(list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            cost = dict(report.user_properties)["cost"]
            self._costs[report.nodeid.split("[")[0]].append(cost)  # type: ignore[arg-type]

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self._faults:
            terminalreporter.write_line(line, red=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if path := self._config.getoption("costs"):
            self._write(Path(path))
        self._faults = self._find_faults() if self._config.getoption("check_costs") else []
        if self._faults and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _write(self, path: Path) -> None:
        sums = {
            name: [sum(each) for each in zip(*all_, strict=True)]
            for name, all_ in self._costs.items()
        }
        rows = sorted(
            ((seconds, processes, name) for name, (seconds, processes, *_) in sums.items()),
            reverse=True,
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"{s:8.2f} {len(self._costs[name]):5d} {p:5d} {name}\n" for s, p, name in rows]
        path.write_text("seconds, tests, processes started, function\n" + "".join(lines))

    def _find_faults(self) -> list[str]:
        limit = QUICK_SECONDS * _speed()
        faults = []
        for name, costs in self._costs.items():
            quick = sum(seconds for seconds, _, is_quick, _ in costs if is_quick)
            if quick > limit:
                faults.append(f"{name} costs {quick:.2f} s; a quick function at most {limit:.2f} s")
            if any(processes and not may_start for _, processes, _, may_start in costs):
                faults.append(f"{name} starts processes without the marker 'processes'")
        return faults


def pytest_sessionstart(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        session.config.pluginmanager.register(_Reports(session.config))


def _speed() -> float:
    """Times that a loop takes longer here than on the machine of the limits; at least 1."""
    seconds = []
    for _ in range(5):
        began = time.process_time()
        sum(number * number for number in range(500_000))
        seconds.append(time.process_time() - began)
    return max(1.0, min(seconds) / _LOOP_SECONDS)
